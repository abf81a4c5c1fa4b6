# SPDX-License-Identifier: Apache-2.0
# Finds NCCL beside the CUDA toolkit or in the system's folders. Defines NCCL::nccl.
include("${CMAKE_CURRENT_LIST_DIR}/MicaFindLibrary.cmake")
mica_find_library(NCCL TARGET NCCL::nccl HEADER nccl.h LIBRARY nccl HINTS ${CUDAToolkit_INCLUDE_DIRS}
                  LIBRARY_HINTS ${CUDAToolkit_LIBRARY_DIR} ${CUDAToolkit_LIBRARY_ROOT}
                  VERSION_HEADER nccl.h VERSION_MACROS NCCL_MAJOR NCCL_MINOR NCCL_PATCH)
