# SPDX-License-Identifier: Apache-2.0
# What CMake says where libraries are missing, too old, not where they were said to be, or turned off; what it makes of compilers and flags.
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
file(WRITE "${WORK}/static/include/hdf5.h" "")
file(WRITE "${WORK}/static/include/H5public.h" "#define H5_VERS_MAJOR 1\n#define H5_VERS_MINOR 10\n#define H5_VERS_RELEASE 8\n")
file(WRITE "${WORK}/static/lib/libhdf5.a" "")

function(expect_texts)
  foreach(text IN LISTS ARGN)
    string(FIND "${output}" "${text}" at)
    if(at EQUAL -1)
      message(FATAL_ERROR "CMake did not say '${text}' but:\n${output}")
    endif()
  endforeach()
endfunction()

set(configure ${CMAKE_COMMAND} -G "${GENERATOR}" -S "${SOURCE}" -B "${WORK}/build")
execute_process(COMMAND ${CMAKE_COMMAND} -E env CUDACXX=/nowhere/nvcc ${configure} "-Dfmt_DIR=${WORK}/old_fmt" "-DDNNL_ROOT=${WORK}/dnnl"
                        "-DHDF5_ROOT=${WORK}/hdf5" -DCMAKE_DISABLE_FIND_PACKAGE_SentencePiece=ON -DMICA_ENABLE_CUDA=ON
                RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(status EQUAL 0)
  message(FATAL_ERROR "configured without what it needs:\n${output}")
endif()
expect_texts("fmt 9.0 or newer: version 5.3.0 was found in ${WORK}/old_fmt" "Debian: libfmt-dev   conda-forge: fmt   Spack: fmt"
             "oneDNN 2.6 or newer: 4.0.1 in ${WORK}/dnnl/lib/libdnnl.so does not serve: Mica knows versions 2 and 3"
             "HDF5 1.10.2 or newer: not found" "-DHDF5_ROOT=FOLDER"
             "SentencePiece: not found" "without it: -DMICA_WITH_SENTENCEPIECE=OFF"
             "CUDA toolkit 12.5 or newer: not found" "without it: -DMICA_ENABLE_CUDA=OFF")

execute_process(COMMAND ${configure} "-DHDF5_ROOT=${WORK}/static" -U "MicaHDF5_*" -U "fmt_DIR" -U "DNNL_*" RESULT_VARIABLE status OUTPUT_VARIABLE output
                ERROR_VARIABLE output)
if(status EQUAL 0)
  message(FATAL_ERROR "configured with a static HDF5:\n${output}")
endif()
expect_texts("HDF5 1.10.2 or newer: 1.10.8 in ${WORK}/static/lib/libhdf5.a does not serve: it is static")

# What is turned off is not looked for; the same folder serves once flags are mended.
must(${configure} -U "fmt_DIR" -U "DNNL_*" -U "MicaHDF5_*" -UHDF5_ROOT -DMICA_WITH_SENTENCEPIECE=OFF -DMICA_ENABLE_CUDA=OFF)
string(FIND "${output}" "SentencePiece" at)
if(NOT at EQUAL -1)
  message(FATAL_ERROR "SentencePiece is off, and is looked for:\n${output}")
endif()
# shm_open() is in librt before glibc 2.34: whoever links the installed library needs -lrt.
file(GLOB_RECURSE targets "${WORK}/build/CMakeFiles/Export/*/micaTargets.cmake")
file(READ "${targets}" text)
if(NOT text MATCHES "LINK_ONLY:rt>")
  message(FATAL_ERROR "the package does not name librt: ${targets}")
endif()

# A folder that has no such library is not passed over for the system's; what the environment names is warned of. Scripts show no less.
set(roots HDF5_ROOT DNNL_ROOT MPI_HOME)
list(TRANSFORM roots APPEND "=${WORK}/nowhere" OUTPUT_VARIABLE settings)
list(TRANSFORM settings PREPEND "-D" OUTPUT_VARIABLE flags)
execute_process(COMMAND ${configure} ${flags} --log-level=WARNING RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(status EQUAL 0)
  message(FATAL_ERROR "configured with folders that do not exist:\n${output}")
endif()
list(TRANSFORM settings PREPEND "does not serve: it lies outside of " OUTPUT_VARIABLE texts)
expect_texts(${texts})
list(TRANSFORM roots PREPEND "-U" OUTPUT_VARIABLE flags)
must(${CMAKE_COMMAND} -E env ${settings} ${configure} ${flags})
string(REGEX REPLACE "[ \n]+" " " output "${output}")
list(TRANSFORM settings PREPEND "lies outside of " OUTPUT_VARIABLE texts)
list(TRANSFORM texts APPEND ", which the environment names")
expect_texts(${texts})
# What is said in links, as in a view of Spack's, serves.
file(STRINGS "${WORK}/build/CMakeCache.txt" library REGEX "^DNNL_(LIBRARY|INCLUDE_DIR):")
file(MAKE_DIRECTORY "${WORK}/view/lib")
foreach(line IN LISTS library)
  string(REGEX REPLACE "^[^=]*=" "" path "${line}")
  if(line MATCHES "LIBRARY")
    file(CREATE_LINK "${path}" "${WORK}/view/lib/libdnnl.so" SYMBOLIC)
  else()
    file(CREATE_LINK "${path}" "${WORK}/view/include" SYMBOLIC)
  endif()
endforeach()
must(${configure} -U DNNL_INCLUDE_DIR -U DNNL_LIBRARY "-DDNNL_ROOT=${WORK}/view")
expect_texts(", ${WORK}/view/lib/libdnnl.so")
must(${configure} -U "DNNL_*")

# Fast math of the user's, as a site's module may set it, would fold std::isfinite: it is taken back after the user's flags, and in the loops
# before what they do without.
must(${configure} -DCMAKE_EXPORT_COMPILE_COMMANDS=ON "-DCMAKE_CXX_FLAGS=-ffast-math" "-DCMAKE_CXX_FLAGS_RELEASE=-Ofast")
file(STRINGS "${WORK}/build/compile_commands.json" commands REGEX "\"command\": .*\\.cpp")
list(LENGTH commands count)
if(count LESS 100)
  message(FATAL_ERROR "only ${count} commands in compile_commands.json")
endif()
foreach(command IN LISTS commands)
  string(REGEX MATCHALL " -(ffast-math|Ofast|fno-fast-math|fno-math-errno|fno-trapping-math|ffp-contract=off)" flags "${command}")
  if(NOT flags MATCHES "^ -ffast-math; -Ofast; -fno-fast-math(; -ffp-contract=off(; -fno-math-errno; -fno-trapping-math)?)?$"
     OR (command MATCHES "src/tensor/" AND NOT flags MATCHES "-ffp-contract")
     OR (command MATCHES "/cpu/isa/" AND NOT flags MATCHES "-fno-trapping-math"))
    message(FATAL_ERROR "compiled with fast math, or without what the loops need:\n${command}")
  endif()
endforeach()
file(STRINGS "${WORK}/build/CMakeCache.txt" compiler REGEX "^CMAKE_CXX_COMPILER:")
string(REGEX REPLACE "^[^=]*=" "" compiler "${compiler}")
foreach(flag -ffast-math -ffinite-math-only)
  execute_process(COMMAND "${compiler}" ${flag} -E -std=c++20 "-I${SOURCE}/include" "${SOURCE}/src/core/dtype.cpp"
                  RESULT_VARIABLE status OUTPUT_QUIET ERROR_VARIABLE output)
  if(status EQUAL 0 OR NOT output MATCHES "Mica needs NaN and infinity")
    message(FATAL_ERROR "${flag} is not refused (${status}):\n${output}")
  endif()
endforeach()
must(${configure} -U CMAKE_CXX_FLAGS -U CMAKE_CXX_FLAGS_RELEASE)

# With the sanitizers, whose list has a comma, and the tests: what CI does not build.
must(${configure} -DMICA_SANITIZE=address,undefined -DMICA_BUILD_TESTS=ON)
# Compilers: what is too old is refused, what was never tried is warned of. The compiler here plays both: by its macros CMake knows it.
function(configure_with name macros expected)
  file(WRITE "${WORK}/${name}" "#!/bin/sh\nexec '${compiler}' ${macros} \"$@\"\n")
  file(CHMOD "${WORK}/${name}" PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
  execute_process(COMMAND ${CMAKE_COMMAND} -G "${GENERATOR}" -S "${SOURCE}" -B "${WORK}/build-${name}" "-DCMAKE_CXX_COMPILER=${WORK}/${name}"
                  OUTPUT_VARIABLE output ERROR_VARIABLE output)
  string(REGEX REPLACE "[ \n]+" " " output "${output}")
  if(NOT output MATCHES "${expected}")
    message(FATAL_ERROR "with ${name} CMake did not say '${expected}' but:\n${output}")
  endif()
endfunction()
configure_with(clang-16 "-D__clang__=1 -D__clang_major__=16 -D__clang_minor__=0 -D__clang_patchlevel__=6"
               "CMake Error .*Clang 16.0.6 \\([^ ]*/clang-16\\) does not compile Mica")
configure_with(icpx "-D__INTEL_LLVM_COMPILER=20250000" "CMake Warning .*Mica was not tested with IntelLLVM 2025.0.0")

# A generator of several build types.
find_program(NINJA ninja)
if(NINJA)
  must(${CMAKE_COMMAND} -G "Ninja Multi-Config" -S "${SOURCE}" -B "${WORK}/multi" -DMICA_BUILD_TESTS=ON)
  if(NOT EXISTS "${WORK}/multi/isa_objects.txt")
    message(FATAL_ERROR "no isa_objects.txt")
  endif()
endif()
file(REMOVE_RECURSE "${WORK}")
