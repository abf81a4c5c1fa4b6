# SPDX-License-Identifier: Apache-2.0
# What CMake says where libraries are missing, too old, of another MPI, or turned off.
#   cmake -DSOURCE=... -DWORK=... -DGENERATOR=... -P configure_test.cmake
cmake_minimum_required(VERSION 3.25)
include("${CMAKE_CURRENT_LIST_DIR}/must.cmake")
file(REMOVE_RECURSE "${WORK}")
file(WRITE "${WORK}/old_fmt/fmt-config.cmake" "add_library(fmt::fmt INTERFACE IMPORTED)\n")
file(WRITE "${WORK}/old_fmt/fmt-config-version.cmake" "set(PACKAGE_VERSION 5.3.0)\n")
# oneDNN as it may be one day, and a header of HDF5 without a library beside it.
file(WRITE "${WORK}/dnnl/include/dnnl.hpp" "")
file(WRITE "${WORK}/dnnl/lib/libdnnl.so" "")
file(WRITE "${WORK}/dnnl/include/oneapi/dnnl/dnnl_version.h"
     "#define DNNL_VERSION_MAJOR 4\n#define DNNL_VERSION_MINOR 0\n#define DNNL_VERSION_PATCH 1\n")
file(WRITE "${WORK}/hdf5/include/hdf5.h" "")

set(configure ${CMAKE_COMMAND} -G "${GENERATOR}" -S "${SOURCE}" -B "${WORK}/build")
execute_process(COMMAND ${CMAKE_COMMAND} -E env CUDACXX=/nowhere/nvcc ${configure} "-Dfmt_DIR=${WORK}/old_fmt" "-DDNNL_ROOT=${WORK}/dnnl"
                        "-DHDF5_ROOT=${WORK}/hdf5" -DCMAKE_DISABLE_FIND_PACKAGE_SentencePiece=ON -DMICA_ENABLE_CUDA=ON
                RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(status EQUAL 0)
  message(FATAL_ERROR "configured without what it needs:\n${output}")
endif()
foreach(text "fmt 9.0 or newer: version 5.3.0 was found in ${WORK}/old_fmt" "Debian: libfmt-dev   conda-forge: fmt   Spack: fmt"
             "oneDNN 2.6 or newer: 4.0.1 in ${WORK}/dnnl/lib/libdnnl.so does not serve: Mica knows versions 2 and 3"
             "HDF5 1.10 or newer: not found" "-DHDF5_ROOT=FOLDER"
             "SentencePiece: not found" "without it: -DMICA_WITH_SENTENCEPIECE=OFF"
             "CUDA toolkit 12.0 or newer: not found" "without it: -DMICA_ENABLE_CUDA=OFF")
  string(FIND "${output}" "${text}" at)
  if(at EQUAL -1)
    message(FATAL_ERROR "CMake did not say '${text}' but:\n${output}")
  endif()
endforeach()

# What is turned off is not looked for; the same folder serves once flags are mended.
must(${configure} -U "fmt_DIR" -U "DNNL_*" -U "MicaHDF5_*" -UHDF5_ROOT -DMICA_WITH_SENTENCEPIECE=OFF -DMICA_ENABLE_CUDA=OFF)
string(FIND "${output}" "SentencePiece" at)
if(NOT at EQUAL -1)
  message(FATAL_ERROR "SentencePiece is off, and is looked for:\n${output}")
endif()
# With the sanitizers, whose list has a comma, and the tests: what CI does not build.
must(${configure} -DMICA_SANITIZE=address,undefined -DMICA_BUILD_TESTS=ON)
file(REMOVE_RECURSE "${WORK}")
