# SPDX-License-Identifier: Apache-2.0
# Sourced by other scripts: lets mpirun start on one machine, also as root and with more ranks than cores.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1        # mpirun -np 4 starts on 2 cores
export OMPI_MCA_hwloc_base_binding_policy=none    # a rank's OpenMP threads may use more than one core
export OMPI_MCA_mpi_yield_when_idle=1             # a waiting rank yields its core
# The same for Open MPI 5, whose launcher is PRRTE.
export PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1
export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe PRTE_MCA_hwloc_default_binding_policy=none
