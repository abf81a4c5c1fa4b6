// SPDX-License-Identifier: Apache-2.0
#include "mica/checkpoint/retention.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "mica/checkpoint/folder.hpp"
#include "mica/checkpoint/manifest.hpp"

namespace mica::checkpoint {
namespace {

/// Indices of the lowest losses; among equal ones the newest. Those measured on other data than the newest loss do not count.
std::vector<std::size_t> best_of(const std::vector<Keepable>& ascending, int most) {
  const auto newest = std::find_if(ascending.rbegin(), ascending.rend(), [](const Keepable& each) { return each.val_loss.has_value(); });
  std::vector<std::size_t> found;
  for (std::size_t i = ascending.size(); i-- > 0;) {
    if (ascending[i].val_loss && ascending[i].val_data == newest->val_data) found.push_back(i);
  }
  std::ranges::stable_sort(found, {}, [&](std::size_t i) { return *ascending[i].val_loss; });
  found.resize(std::min(found.size(), static_cast<std::size_t>(most)));
  return found;
}

/// A damaged one is not worth keeping.
Keepable keepable_of(const CheckpointPath& checkpoint) {
  Keepable found{.path = checkpoint.path, .step = checkpoint.step, .val_loss = {}, .diverged = true, .can_be_resumed = false};
  try {
    const Manifest manifest = read_manifest_header(checkpoint.path);
    found.val_loss = manifest.val_loss;
    found.val_data = manifest.val_data;
    found.diverged = manifest.diverged;
    found.can_be_resumed = !manifest.optimizer.empty();
  } catch (const CheckpointError&) {
  } catch (const Error&) {
    found.is_unread = true;
  }
  return found;
}

std::optional<Retention> rules_of(const std::string& checkpoint_folder) {
  try {
    return read_manifest_header(checkpoint_folder).retention;
  } catch (const Error&) {
    return std::nullopt;
  }
}

/// Adds the reason to the newest that has the property, if that one has no other.
void keep_newest(const std::vector<Keepable>& ascending, bool (*has)(const Keepable&), const char* reason,
                 std::vector<std::vector<std::string>>& reasons) {
  const auto newest = std::find_if(ascending.rbegin(), ascending.rend(), has);
  if (newest == ascending.rend()) return;
  std::vector<std::string>& of_newest = reasons[static_cast<std::size_t>(ascending.rend() - newest) - 1];
  if (of_newest.empty()) of_newest.emplace_back(reason);
}

}  // namespace

std::vector<std::vector<std::string>> reasons_to_keep(const std::vector<Keepable>& ascending, const Retention& rules) {
  std::vector<std::vector<std::string>> reasons(ascending.size());
  const std::size_t num_newest = rules.newest == 0 ? ascending.size() : static_cast<std::size_t>(rules.newest);
  for (std::size_t i = ascending.size() - std::min(ascending.size(), num_newest); i < ascending.size(); ++i) {
    reasons[i].push_back(rules.newest == 0   ? "all are kept"
                         : rules.newest == 1 ? "the newest"
                                             : fmt::format("one of the {} newest", rules.newest));
  }
  for (std::size_t i = 0; rules.every > 0 && i < ascending.size(); ++i) {
    if (ascending[i].step % rules.every == 0) reasons[i].push_back(fmt::format("a multiple of {} steps", rules.every));
  }
  for (const std::size_t i : best_of(ascending, rules.best)) {
    reasons[i].push_back(rules.best == 1
                             ? fmt::format("the lowest validation loss, {:.4f}", *ascending[i].val_loss)
                             : fmt::format("one of the {} lowest validation losses, {:.4f}", rules.best, *ascending[i].val_loss));
  }
  keep_newest(
      ascending, [](const Keepable& each) { return !each.diverged; }, "the newest that has not diverged", reasons);
  keep_newest(
      ascending, [](const Keepable& each) { return each.can_be_resumed; }, "the newest that a run can resume", reasons);
  for (std::size_t i = 0; i < ascending.size(); ++i) {
    if (ascending[i].is_unread) reasons[i].emplace_back("its manifest cannot be read");
  }
  return reasons;
}

std::vector<Keepable> list_keepable(const std::string& folder, std::int64_t last_step, bool reads_manifests) {
  std::vector<Keepable> found;
  for (const CheckpointPath& each : list_checkpoints(folder)) {
    if (each.step > last_step) continue;
    found.push_back(reads_manifests ? keepable_of(each) : Keepable{.path = each.path, .step = each.step, .val_loss = {}});
  }
  return found;
}

std::vector<Kept> kept_checkpoints(const std::string& folder) {
  const std::vector<Keepable> checkpoints = list_keepable(folder, std::numeric_limits<std::int64_t>::max(), true);
  const std::optional<Retention> rules = checkpoints.empty() ? std::nullopt : rules_of(checkpoints.back().path);
  if (!rules) return {};
  std::vector<Kept> kept;
  std::vector<std::vector<std::string>> reasons = reasons_to_keep(checkpoints, *rules);
  for (std::size_t i = 0; i < checkpoints.size(); ++i) kept.push_back({checkpoints[i].step, std::move(reasons[i])});
  return kept;
}

}  // namespace mica::checkpoint
