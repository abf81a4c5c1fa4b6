# SPDX-License-Identifier: Apache-2.0
# mica_add_unit_test(NAME module SOURCES files... [LIBS libs...] [LABELS labels...] [BY_FILE])
#   one GoogleTest executable per module, one CTest for it: unit.MODULE. BY_FILE: one for each file, unit.MODULE.FILE, and
#   unit.MODULE.no_others, which fails when those leave out a test. The target unit_tests builds all of them.
# mica_add_test(NAME name SOURCES files... RANKS 1 2 4 [LIBS ...] [LABELS ...] [ARGS ...])
#   one executable, one CTest per world size, run under mpirun; the test gets --expect-world=N and fails on another size.
#   More than 4 ranks are extended tests: they take their time on two cores.
# mica_add_test(NAME name FILE file OF executable RANKS 1 2 4 ...)
#   the same for one file of an executable of several, which mica_add_test_executable() has added.
#   A test that is named X_OnSeveralRanks or X_OnTwoRanks runs on those alone.
# mica_add_soak_test(name target VARIABLE count [arguments...])
#   soak.NAME: a randomised test (a target, or a program), VARIABLE=count of whose cases are hours; MICA_SOAK_PERCENT of them where that is set.
# mica_leave_out(NAME reason): a test that cannot run here is not registered; scripts/test.sh tells, and fails over it in CI.
#   A test that skips itself fails.
find_package(GTest QUIET)
mica_require("GoogleTest" FOUND "${GTest_FOUND}" VERSION "${GTest_VERSION}" LEAST 1.12 AT "${GTest_DIR}"
             DEBIAN "libgtest-dev and libgmock-dev" CONDA "gtest" SPACK "googletest" SET "-DGTest_ROOT=FOLDER" WITHOUT "-DMICA_BUILD_TESTS=OFF")
mica_check_requirements()
find_package(Threads REQUIRED)

set(MICA_MPIRUN_FLAGS "" CACHE STRING "Extra flags for mpirun in tests")

# As scripts/environment.sh, for who runs ctest alone; one thread a rank.
set(mica_mpi_environment OMP_NUM_THREADS=1
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
    OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_hwloc_base_binding_policy=none
    PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
    PRTE_MCA_hwloc_default_binding_policy=none)

# Seconds after which a test hangs, also on a machine with other work (two ranks on shared cores wait for each other long).
set(mica_test_timeout 900)
if(MICA_SANITIZE)
  set(mica_test_timeout 3600)
endif()

# PROCESSORS of a test, in quarters of a core, which scripts/test.sh gives to ctest. A process that computes counts for half a core, since it
# waits for files, for other ranks and for mpirun as long again.
set(mica_mostly_waits 1)
set(mica_half_core 2)
set(mica_whole_core 4)

set(mica_test_skipped "\\[  SKIPPED \\]")  # FAIL_REGULAR_EXPRESSION of what GoogleTest prints

# Tests are compiled more often than they compute: quickly rather than for speed. ccache needs -fpch-preprocess.
add_library(test_options INTERFACE)
target_compile_options(test_options INTERFACE $<$<CONFIG:Release>:-Og> $<$<CONFIG:Debug>:-O0> $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
target_link_libraries(test_options INTERFACE mica_options)

# Where sources and programs lie, which tests ask (tests/support/paths.hpp).
add_library(test_paths STATIC "${PROJECT_SOURCE_DIR}/tests/support/paths.cpp")
target_include_directories(test_paths PUBLIC "${PROJECT_SOURCE_DIR}/tests")
target_compile_features(test_paths PUBLIC cxx_std_20)
target_compile_definitions(test_paths PRIVATE MICA_SOURCE_DIR="${PROJECT_SOURCE_DIR}" MICA_BIN_DIR="${CMAKE_RUNTIME_OUTPUT_DIRECTORY}")
target_link_libraries(test_paths PRIVATE mica_options)

# The headers that nearly every test reads, compiled once: tests take half the time. An executable, since a library's
# position-independent code would differ from theirs.
add_executable(test_headers "${PROJECT_SOURCE_DIR}/tests/support/headers.cpp")
target_precompile_headers(test_headers PRIVATE <gtest/gtest.h> <gmock/gmock.h> <algorithm> <atomic> <cmath> <filesystem> <fstream>
                          <functional> <map> <optional> <sstream> <string> <thread> <vector>)
target_compile_features(test_headers PRIVATE cxx_std_20)
target_link_libraries(test_headers PRIVATE GTest::gtest GTest::gmock test_options)
set_target_properties(test_headers PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/tests")

function(mica_add_test_executable target)
  cmake_parse_arguments(arg "" "" "SOURCES;LIBS" ${ARGN})
  add_executable(${target} ${arg_SOURCES})
  target_link_libraries(${target} PRIVATE ${arg_LIBS} GTest::gtest GTest::gmock mica_testing test_paths test_options ${CMAKE_DL_LIBS})
  if(NOT "OpenMP::OpenMP_CXX" IN_LIST arg_LIBS)  # whose flags are not those of the precompiled headers
    target_precompile_headers(${target} REUSE_FROM test_headers)
  endif()
  set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/tests")
endfunction()

# Sets `out` to the GoogleTest filter of the tests that a source file defines.
function(_mica_filter_of out source)
  file(STRINGS "${source}" lines REGEX "^(TYPED_)?TEST(_F|_P)?\\(")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${source}")  # a new test changes the filter
  set(filter "")
  foreach(line IN LISTS lines)
    if(line MATCHES "^TEST_P\\(([A-Za-z0-9_]+), *([A-Za-z0-9_]+)")
      list(APPEND filter "*/${CMAKE_MATCH_1}.${CMAKE_MATCH_2}/*")
    elseif(line MATCHES "^TYPED_TEST\\(([A-Za-z0-9_]+), *([A-Za-z0-9_]+)")
      list(APPEND filter "${CMAKE_MATCH_1}/*.${CMAKE_MATCH_2}")
    elseif(line MATCHES "\\(([A-Za-z0-9_]+), *([A-Za-z0-9_]+)")
      list(APPEND filter "${CMAKE_MATCH_1}.${CMAKE_MATCH_2}")
    endif()
  endforeach()
  list(JOIN filter ":" filter)
  set(${out} "${filter}" PARENT_SCOPE)
endfunction()

# mica_add_tests_by_file(PREFIX TARGET SOURCES files... [ARGS arguments...]): a CTest PREFIX.FILE for each FILE_test.cpp of a program, and
# PREFIX.no_others, which fails when those leave out a test. Sets `tests_by_file` to their names.
function(mica_add_tests_by_file prefix target)
  cmake_parse_arguments(arg "" "" "SOURCES;ARGS" ${ARGN})
  set(tests "")
  set(all "")
  foreach(source IN LISTS arg_SOURCES)
    _mica_filter_of(filter "${source}")
    if(filter)
      get_filename_component(concept "${source}" NAME_WE)
      string(REGEX REPLACE "_test$" "" concept "${concept}")
      add_test(NAME ${prefix}.${concept} COMMAND ${target} "--gtest_filter=${filter}" ${arg_ARGS})
      list(APPEND tests ${prefix}.${concept})
      list(APPEND all "${filter}")
    endif()
  endforeach()
  list(JOIN all ":" all)
  add_test(NAME ${prefix}.no_others COMMAND ${target} "--gtest_filter=-${all}")
  set_tests_properties(${prefix}.no_others PROPERTIES PASS_REGULAR_EXPRESSION "Running 0 tests")
  set(tests_by_file ${tests} ${prefix}.no_others PARENT_SCOPE)
endfunction()

add_custom_target(unit_tests)
function(mica_add_unit_test)
  cmake_parse_arguments(arg "BY_FILE" "NAME" "SOURCES;LIBS;LABELS" ${ARGN})
  mica_add_test_executable(unit_${arg_NAME} SOURCES ${arg_SOURCES} LIBS ${arg_LIBS} GTest::gtest_main)
  add_dependencies(unit_tests unit_${arg_NAME})
  if(arg_BY_FILE)
    mica_add_tests_by_file(unit.${arg_NAME} unit_${arg_NAME} SOURCES ${arg_SOURCES} ARGS --gtest_brief=1)
    set(tests ${tests_by_file})
  else()
    set(tests unit.${arg_NAME})
    add_test(NAME ${tests} COMMAND unit_${arg_NAME})
  endif()
  set_tests_properties(${tests} PROPERTIES LABELS "unit;${arg_LABELS}" TIMEOUT ${mica_test_timeout} ENVIRONMENT "OMP_NUM_THREADS=1"
                       PROCESSORS ${mica_half_core}
                       FAIL_REGULAR_EXPRESSION "${mica_test_skipped}")
endfunction()

function(mica_add_test)
  cmake_parse_arguments(arg "" "NAME;FILE;OF" "SOURCES;LIBS;LABELS;RANKS;ARGS" ${ARGN})
  if(arg_OF)
    set(program ${arg_OF})
    target_sources(${program} PRIVATE ${arg_FILE})
    _mica_filter_of(all_tests "${CMAKE_CURRENT_SOURCE_DIR}/${arg_FILE}")
    if(NOT all_tests)
      message(FATAL_ERROR "${arg_FILE} has no tests, expected lines that begin with TEST(")
    endif()
  else()
    set(program ${arg_NAME})
    set(all_tests "*")
    mica_add_test_executable(${program} SOURCES ${arg_SOURCES} LIBS ${arg_LIBS})
  endif()
  foreach(ranks IN LISTS arg_RANKS)
    set(filter "${all_tests}")
    if(ranks EQUAL 1)
      string(APPEND filter "-*_OnSeveralRanks:*_OnTwoRanks")
    elseif(NOT ranks EQUAL 2)
      string(APPEND filter "-*_OnTwoRanks")
    endif()
    add_test(NAME ${arg_NAME}.np${ranks}
             COMMAND ${MPIEXEC_EXECUTABLE} ${MICA_MPIRUN_FLAGS} ${MPIEXEC_NUMPROC_FLAG} ${ranks}
                     $<TARGET_FILE:${program}> --expect-world=${ranks} "--gtest_filter=${filter}" ${arg_ARGS})
    # Each mpirun has a folder of its own: those that start and end at once in one folder make and remove it under each other.
    set(launcher_files "${PROJECT_BINARY_DIR}/launchers/${arg_NAME}.np${ranks}")
    math(EXPR processors "(${ranks} + 1) / 2 * ${mica_half_core}")
    if(processors GREATER mica_whole_core)  # they would wait until nearly all other tests have ended
      set(processors ${mica_whole_core})
    endif()
    set(labels mpi ${arg_LABELS})
    if(ranks GREATER 4)
      list(APPEND labels extended)
    endif()
    set_tests_properties(${arg_NAME}.np${ranks} PROPERTIES LABELS "${labels}" TIMEOUT ${mica_test_timeout} PROCESSORS ${processors}
      COST ${ranks}  # large ones first: small ones fit beside the last of them
      FAIL_REGULAR_EXPRESSION "${mica_test_skipped}"
      ENVIRONMENT "${mica_mpi_environment};OMPI_MCA_orte_tmpdir_base=${launcher_files};PRTE_MCA_prte_tmpdir_base=${launcher_files}")
  endforeach()
endfunction()

set(MICA_TESTS_LEFT_OUT "${PROJECT_BINARY_DIR}/tests_left_out.txt")
file(WRITE "${MICA_TESTS_LEFT_OUT}" "")
function(mica_leave_out name reason)
  message(STATUS "${name}: LEFT OUT, ${reason}")
  file(APPEND "${MICA_TESTS_LEFT_OUT}" "${name} ${reason}\n")
endfunction()

function(mica_add_soak_test name target variable count)
  if(TARGET ${target})
    set(target $<TARGET_FILE:${target}>)
  endif()
  add_test(NAME soak.${name} COMMAND sh -c "${variable}=$((${count} * \${MICA_SOAK_PERCENT:-100} / 100)) exec \"$0\" \"$@\""
           ${target} ${ARGN})
  set_tests_properties(soak.${name} PROPERTIES LABELS "soak" TIMEOUT 7200 RUN_SERIAL ON)
endfunction()
