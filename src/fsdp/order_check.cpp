// SPDX-License-Identifier: Apache-2.0
#include "mica/fsdp/order_check.hpp"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "mica/comm/host_comm.hpp"
#include "mica/fsdp/unit.hpp"
#include "mica/tensor/philox.hpp"

namespace mica::fsdp {
namespace {

std::string parameters_of(const Unit& unit) {
  std::vector<std::string> names;
  if (unit.storage()) {
    for (const UnitParameter& p : unit.storage()->parameters()) names.push_back(p.full_name);
  }
  return fmt::format("unit {} (parameters {})", unit.name(), fmt::join(names, ", "));
}

std::string names_of(const std::vector<Unit*>& units) {
  std::vector<std::string> names;
  for (const Unit* unit : units) names.push_back(unit->name());
  return names.empty() ? "none" : fmt::format("{}", fmt::join(names, " "));
}

std::string_view forward_prefetch_text(const Options& options) { return options.forward_prefetch ? "the next one" : "none"; }

std::string_view backward_prefetch_text(const Options& options) {
  switch (options.backward_prefetch) {
    case BackwardPrefetch::none:
      return "none";
    case BackwardPrefetch::pre:
      return "the next one, before";
    case BackwardPrefetch::post:
      return "the next one, behind";
  }
  return "?";
}

}  // namespace

OrderCheck::OrderCheck(DeviceMesh& device_mesh, const std::vector<Unit*>& units, bool use_orig_params)
    : device_mesh_(device_mesh), units_(units), is_needed_(device_mesh.geometry().world_size > 1), use_orig_params_(use_orig_params) {}

void OrderCheck::begin_forward() {
  // A step may have several forwards; the next step begins only after its backward.
  if (first_.is_running && first_.num_parameters.empty()) {
    for (const Unit* unit : units_) {
      first_.num_parameters.push_back(unit->storage() ? static_cast<std::int64_t>(unit->storage()->parameters().size()) : 0);
    }
  }
}

void OrderCheck::unshard(const Unit& unit) {
  if (is_needed_ && first_.is_running && unit.storage()) compare(Point::unshard, &unit);
}

void OrderCheck::forward(const Unit& unit) {
  if (!is_needed_ || !unit.storage()) return;
  if (first_.is_running) {
    compare(Point::forward, &unit);
    first_.order.push_back(unit.index());
    return;
  }
  if (deviation_ != Deviation::over) warn_of_deviation(unit);
  order_.push_back(unit.index());
}

// Called before the unit is gathered: a rank that skipped another unit's backward would hang in that all-gather.
void OrderCheck::backward(const Unit& unit) {
  if (is_needed_ && first_.is_running && unit.storage()) compare(Point::backward, &unit);
}

void OrderCheck::reduction(const Unit& unit) {
  if (!is_needed_ || first_.has_reduced) return;
  compare(Point::reduction, &unit);
  if (use_orig_params_) compare_gradients(unit);
}

void OrderCheck::end_backward(bool reduces) {
  if (is_needed_ && (first_.is_running || (!first_.has_reduced && reduces))) compare(Point::end_of_backward, nullptr);
  first_.is_running = false;
  first_.has_reduced = first_.has_reduced || reduces;
  order_.clear();
  if (deviation_ == Deviation::in_this_step) deviation_ = Deviation::over;
}

void OrderCheck::forget_step() {
  order_.clear();
  if (deviation_ == Deviation::in_this_step) deviation_ = Deviation::none_yet;
}

std::string OrderCheck::gathers_of(Point point, const Unit& unit) const {
  if (point != Point::forward && point != Point::backward) return "";
  std::vector<Unit*> unsharded;
  std::ranges::copy_if(units_, std::back_inserter(unsharded),
                       [](const Unit* each) { return each->storage() && each->storage()->is_unsharded(); });
  const bool is_forward = point == Point::forward;
  const std::vector<Unit*>& list = is_forward ? unit.forward_prefetch_list() : unit.backward_prefetch_list();
  const std::string_view by_order = is_forward ? forward_prefetch_text(unit.options()) : backward_prefetch_text(unit.options());
  return fmt::format("has unsharded: {}; prefetches: {}; strategy {}", names_of(unsharded), list.empty() ? by_order : names_of(list),
                     strategy_name(unit.options().strategy));
}

int OrderCheck::world_rank_of(std::ptrdiff_t mesh_rank) const { return device_mesh_.mesh().world_rank_of(static_cast<int>(mesh_rank)); }

void OrderCheck::compare(Point point, const Unit* unit) {
  const std::int64_t index = unit ? static_cast<std::int64_t>(unit->index()) : -1;
  const std::string gathers = unit ? gathers_of(point, *unit) : "";
  ProcessGroup& group = device_mesh_.agreement_group();
  const std::vector<std::vector<std::int64_t>> of_ranks = gather_numbers(
      group, device_mesh_.compute(), "agreement", {static_cast<std::int64_t>(point), index, static_cast<std::int64_t>(hash_name(gathers))});
  const auto other = std::ranges::find_if(of_ranks, [&](const auto& numbers) { return numbers != of_ranks[0]; });
  if (other == of_ranks.end()) return;
  if ((*other)[0] == of_ranks[0][0] && (*other)[1] == of_ranks[0][1]) {
    const std::vector<std::string> texts = make_group_comm(group, device_mesh_.compute())->gather_strings(gathers);
    const auto rank = other - of_ranks.begin();
    throw Error(
        fmt::format("ranks gather different units, so they would take each other's blocks: before the {} of {} rank {} {}, rank {} "
                    "{}. Give "
                    "every rank the same options and prefetch lists, and unshard and reshard the same units by hand on all of them",
                    point == Point::forward ? "forward" : "backward", parameters_of(*unit), world_rank_of(0), texts[0], world_rank_of(rank),
                    texts[static_cast<std::size_t>(rank)]));
  }
  const auto describe = [&](const std::vector<std::int64_t>& numbers) -> std::string {
    const auto what = static_cast<Point>(numbers[0]);
    if (what == Point::end_of_backward) return "has ended its backward";
    return fmt::format("is about to {} {}",
                       what == Point::unshard    ? "unshard by hand"
                       : what == Point::forward  ? "run the forward of"
                       : what == Point::backward ? "run the backward of"
                                                 : "reduce the gradients of",
                       parameters_of(*units_.at(static_cast<std::size_t>(numbers[1]))));
  };
  throw Error(
      fmt::format("ranks use their units in different orders, so their collectives would not match: rank {} {}, rank {} {}. "
                  "Every rank must run the same units in the same order in the first step, and give each a gradient",
                  world_rank_of(0), describe(of_ranks[0]), world_rank_of(other - of_ranks.begin()), describe(*other)));
}

void OrderCheck::compare_gradients(const Unit& unit) {
  const std::vector<UnitParameter>& parameters = unit.storage()->parameters();
  std::vector<std::int64_t> written;
  for (const UnitParameter& p : parameters) written.push_back(p.parameter->grad_written ? 1 : 0);
  const std::vector<std::vector<std::int64_t>> of_ranks =
      gather_numbers(device_mesh_.agreement_group(), device_mesh_.compute(), "agreement", written);
  for (std::size_t r = 1; r < of_ranks.size(); ++r) {
    const auto [first, other] = std::ranges::mismatch(of_ranks[0], of_ranks[r]);
    if (first == of_ranks[0].end()) continue;
    throw Error(fmt::format(
        "parameter {} of unit {} has {} gradient on rank {} and {} on rank {}, and in original-parameter "
        "mode ranks must agree: an absent gradient leaves a rank's piece as it is while the others step theirs. "
        "Use the parameter on every rank, or on none, or set fsdp.use_orig_params=false, which takes an absent gradient as zero "
        "(but for large tables with mesh.backend=shared)",
        parameters[static_cast<std::size_t>(first - of_ranks[0].begin())].full_name, unit.name(), *first != 0 ? "a" : "no",
        world_rank_of(0), *other != 0 ? "one" : "none", world_rank_of(static_cast<std::ptrdiff_t>(r))));
  }
}

void OrderCheck::warn_of_deviation(const Unit& unit) {
  const std::size_t at = order_.size();
  std::string what;
  if (at >= first_.order.size()) {
    what = fmt::format("unit {} runs after the last unit of the first step", unit.name());
  } else if (first_.order[at] != unit.index()) {
    what = fmt::format("unit {} runs where step one ran unit {}", unit.name(), units_[first_.order[at]]->name());
  } else if (static_cast<std::int64_t>(unit.storage()->parameters().size()) != first_.num_parameters[unit.index()]) {
    what = fmt::format("unit {} has {} parameters, in step one it had {}", unit.name(), unit.storage()->parameters().size(),
                       first_.num_parameters[unit.index()]);
  }
  if (what.empty()) return;
  deviation_ = Deviation::in_this_step;
  const auto names = [&](const std::vector<std::size_t>& order) {
    std::vector<std::string> found;
    for (const std::size_t i : order) found.push_back(units_[i]->name());
    return fmt::format("{}", fmt::join(found, " "));
  };
  device_mesh_.logger().warn("rank {}: {}; prefetch follows step one's order: {}; so far this step: {}",
                             world_rank_of(device_mesh_.mesh().rank()), what, names(first_.order), names(order_));
}

}  // namespace mica::fsdp
