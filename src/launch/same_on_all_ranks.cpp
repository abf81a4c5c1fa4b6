// SPDX-License-Identifier: Apache-2.0
// Checks that all ranks got the same flags and data.
#include <algorithm>

#include <fmt/ranges.h>

#include "mica/launch/checks.hpp"

namespace mica::launch {
namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

/// The first rank whose observation differs from rank 0's; all.end() if there is none.
auto first_other(const std::vector<RankWords>& all) {
  return std::ranges::find_if(all, [&](const RankWords& each) { return each.words != all.front().words; });
}

/// The lines in `mine` that are not in `theirs`, in order.
std::string only_in(const std::vector<std::string>& mine, const std::vector<std::string>& theirs) {
  std::vector<std::string> only;
  for (const std::string& each : mine) {
    if (std::ranges::find(theirs, each) == theirs.end()) only.push_back(each);
  }
  return only.empty() ? "none of these" : fmt::format("{}", fmt::join(only, " "));
}

}  // namespace

Check same_arguments(const std::vector<std::string>& arguments) {
  std::string lines;
  for (const std::string& each : arguments) lines += each + '\n';
  const auto judge = [](const std::vector<RankWords>& all) -> std::vector<Finding> {
    const auto other = first_other(all);
    if (other == all.end()) return {};
    const std::vector<std::string> first = lines_of(all.front().words), theirs = lines_of(other->words);
    return {{Finding::Kind::error,
             fmt::format("{} was started with {}, but {} with {}: give all ranks the same config and flags, in the same order "
                         "(a wrapper script, or mpirun's form `A : B`, may give each its own)",
                         name_of(*other), only_in(theirs, first), name_of(all.front()), only_in(first, theirs))}};
  };
  return {.name = "arguments", .look = [lines] { return lines; }, .judge = judge};
}

Check same_value(std::string what, std::function<std::string()> value, std::string advice) {
  const auto judge = [what, advice](const std::vector<RankWords>& all) -> std::vector<Finding> {
    const auto other = first_other(all);
    if (other == all.end()) return {};
    return {{Finding::Kind::error, fmt::format("{} is not the same on all ranks: {} sees {}, but {} sees {}: {}", what, name_of(*other),
                                               other->words, name_of(all.front()), all.front().words, advice)}};
  };
  return {.name = what, .look = std::move(value), .judge = judge};
}

}  // namespace mica::launch
