// SPDX-License-Identifier: Apache-2.0
#include "mica/core/host.hpp"

#include <array>
#include <fstream>

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

}  // namespace mica
