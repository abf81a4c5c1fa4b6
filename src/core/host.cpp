// SPDX-License-Identifier: Apache-2.0
#include "mica/core/host.hpp"

#include <algorithm>
#include <array>
#include <fstream>
#include <limits>

#include <sys/resource.h>
#include <unistd.h>

namespace mica {

std::string host_name() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

std::string boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

std::int64_t max_file_bytes() {
  constexpr auto kAny = std::numeric_limits<std::int64_t>::max();
  rlimit limit{};
  const bool is_known = ::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  return is_known ? static_cast<std::int64_t>(std::min<rlim_t>(limit.rlim_cur, kAny)) : kAny;
}

}  // namespace mica
