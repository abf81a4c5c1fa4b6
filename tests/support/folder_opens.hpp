// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <string>

#include <sys/inotify.h>
#include <unistd.h>

#include "mica/core/error.hpp"
#include "mica/core/unique_fd.hpp"

namespace mica::test {

/// Counts how often a folder is opened, by anybody.
class FolderOpens {
 public:
  explicit FolderOpens(const std::string& folder) : watch_(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC)) {
    require(watch_ && ::inotify_add_watch(watch_.get(), folder.c_str(), IN_OPEN | IN_ONLYDIR) >= 0, "{} cannot be watched", folder);
  }
  /// Since it was asked last. The kernel reports only one of equal events in a row that nobody has read.
  [[nodiscard]] int count() const {
    alignas(inotify_event) std::array<char, 4096> events{};
    int count = 0;
    for (ssize_t bytes = 0; (bytes = ::read(watch_.get(), events.data(), events.size())) > 0;) {
      for (std::size_t at = 0; at < static_cast<std::size_t>(bytes);) {
        const auto* const event = reinterpret_cast<const inotify_event*>(&events[at]);
        count += event->len == 0 ? 1 : 0;  // else a file in it was opened
        at += sizeof(inotify_event) + event->len;
      }
    }
    return count;
  }

 private:
  UniqueFd watch_;
};

}  // namespace mica::test
