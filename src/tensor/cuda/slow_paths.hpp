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

// [Note: slow paths] Where a library has nothing for some arguments, or a kernel cannot read 16 bytes at a time,
// results are right and come slowly, without an error that would tell. So each such thing is noted, once for each
// shape, and who runs the kernels tells the user (mica::slow_paths). Not noted is what an option asks for, since
// description() says it, and what is so small that its launch takes longer than its work, whichever way it is done.
namespace mica::cuda {

/// Multiply-adds of a product or an attention, and elements of anything else, from which on a slow path is noted.
inline constexpr std::int64_t kFewestMultiplyAdds = std::int64_t{1} << 24;
inline constexpr std::int64_t kFewestElements = std::int64_t{1} << 20;

class SlowPaths {
 public:
  /// @param kind      a literal, as SlowPath::kind
  /// @param key       what tells this one from others of its kind
  /// @param describe  makes {shape, reason}; called for the first of its kind and key alone
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
