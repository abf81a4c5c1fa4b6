// SPDX-License-Identifier: Apache-2.0
// Step counts of an optimizer and its parameters, and how an abandoned step restores them.
#include "mica/core/error.hpp"
#include "mica/optim/optimizer.hpp"

namespace mica::optim {

Optimizer::UnitState::Counts Optimizer::UnitState::counts() const {
  Counts counts{.steps = {}, .took_part = {}, .is_allocated = is_allocated};
  for (const Member& member : members) {
    counts.steps.push_back(member.steps);
    counts.took_part.push_back(member.took_part);
  }
  return counts;
}

void Optimizer::UnitState::restore(const Counts& before) {
  for (std::size_t i = 0; i < members.size(); ++i) {
    members[i].steps = before.steps[i];
    members[i].took_part = before.took_part[i];
  }
  if (is_allocated && !before.is_allocated) state.clear();  // their zeroing did not run
  is_allocated = before.is_allocated;
}

std::any Optimizer::remember() const {
  StepCounts counts{.num_steps = num_steps_, .skipped_taken_off = skipped_taken_off_, .units = {}};
  for (const UnitState& unit : units_) counts.units.push_back(unit.counts());
  return counts;
}

void Optimizer::restore(const std::any& memo) {
  const auto& before = std::any_cast<const StepCounts&>(memo);
  num_steps_ = before.num_steps;
  skipped_taken_off_ = before.skipped_taken_off;
  for (std::size_t i = 0; i < units_.size(); ++i) units_[i].restore(before.units[i]);
}

void Optimizer::set_num_steps(std::int64_t steps) {
  num_steps_ = steps;
  skipped_taken_off_.reset();
  transaction().forget(*this);
  for (UnitState& unit : units_) {
    for (Member& member : unit.members) member.steps = steps;
  }
}

std::map<std::string, std::int64_t> Optimizer::parameter_steps() const {
  std::map<std::string, std::int64_t> found;
  for (const UnitState& unit : units_) {
    for (const Member& member : unit.members) {
      if (member.steps != num_steps_) found[member.name] = member.steps;
    }
  }
  return found;
}

void Optimizer::set_parameter_steps(const std::map<std::string, std::int64_t>& steps) {
  std::size_t num_found = 0;
  for (UnitState& unit : units_) {
    for (Member& member : unit.members) {
      const auto found = steps.find(member.name);
      if (found == steps.end()) continue;
      member.steps = found->second;
      ++num_found;
    }
  }
  for (auto each = steps.begin(); num_found < steps.size() && each != steps.end(); ++each) {
    static_cast<void>(steps_of(each->first));
  }
}

std::int64_t Optimizer::steps_of(std::string_view parameter) const {
  for (const UnitState& unit : units_) {
    for (const Member& member : unit.members) {
      if (member.name == parameter) return member.steps;
    }
  }
  throw CheckpointError(fmt::format("{} is no parameter of the optimizer", parameter));
}

void Optimizer::take_off_skipped_steps(std::int64_t skipped_so_far) {
  const std::int64_t newly = skipped_so_far - skipped_taken_off_.value_or(skipped_so_far);
  skipped_taken_off_ = skipped_so_far;
  num_steps_ -= newly;
  for (UnitState& unit : units_) {
    for (Member& member : unit.members) member.steps -= member.took_part ? newly : 0;
  }
}

}  // namespace mica::optim
