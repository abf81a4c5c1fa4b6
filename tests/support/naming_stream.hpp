// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "mica/device/forwarding_stream.hpp"

namespace mica::testing {

/// Writes down what is enqueued.
class NamingStream final : public ForwardingStream {
 public:
  using ForwardingStream::ForwardingStream;
  using ForwardingStream::submit;
  void submit(const char* what, std::span<const Access> accesses, Task task) override {
    names.emplace_back(what);
    ForwardingStream::submit(what, accesses, std::move(task));
  }
  [[nodiscard]] std::int64_t count(std::string_view name) const { return std::ranges::count(names, name); }
  std::vector<std::string> names;
};

}  // namespace mica::testing
