# SPDX-License-Identifier: Apache-2.0
# Writes OUT from src/core/version.cpp.in with the commit of SOURCE: git's, or in a tarball of `git archive` that of
# scripts/cmake/commit.txt. Leaves OUT alone where nothing changed.
#   cmake -D SOURCE=... -D VERSION=... -D OUT=... -P write_version.cmake
cmake_minimum_required(VERSION 3.25)
set(version "${VERSION}")
set(commit "unknown")
set(is_git FALSE)
find_program(GIT git)
if(GIT AND EXISTS "${SOURCE}/.git")  # a tarball that was unpacked inside another repository is not of its commit
  # Also in a tree of another user, as where root builds a user's clone: who builds it runs what is in it anyway. (Git before
  # 2.38 does not heed this.)
  set(git "${GIT}" -c safe.directory=* -C "${SOURCE}")
  execute_process(COMMAND ${git} rev-parse --short=8 HEAD RESULT_VARIABLE status OUTPUT_VARIABLE head
                  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(status EQUAL 0)
    set(is_git TRUE)
    set(commit "${head}")
    execute_process(COMMAND ${git} --no-optional-locks status --porcelain --untracked-files=no OUTPUT_VARIABLE changes ERROR_QUIET)
    if(changes)
      string(APPEND commit ", modified")
    endif()
  endif()
endif()
if(NOT is_git)
  file(READ "${SOURCE}/scripts/cmake/commit.txt" archived)
  if(archived MATCHES "^([0-9a-f]+)")  # git archive replaced $Format:%H$
    string(SUBSTRING "${CMAKE_MATCH_1}" 0 8 commit)
  endif()
endif()
configure_file("${SOURCE}/src/core/version.cpp.in" "${OUT}" @ONLY)
