// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

namespace mica::mpi {

/// Environment variables of MPI_Init alone: set while this exists, unless the user has set them. [Note: MPI_Init on one node]
/// Where Open MPI's mpirun has started all ranks on one node, a rank needs no network and binds nothing: it does not look for
/// fabrics' libraries (OMPI_MCA_pml=ob1: shared memory and TCP) and does not read the node's topology from some thirty files a
/// core (HWLOC_COMPONENTS=no_os). Measured on two cores: MPI_Init takes 0.1 s in place of 0.4 s and opens 116 files in place of
/// 276. On several nodes, under srun and with another MPI nothing is set. No other thread may read the environment meanwhile.
class InitVariables {
 public:
  InitVariables();
  ~InitVariables();
  InitVariables(const InitVariables&) = delete;
  InitVariables& operator=(const InitVariables&) = delete;

 private:
  std::vector<const char*> ours_;
};

}  // namespace mica::mpi
