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

# The serial flavour of HDF5 is the thread-safe one on Debian; the openmpi flavour is not.
set(HDF5_PREFER_PARALLEL OFF)
find_package(HDF5 1.10 REQUIRED COMPONENTS C)
if(HDF5_IS_PARALLEL)
  message(FATAL_ERROR "Mica needs the serial, thread-safe HDF5 (Debian: libhdf5-dev); found the parallel one only: ${HDF5_C_LIBRARIES}")
endif()
