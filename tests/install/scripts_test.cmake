# SPDX-License-Identifier: Apache-2.0
# What the scripts say where a tool is too old, before they install or build anything.
#   cmake -DSOURCE=... -DWORK=... -P scripts_test.cmake
cmake_minimum_required(VERSION 3.25)
file(REMOVE_RECURSE "${WORK}")

# Stand-ins that are first on PATH: a Debian that has all packages and a cmake of CMAKE_VERSION, a python3 of version 3.8.
function(stand_in name text)
  file(WRITE "${WORK}/bin/${name}" "#!/bin/sh\n${text}\n")
  file(CHMOD "${WORK}/bin/${name}" PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
endfunction()
stand_in(dpkg-query "echo install ok installed")
stand_in(cmake "echo \"cmake version $STAND_IN_VERSION\"")
stand_in(python3 "case \"$1\" in --version) echo Python 3.8.20;; *) exit 1;; esac")
stand_in(pip "echo pip was called; exit 1")

# expect(STATUS text COMMAND...)
function(expect expected text)
  execute_process(COMMAND ${CMAKE_COMMAND} -E env "PATH=${WORK}/bin:$ENV{PATH}" ${ARGN}
                  RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  string(FIND "${output}" "${text}" at)
  if(NOT status EQUAL expected OR at EQUAL -1)
    message(FATAL_ERROR "${ARGN}: expected status ${expected} and '${text}', got ${status}:\n${output}")
  endif()
endfunction()
foreach(version 3.22.1 3.9.6)
  foreach(script install-packages.sh quickstart.sh)
    expect(2 "mica: error: ${WORK}/bin/cmake is version ${version}, and Mica needs 3.25" STAND_IN_VERSION=${version} "${SOURCE}/scripts/${script}")
  endforeach()
endforeach()
foreach(version 3.25.0 3.31.6-rc1 4.1.0)
  expect(0 "are installed" STAND_IN_VERSION=${version} "${SOURCE}/scripts/install-packages.sh")
endforeach()

expect(2 "mica: error: unknown flag --test, expected --tests" STAND_IN_VERSION=4.1.0 "${SOURCE}/scripts/install-packages.sh" --cluster --test)
expect(0 "7" CMAKE_BUILD_PARALLEL_LEVEL=7 "${SOURCE}/scripts/build-jobs.sh")
stand_in(nproc "echo \"\${OMP_NUM_THREADS:-2}\"")  # as coreutils' does on two CPUs
expect(0 "2" --unset=CMAKE_BUILD_PARALLEL_LEVEL OMP_NUM_THREADS=1 "${SOURCE}/scripts/build-jobs.sh")
expect(2 "mica: error: python3 is Python 3.8.20, and the wheels need 3.9" "${SOURCE}/scripts/build-without-root.sh" "${WORK}/folder")
expect(2 "mica: error: /nowhere/python3.11 is missing" PYTHON=/nowhere/python3.11 "${SOURCE}/scripts/build-without-root.sh" "${WORK}/folder")
expect(2 "mica: error: MPI=mpich and MPI_HOME=/opt/openmpi are both set: unset one of them" MPI=mpich MPI_HOME=/opt/openmpi
       "${SOURCE}/scripts/build-without-root.sh" "${WORK}/folder")

# Ubuntu has no such Chromium; a file server's copy of the sources is no git repository.
stand_in(dpkg-query "case \"$*\" in *chromium*|*faketime*) exit 1;; esac; echo install ok installed")
stand_in(apt-cache "exit 100")
stand_in(sudo "exec \"$@\"")
stand_in(apt-get "case \"$*\" in *chromium*) exit 100;; install*faketime|update*) exit 0;; esac; exit 99")
expect(0 "packages: there is no chromium-headless-shell here" STAND_IN_VERSION=4.1.0 "${SOURCE}/scripts/install-packages.sh" --tests)
file(COPY "${SOURCE}/scripts/check_format.sh" "${SOURCE}/scripts/check_tidy.sh" "${SOURCE}/scripts/any_owners_git.sh" DESTINATION "${WORK}/copy/scripts")
foreach(check format tidy)
  expect(0 "${check} check: left out: this is no git repository" --unset=CI GIT_CEILING_DIRECTORIES=${WORK} "${WORK}/copy/scripts/check_${check}.sh")
endforeach()
file(REMOVE_RECURSE "${WORK}")
