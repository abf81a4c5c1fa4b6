# SPDX-License-Identifier: Apache-2.0
# Finds oneDNN without its own config file, which on Debian demands OpenCL. Defines the imported target DNNL::dnnl.
# DNNL_CPU_RUNTIME: OMP, TBB, SEQ, THREADPOOL, ...
include("${CMAKE_CURRENT_LIST_DIR}/MicaFindLibrary.cmake")
set(_hints "")
if(DNNL_DIR)  # where its own config file lies: lib/cmake/dnnl
  set(_hints "${DNNL_DIR}/../../..")
endif()
mica_find_library(DNNL TARGET DNNL::dnnl HEADER dnnl.hpp LIBRARY dnnl HINTS ${_hints}
                  VERSION_HEADER oneapi/dnnl/dnnl_version.h VERSION_MACROS DNNL_VERSION_MAJOR DNNL_VERSION_MINOR DNNL_VERSION_PATCH)
set(DNNL_CPU_RUNTIME "unknown")
if(EXISTS "${DNNL_INCLUDE_DIR}/oneapi/dnnl/dnnl_config.h")
  file(STRINGS "${DNNL_INCLUDE_DIR}/oneapi/dnnl/dnnl_config.h" _line REGEX "define DNNL_CPU_THREADING_RUNTIME DNNL_RUNTIME_")
  if(_line MATCHES "DNNL_RUNTIME_([A-Z]+)$")
    set(DNNL_CPU_RUNTIME "${CMAKE_MATCH_1}")
  endif()
endif()
