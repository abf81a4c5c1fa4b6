# SPDX-License-Identifier: Apache-2.0
# mica_add_module(NAME [COLD] [DEPENDS mica modules...] [PUBLIC libs...] [PRIVATE libs...] [EXCLUDE patterns...])
# One static library per module, target mica_NAME, alias mica::NAME, from src/NAME/**.cpp. COLD: see cold_options.
add_library(mica_options INTERFACE)
target_compile_options(mica_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wconversion -Wno-sign-conversion -Wno-missing-field-initializers $<$<BOOL:${MICA_WERROR}>:-Werror>>
  $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra $<$<BOOL:${MICA_WERROR}>:-Werror=all-warnings -Xcompiler=-Werror>>)
# NaN and infinity are looked for (train.on_bad_step, diverged, loss scaling), so the fast math of a site's CXXFLAGS or of icpx's default is taken
# back: these options come after the user's. What must come after these is linked after mica_options: unfused_options in src/tensor.
target_compile_options(mica_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-fno-fast-math> $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-fno-fast-math>
  $<$<COMPILE_LANG_AND_ID:CXX,IntelLLVM>:-fp-model=precise>)
# When linking, too: for fast math a file is added to programs that makes the processor take the smallest numbers for zero.
target_link_options(mica_options INTERFACE $<HOST_LINK:-fno-fast-math>)
string(TOUPPER "CMAKE_CXX_FLAGS_${CMAKE_BUILD_TYPE}" flags_of_type)
if("${CMAKE_CXX_FLAGS} ${${flags_of_type}}" MATCHES "-Ofast")  # of which only another -O takes it back
  target_link_options(mica_options INTERFACE $<HOST_LINK:-O3>)
endif()
# In a unity build every source looks like a header, where types of an unnamed namespace would be suspicious. gcc collects garbage
# again and again from 128 MiB on: from 512 MiB on it takes a sixth less time. It needs up to 1.5 GiB then.
if(CMAKE_UNITY_BUILD)
  target_compile_options(mica_options INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage --param=ggc-min-heapsize=524288>)
endif()
# fmt leaves constexpr out for nvcc, but not everywhere, which nvcc then refuses in C++20: it can do it.
target_compile_definitions(mica_options INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:FMT_USE_CONSTEXPR=1>)
if(MICA_SANITIZE)
  target_compile_options(mica_options INTERFACE -fsanitize=${MICA_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(mica_options INTERFACE -fsanitize=${MICA_SANITIZE})
endif()

# Where no loop over elements is, -O1 makes programs as fast as -O3 does, and gcc takes a third less time. The build type Release alone has it.
add_library(cold_options INTERFACE)
target_compile_options(cold_options INTERFACE $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release>>:-O1>)

# mica_compile_alone(FILE...): in unity builds, too; for files that give the same local names as others of their target.
macro(mica_compile_alone)
  set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endmacro()

# What most sources read, compiled once for the rooms whose flags are the same, -O apart: a tenth of their time. Builds file by file do without, and
# so find a missing include.
function(_mica_precompile_headers name)
  get_target_property(libs mica_${name} LINK_LIBRARIES)
  if(NOT CMAKE_UNITY_BUILD OR "OpenMP::OpenMP_CXX" IN_LIST libs)
    return()
  endif()
  if(name STREQUAL "core")
    target_compile_options(mica_options INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fpch-preprocess>)  # for ccache
    target_precompile_headers(mica_core PRIVATE
      <algorithm> <array> <chrono> <cmath> <filesystem> <fstream> <functional> <map> <memory> <mutex> <optional> <set> <sstream> <string>
      <thread> <vector> <fmt/format.h> <fmt/ranges.h>)
  else()
    target_precompile_headers(mica_${name} REUSE_FROM mica_core)
  endif()
endfunction()

function(mica_add_module name)
  cmake_parse_arguments(arg "COLD" "" "DEPENDS;PUBLIC;PRIVATE;EXCLUDE" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/*.cpp" "${CMAKE_CURRENT_SOURCE_DIR}/*.cu")
  # A folder cuda/ is built where CUDA is, a folder no_cuda/ where it is not.
  if(MICA_ENABLE_CUDA)
    file(GLOB_RECURSE unbuilt "${CMAKE_CURRENT_SOURCE_DIR}/no_cuda/*")
  else()
    file(GLOB_RECURSE unbuilt "${CMAKE_CURRENT_SOURCE_DIR}/cuda/*")
  endif()
  list(REMOVE_ITEM sources ${unbuilt} "")
  # Tests with emulated GPUs take others in their place, one member of the library for another.
  set(replaceable ${sources})
  list(FILTER replaceable INCLUDE REGEX "/no_cuda/")
  mica_compile_alone(${replaceable})
  foreach(pattern IN LISTS arg_EXCLUDE)
    list(FILTER sources EXCLUDE REGEX "${pattern}")
  endforeach()
  add_library(mica_${name} STATIC ${sources})
  add_library(mica::${name} ALIAS mica_${name})
  set_target_properties(mica_${name} PROPERTIES EXPORT_NAME ${name})
  target_include_directories(mica_${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                                                 $<INSTALL_INTERFACE:include>)
  target_compile_features(mica_${name} PUBLIC cxx_std_20)
  list(TRANSFORM arg_DEPENDS PREPEND "mica::")
  target_link_libraries(mica_${name} PUBLIC ${arg_DEPENDS} ${arg_PUBLIC} PRIVATE ${arg_PRIVATE} $<BUILD_INTERFACE:mica_options>)
  if(arg_COLD)
    target_link_libraries(mica_${name} PRIVATE $<BUILD_INTERFACE:cold_options>)
  endif()
  _mica_precompile_headers(${name})
  set_property(GLOBAL APPEND PROPERTY MICA_MODULES mica_${name})
endfunction()
