# SPDX-License-Identifier: Apache-2.0
# MICA_ENABLE_CUDA=ON: finds what folders named cuda/ are built with; otherwise folders named no_cuda/ are built.
if(MICA_ENABLE_CUDA STREQUAL "AUTO")  # the default of earlier versions, in their build folders
  message(FATAL_ERROR "MICA_ENABLE_CUDA=AUTO: say ON or OFF; programs that are built with CUDA also run where no GPU is")
endif()
if(NOT MICA_ENABLE_CUDA)
  return()
endif()
set(without "-DMICA_ENABLE_CUDA=OFF")
include(CheckLanguage)
check_language(CUDA)
if(CMAKE_CUDA_COMPILER)
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 80 90)
  endif()
  enable_language(CUDA)
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake before 3.26 does not know that nvcc has it since version 12
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  endif()
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  set(CMAKE_CUDA_EXTENSIONS OFF)
  set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)  # the one that CUDA::cudart is: not two of them in one program
  find_package(CUDAToolkit QUIET)
else()
  unset(CMAKE_CUDA_COMPILER CACHE)  # look again next time
endif()
# 12.5 has cudaGetDriverEntryPointByVersion (src/device/cuda/driver.cpp).
mica_require("CUDA toolkit" FOUND "${CUDAToolkit_FOUND}" VERSION "${CUDAToolkit_VERSION}" LEAST 12.5 AT "${CMAKE_CUDA_COMPILER}"
             DEBIAN "NVIDIA's cuda-toolkit" CONDA "cuda" SPACK "cuda" SET "-DCMAKE_CUDA_COMPILER=FOLDER/bin/nvcc" WITHOUT "${without}")
find_package(NCCL QUIET)
mica_require("NCCL" FOUND "${NCCL_FOUND}" VERSION "${NCCL_VERSION}" LEAST 2.14 AT "${NCCL_LIBRARY}"
             DEBIAN "NVIDIA's libnccl-dev" CONDA "nccl" SPACK "nccl" SET "-DNCCL_ROOT=FOLDER" WITHOUT "${without}"
             ROOTS NCCL_ROOT PARTS "${NCCL_INCLUDE_DIR}")
find_package(CUDNN QUIET)
mica_require("cuDNN" FOUND "${CUDNN_FOUND}" VERSION "${CUDNN_VERSION}" LEAST 9.0 AT "${CUDNN_LIBRARY}"
             DEBIAN "NVIDIA's cudnn9-cuda-13" CONDA "cudnn" SPACK "cudnn" SET "-DCUDNN_ROOT=FOLDER" WITHOUT "${without}"
             ROOTS CUDNN_ROOT PARTS "${CUDNN_INCLUDE_DIR}")
# Headers only; scripts/cudnn-frontend.sh brings them where no package does.
find_path(CUDNN_FRONTEND_INCLUDE_DIR cudnn_frontend.h HINTS "${PROJECT_SOURCE_DIR}/build/cudnn-frontend/include" ${CUDNN_INCLUDE_DIR})
mark_as_advanced(CUDNN_FRONTEND_INCLUDE_DIR)
if(CUDNN_FRONTEND_INCLUDE_DIR)
  message(STATUS "GPUs: attention by cuDNN where it can, with cudnn-frontend from ${CUDNN_FRONTEND_INCLUDE_DIR}")
else()
  message(STATUS "GPUs: attention by Mica's own kernels: no cudnn-frontend is here (scripts/cudnn-frontend.sh installs it)")
endif()
