# SPDX-License-Identifier: Apache-2.0
# Finds cuDNN beside the CUDA toolkit or in the system's folders. Defines CUDNN::cudnn.
include("${CMAKE_CURRENT_LIST_DIR}/MicaFindLibrary.cmake")
mica_find_library(CUDNN TARGET CUDNN::cudnn HEADER cudnn.h LIBRARY cudnn HINTS ${CUDAToolkit_INCLUDE_DIRS}
                  LIBRARY_HINTS ${CUDAToolkit_LIBRARY_DIR} ${CUDAToolkit_LIBRARY_ROOT}
                  VERSION_HEADER cudnn_version.h VERSION_MACROS CUDNN_MAJOR CUDNN_MINOR CUDNN_PATCHLEVEL)
