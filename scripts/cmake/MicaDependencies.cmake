# SPDX-License-Identifier: Apache-2.0
# Everything Mica links against; nothing is downloaded here. The package names are Debian's (see scripts/quickstart.sh).
find_package(Threads REQUIRED)
find_package(MPI REQUIRED COMPONENTS CXX)
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(Boost 1.74 REQUIRED COMPONENTS program_options)
find_package(DNNL REQUIRED)
find_package(SentencePiece)  # optional: mica-tokenize says what is missing without it

# Any HDF5 serves, thread-safe or not: Mica calls it from one thread at a time and writes files of one rank each. A
# parallel build's headers need MPI's.
set(HDF5_PREFER_PARALLEL OFF)
find_package(HDF5 1.10 REQUIRED COMPONENTS C)
if(HDF5_IS_PARALLEL)
  set_property(TARGET hdf5::hdf5 APPEND PROPERTY INTERFACE_LINK_LIBRARIES MPI::MPI_CXX)
endif()
