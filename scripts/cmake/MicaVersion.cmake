# SPDX-License-Identifier: Apache-2.0
# mica_add_version_source(TARGET): version.cpp, written anew when the commit or "modified" changes: one file to compile, and a link.
function(mica_add_version_source target)
  set(source "${PROJECT_BINARY_DIR}/generated/version.cpp")
  add_custom_target(mica_version BYPRODUCTS "${source}" COMMENT "Which commit is this?" VERBATIM
    COMMAND ${CMAKE_COMMAND} -D SOURCE=${PROJECT_SOURCE_DIR} -D VERSION=${PROJECT_VERSION}
            -D OUT=${source} -P "${PROJECT_SOURCE_DIR}/scripts/cmake/write_version.cmake")
  target_sources(${target} PRIVATE "${source}")
  mica_compile_alone("${source}")  # it changes with every commit
  add_dependencies(${target} mica_version)
endfunction()
