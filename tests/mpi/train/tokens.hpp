// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

namespace mica::train {

/// 4000 tokens below 251, this rank's own file while it lives.
class Tokens {
 public:
  explicit Tokens(int rank) {
    const std::filesystem::path folder = std::filesystem::temp_directory_path() / "mica-tokens";
    path = (folder / fmt::format("tokens{}-{}.bin", rank, getpid())).string();
    std::filesystem::create_directories(folder);
    std::vector<std::uint16_t> ids(4000);
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::uint16_t>(i * 7 % 251);
    std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(ids.data()), static_cast<std::streamsize>(ids.size() * 2));
  }
  ~Tokens() { std::filesystem::remove(path); }
  Tokens(const Tokens&) = delete;
  Tokens& operator=(const Tokens&) = delete;
  std::string path;
};

}  // namespace mica::train
