// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mica/comm/host_comm.hpp"

namespace mica::test {

/// Counts what this rank hears from the others.
class CountingComm final : public HostComm {
 public:
  explicit CountingComm(const HostComm& comm) : comm_(comm) {}
  [[nodiscard]] int rank() const override { return comm_.rank(); }
  [[nodiscard]] int num_ranks() const override { return comm_.num_ranks(); }
  [[nodiscard]] std::vector<std::string> gather_strings(const std::string& mine) const override {
    std::vector<std::string> all = comm_.gather_strings(mine);
    for (const std::string& one : all) bytes_ += std::ssize(one);
    return all;
  }
  [[nodiscard]] std::string broadcast_string(const std::string& mine, int root) const override {
    std::string text = comm_.broadcast_string(mine, root);
    bytes_ += std::ssize(text);
    return text;
  }
  [[nodiscard]] std::vector<std::string> exchange_strings(const std::vector<std::string>& to_each) const override {
    std::vector<std::string> from_each = comm_.exchange_strings(to_each);
    for (const std::string& one : from_each) bytes_ += std::ssize(one);
    return from_each;
  }
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }

 private:
  const HostComm& comm_;
  mutable std::int64_t bytes_ = 0;
};

}  // namespace mica::test
