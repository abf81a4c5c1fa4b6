// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>
#include <filesystem>
#include <string>

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "support/temporary_folder.hpp"

namespace mica::test {

/// Puts in a file's place one that is there and cannot be opened ("No such device or address", also for the superuser), as on a file
/// system that fails.
inline void make_unreadable(const std::string& path) {
  const TemporaryFolder folder;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string bound = folder / "s";  // the address is short, a test's path need not be
  ASSERT_LT(bound.size(), sizeof address.sun_path);
  std::memcpy(address.sun_path, bound.c_str(), bound.size() + 1);
  const int listener = ::socket(AF_UNIX, SOCK_STREAM, 0);
  ASSERT_EQ(::bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  ::close(listener);
  std::filesystem::rename(bound, path);
}

}  // namespace mica::test
