// SPDX-License-Identifier: Apache-2.0
#include "mica/core/error.hpp"
#include "mica/mpi/communicator.hpp"

namespace mica::mpi {

void check(int rc, const char* call, std::source_location where) {
  if (rc == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  if (MPI_Error_string(rc, text, &length) != MPI_SUCCESS) length = 0;
  const std::string_view seen = length > 0 ? std::string_view(text, static_cast<std::size_t>(length)) : "unknown error";
  throw MpiError(fmt::format("{} failed: {} (error {}, {}:{})", call, seen, rc, where.file_name(), where.line()));
}

}  // namespace mica::mpi
