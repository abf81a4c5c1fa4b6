# SPDX-License-Identifier: Apache-2.0
# Sourced by the other scripts: what mpirun needs on one machine, also as root and with more ranks than cores.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1        # mpirun -np 4 starts on 2 cores
export OMPI_MCA_hwloc_base_binding_policy=none    # a rank's OpenMP threads may use more than one core
export OMPI_MCA_mpi_yield_when_idle=1             # a waiting rank leaves its core to the others

# What the build is to know of GPUs: Mica is built for the CPU only where no GPU is.
mica_gpu_flag=-DMICA_ENABLE_CUDA=OFF
if [[ -e /dev/nvidia0 ]]; then mica_gpu_flag=-DMICA_ENABLE_CUDA=AUTO; fi
