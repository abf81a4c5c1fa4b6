// SPDX-License-Identifier: Apache-2.0
#include "mica/core/error.hpp"

#include <cstdio>
#include <cstdlib>
#include <system_error>

namespace mica {

void invariant(bool ok, std::string_view what, std::source_location where) {
  if (ok) return;
  std::fprintf(stderr, "mica: error: internal: %.*s does not hold at %s:%u. This is a defect of Mica, please report it.\n",
               static_cast<int>(what.size()), what.data(), where.file_name(), static_cast<unsigned>(where.line()));
  std::abort();
}

std::string errno_text(int error_number) { return std::generic_category().message(error_number); }

}  // namespace mica
