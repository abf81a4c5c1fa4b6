// SPDX-License-Identifier: Apache-2.0
#include "mica/train/slow_path_notices.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace mica::train {

namespace {

std::string text_of(const SlowPath& path, std::ptrdiff_t more) {
  const std::string others = more > 0 ? fmt::format(", and {} more", more) : "";
  return fmt::format("{} ({}{}): {}", path.kind, path.shape, others, path.reason);
}

}  // namespace

std::string slow_path_text(const SlowPath& path) { return text_of(path, 0); }

std::vector<std::string> SlowPathNotices::new_lines(std::span<const SlowPath> paths) {
  const std::span<const SlowPath> fresh = paths.subspan(num_seen_);
  num_seen_ = paths.size();
  std::vector<std::string> lines;
  for (const SlowPath& path : fresh) {
    if (!told_.insert(path.kind).second) continue;
    const auto of_its_kind = std::ranges::count(fresh, path.kind, &SlowPath::kind);
    lines.push_back("slow path: " + text_of(path, of_its_kind - 1));
  }
  return lines;
}

}  // namespace mica::train
