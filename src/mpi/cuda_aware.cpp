// SPDX-License-Identifier: Apache-2.0
// Each MPI library has its own query for CUDA support. A library without one is assumed to have no support.
#include <mpi.h>

#if defined(OPEN_MPI) && __has_include(<mpi-ext.h>)
#include <mpi-ext.h>
#endif

#include "mica/mpi/session.hpp"

namespace mica::mpi {
namespace {

#if defined(MPIX_CUDA_AWARE_SUPPORT) && MPIX_CUDA_AWARE_SUPPORT  // Open MPI: the headers' library has it; ask the one at run time
bool says_so() { return MPIX_Query_cuda_support() == 1; }
#elif defined(MPIX_GPU_SUPPORT_CUDA)  // MPICH from 4.0 on
bool says_so() {
  int is_supported = 0;
  return MPIX_GPU_query_support(MPIX_GPU_SUPPORT_CUDA, &is_supported) == MPI_SUCCESS && is_supported != 0;
}
#else
bool says_so() { return false; }
#endif

}  // namespace

bool Session::is_cuda_aware() { return says_so(); }

}  // namespace mica::mpi
