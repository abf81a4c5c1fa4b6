// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "mica/tensor/cuda_kernels.hpp"
#include "mica/tensor/philox.hpp"

// [Note: slow paths] If a library has no kernel for some arguments, or a kernel cannot read 16 bytes at a time, results are correct but
// slow, and there is no error. So each such case is noted, once per shape, and the program reports it to the user (mica::slow_paths).
// Not noted are slow paths that an option requests, since description() names those, and cases so small that a launch takes longer than
// the work.
namespace mica::cuda {

/// A slow path is noted from this many multiply-adds (product, attention) or elements (other kernels) on.
inline constexpr std::int64_t kFewestMultiplyAdds = std::int64_t{1} << 24;
inline constexpr std::int64_t kFewestElements = std::int64_t{1} << 20;

class SlowPaths {
 public:
  /// @param kind      a literal, as SlowPath::kind
  /// @param key       distinguishes cases of one kind
  /// @param describe  returns {shape, reason}; called only for the first of its kind and key
  template <class Describe>
  void note(std::string_view kind, std::initializer_list<std::int64_t> key, const Describe& describe) {
    std::uint64_t hash = std::hash<std::string_view>{}(kind);
    for (const std::int64_t number : key) hash = mix64(hash ^ static_cast<std::uint64_t>(number));
    if (!seen_.insert(hash).second) return;
    auto [shape, reason] = describe();
    list_.push_back({std::string(kind), std::move(shape), std::move(reason)});
  }
  /// A kernel over elements of `shape` that reads and writes them one by one.
  void note_one_by_one(const char* what, const Shape& shape, DType dtype);

  [[nodiscard]] const std::vector<SlowPath>& list() const { return list_; }

 private:
  std::unordered_set<std::uint64_t> seen_;
  std::vector<SlowPath> list_;
};

}  // namespace mica::cuda
