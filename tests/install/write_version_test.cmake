# SPDX-License-Identifier: Apache-2.0
# Which commit do programs name? In a repository, in a changed one, in one of another user, in a tarball of git archive, in one without git.
#   cmake -DSOURCE=... -DWORK=... -P write_version_test.cmake
cmake_minimum_required(VERSION 3.25)
include("${CMAKE_CURRENT_LIST_DIR}/must.cmake")
file(REMOVE_RECURSE "${WORK}")

function(expect_commit folder expected)
  must(${CMAKE_COMMAND} -D "SOURCE=${folder}" -D VERSION=1.2.3 -D "OUT=${WORK}/version.cpp" -P "${folder}/scripts/cmake/write_version.cmake")
  file(READ "${WORK}/version.cpp" text)
  if(NOT text MATCHES "return \"1\\.2\\.3\"" OR NOT text MATCHES "return \"1\\.2\\.3 \\(commit ${expected}\\)\"")
    message(FATAL_ERROR "expected commit ${expected}, ${WORK}/version.cpp is:\n${text}")
  endif()
endfunction()

set(repository "${WORK}/repository")
foreach(file src/core/version.cpp.in scripts/cmake/write_version.cmake scripts/cmake/commit.txt .gitattributes)
  get_filename_component(folder "${repository}/${file}" DIRECTORY)
  file(COPY "${SOURCE}/${file}" DESTINATION "${folder}")
endforeach()
set(git git -C "${repository}" -c user.name=test -c user.email=test@localhost -c init.defaultBranch=main)
expect_commit("${repository}" "unknown")  # also below another repository: WORK may lie in one
must(${git} init --quiet)
must(${git} add -A)
must(${git} commit --quiet -m "one")
must(${git} rev-parse --short=8 HEAD)
string(STRIP "${output}" head)
expect_commit("${repository}" "${head}")
file(APPEND "${repository}/.gitattributes" "# changed\n")
expect_commit("${repository}" "${head}, modified")
# Git refuses the tree of another user, as where root builds a user's clone; this makes it take any tree for one.
set(ENV{GIT_TEST_ASSUME_DIFFERENT_OWNER} 1)
expect_commit("${repository}" "${head}, modified")
unset(ENV{GIT_TEST_ASSUME_DIFFERENT_OWNER})

# What did not change is not compiled again.
file(TIMESTAMP "${WORK}/version.cpp" before "%s")
must(${CMAKE_COMMAND} -E sleep 1.1)
expect_commit("${repository}" "${head}, modified")
file(TIMESTAMP "${WORK}/version.cpp" after "%s")
if(NOT before EQUAL after)
  message(FATAL_ERROR "version.cpp was written again though nothing changed")
endif()

must(${git} archive --format=tar --prefix=tarball/ --output=${WORK}/tarball.tar HEAD)
must(${CMAKE_COMMAND} -E chdir "${WORK}" ${CMAKE_COMMAND} -E tar xf tarball.tar)
expect_commit("${WORK}/tarball" "${head}")
file(REMOVE_RECURSE "${WORK}")
