# SPDX-License-Identifier: Apache-2.0
# Finds HDF5's C library. Defines MicaHDF5::hdf5; says in MicaHDF5_IS_PARALLEL whether its header wants MPI's.
# Not CMake's own FindHDF5, which needs the language C, and adds what h5cc links: curl, ssl and others that no program here calls.
include("${CMAKE_CURRENT_LIST_DIR}/MicaFindLibrary.cmake")
mica_find_library(MicaHDF5 TARGET MicaHDF5::hdf5 HEADER hdf5.h LIBRARY hdf5 SUBFOLDERS hdf5/serial hdf5/openmpi hdf5/mpich
                  VERSION_HEADER H5public.h VERSION_MACROS H5_VERS_MAJOR H5_VERS_MINOR H5_VERS_RELEASE)
set(MicaHDF5_IS_PARALLEL OFF)
set(MicaHDF5_IS_THREADSAFE OFF)
file(GLOB MicaHDF5_settings "${MicaHDF5_INCLUDE_DIR}/H5pubconf*.h")  # some have one for each word size
foreach(_header IN LISTS MicaHDF5_settings)
  file(STRINGS "${_header}" _parallel REGEX "define[ \t]+H5_HAVE_PARALLEL[ \t]+1")
  file(STRINGS "${_header}" _threadsafe REGEX "define[ \t]+H5_HAVE_THREADSAFE[ \t]+1")
  if(_parallel)
    set(MicaHDF5_IS_PARALLEL ON)
  endif()
  if(_threadsafe)
    set(MicaHDF5_IS_THREADSAFE ON)
  endif()
endforeach()
