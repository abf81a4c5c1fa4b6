# SPDX-License-Identifier: Apache-2.0
# Everything Mica links but CUDA's libraries; nothing is downloaded. scripts/check_packaging.py compares the names and versions
# here with docs/install.md and the recipes in packaging/.
include(MicaRequire)
include(MicaMpiFlavour)

set(compiler "${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION} (${CMAKE_CXX_COMPILER})")
if((CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 11)
   OR (CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 18))
  message(FATAL_ERROR "${compiler} does not compile Mica (clang 16 crashes in the kernels for AVX-512): g++ 11 or newer is needed. "
                      "-DCMAKE_C_COMPILER=... -DCMAKE_CXX_COMPILER=... choose another one.")
elseif(NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  message(WARNING "Mica was not tested with ${compiler}, but with g++ alone. -DCMAKE_C_COMPILER=... -DCMAKE_CXX_COMPILER=... choose another one.")
endif()
find_package(Threads REQUIRED)

find_package(OpenMP QUIET COMPONENTS CXX)
mica_require("OpenMP" FOUND "${OpenMP_CXX_FOUND}" VERSION "${OpenMP_CXX_VERSION}" AT "${CMAKE_CXX_COMPILER}"
             DEBIAN "g++" CONDA "gxx" SPACK "gcc" SET "-DCMAKE_CXX_COMPILER=... (a compiler with OpenMP)")

find_package(MPI QUIET COMPONENTS CXX)
mica_mpi_flavour(MICA_MPI_FLAVOUR ${MPI_CXX_INCLUDE_DIRS})
set(roots MPI_HOME)
if(NOT MPI_CXX_INCLUDE_DIRS AND NOT MPI_CXX_LIBRARIES)  # the compiler itself is MPI's
  set(roots "")
endif()
mica_require("MPI" FOUND "${MPI_CXX_FOUND}" VERSION "${MPI_CXX_VERSION}" LEAST 3.1 DETAIL "${MICA_MPI_FLAVOUR}" AT "${MPI_CXX_COMPILER}"
             DEBIAN "libopenmpi-dev and openmpi-bin, or libmpich-dev and mpich" CONDA "openmpi or mpich" SPACK "openmpi or mpich"
             SET "-DMPI_HOME=FOLDER, or -DMPI_CXX_COMPILER=FOLDER/bin/mpicxx" ROOTS ${roots} PARTS ${MPI_CXX_INCLUDE_DIRS} ${MPI_CXX_LIBRARIES})

# Any HDF5 serves, thread-safe or not: Mica calls it from one thread at a time. A parallel one is used as a serial one is; its
# headers need MPI's, and its library must have been built with the same MPI.
set(MicaHDF5_ROOT "${HDF5_ROOT}" $ENV{HDF5_ROOT} $ENV{HDF5_DIR})  # what users and modules set
find_package(MicaHDF5 QUIET)
set(detail "serial")
set(unfit "")
if(MicaHDF5_LIBRARY MATCHES "[.]a$")
  set(unfit "it is static, and what it needs itself is not known: a shared one is needed")
endif()
if(MicaHDF5_IS_PARALLEL)
  set(detail "parallel")
  execute_process(COMMAND "${CMAKE_READELF}" --dynamic "${MicaHDF5_LIBRARY}" OUTPUT_VARIABLE needs ERROR_QUIET)
  if((MICA_MPI_FLAVOUR MATCHES "Open MPI" AND needs MATCHES "\\[libmpi(ch)?\\.so\\.1[0-9]\\]")
     OR (MICA_MPI_FLAVOUR MATCHES "MPICH|Intel" AND needs MATCHES "\\[libmpi\\.so\\.[2-9][0-9]\\]"))
    string(REGEX MATCH "libmpi[a-z]*\\.so\\.[0-9]+" library "${needs}")
    set(unfit "it was built with another MPI (${library}) than the one above, ${MICA_MPI_FLAVOUR}")
  endif()
endif()
if(NOT MicaHDF5_IS_THREADSAFE)
  string(APPEND detail ", not thread-safe")
endif()
mica_require("HDF5" FOUND "${MicaHDF5_FOUND}" VERSION "${MicaHDF5_VERSION}" LEAST 1.10.2 DETAIL "${detail}" UNFIT "${unfit}" AT "${MicaHDF5_LIBRARY}"
             DEBIAN "libhdf5-dev" CONDA "hdf5" SPACK "hdf5" SET "-DHDF5_ROOT=FOLDER" ROOTS HDF5_ROOT PARTS "${MicaHDF5_INCLUDE_DIR}")

find_package(DNNL QUIET)
set(unfit "")
if(DNNL_CPU_RUNTIME STREQUAL "THREADPOOL")
  set(unfit "it wants a thread pool from its caller; build it with DNNL_CPU_RUNTIME=OMP")
elseif(DNNL_VERSION VERSION_GREATER_EQUAL 4)
  set(unfit "Mica knows versions 2 and 3")
endif()
string(TOLOWER "${DNNL_CPU_RUNTIME}" detail)
mica_require("oneDNN" FOUND "${DNNL_FOUND}" VERSION "${DNNL_VERSION}" LEAST 2.6 DETAIL "threads: ${detail}" UNFIT "${unfit}" AT "${DNNL_LIBRARY}"
             DEBIAN "libdnnl-dev" CONDA "onednn=*=omp_*" SPACK "onednn" SET "-DDNNL_ROOT=FOLDER" ROOTS DNNL_ROOT PARTS "${DNNL_INCLUDE_DIR}")
if(DNNL_FOUND AND NOT DNNL_CPU_RUNTIME STREQUAL "OMP")
  message(WARNING "oneDNN in ${DNNL_LIBRARY} was built for the threads of ${DNNL_CPU_RUNTIME} and not of OpenMP: products may not use the "
                  "threads that OMP_NUM_THREADS gives a rank. onednn cpu_runtime=omp (Spack) and libdnnl-dev (Debian) do.")
endif()

find_package(fmt QUIET)
mica_require("fmt" FOUND "${fmt_FOUND}" VERSION "${fmt_VERSION}" LEAST 9.0 AT "${fmt_DIR}"
             DEBIAN "libfmt-dev" CONDA "fmt" SPACK "fmt" SET "-DCMAKE_PREFIX_PATH=FOLDER")

find_package(nlohmann_json QUIET)
mica_require("nlohmann_json" FOUND "${nlohmann_json_FOUND}" VERSION "${nlohmann_json_VERSION}" LEAST 3.9 AT "${nlohmann_json_INCLUDE_DIR}"
             DEBIAN "nlohmann-json3-dev" CONDA "nlohmann_json" SPACK "nlohmann-json" SET "-DCMAKE_PREFIX_PATH=FOLDER")

find_package(Boost QUIET CONFIG OPTIONAL_COMPONENTS program_options)
set(unfit "")
if(Boost_FOUND AND NOT TARGET Boost::program_options)
  set(unfit "it has no program_options")
endif()
mica_require("Boost" FOUND "${Boost_FOUND}" VERSION "${Boost_VERSION}" LEAST 1.74 UNFIT "${unfit}" AT "${Boost_DIR}"
             DEBIAN "libboost-program-options-dev" CONDA "libboost-devel" SPACK "boost +program_options" SET "-DCMAKE_PREFIX_PATH=FOLDER")

if(MICA_WITH_SENTENCEPIECE)
  find_package(SentencePiece QUIET)
  mica_require("SentencePiece" FOUND "${SentencePiece_FOUND}" VERSION "${SentencePiece_VERSION}" AT "${SentencePiece_LIBRARY}"
               DEBIAN "libsentencepiece-dev" CONDA "libsentencepiece" SPACK "sentencepiece" SET "-DCMAKE_PREFIX_PATH=FOLDER"
               WITHOUT "-DMICA_WITH_SENTENCEPIECE=OFF (mica-tokenize then reads no .model files)")
endif()
