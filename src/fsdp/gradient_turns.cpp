// SPDX-License-Identifier: Apache-2.0
#include "mica/fsdp/gradient_turns.hpp"

#include <algorithm>

namespace mica::fsdp {

GradientTurns::GradientTurns(const std::string& unit_name, DeviceMesh& device_mesh, const SharedParts& parts)
    : unit_name_(unit_name), device_mesh_(device_mesh), parts_(parts) {}

int GradientTurns::num_ranges() const { return static_cast<int>(parts_.members.size()); }

void GradientTurns::begin_round(Stream& s) {
  invariant(!is_in_round_, "a round begins when the one before is over");
  is_in_round_ = true;
  const std::uint64_t begin_of_epoch = static_cast<std::uint64_t>(device_mesh_.mesh().epoch()) << 52;
  base_ = std::max(base_, begin_of_epoch) + PartTurn::kTurnsOfACall;
  parts_.publish(s, base_);
}

PartTurn GradientTurns::turn() const {
  const int n = num_ranges();
  return {.base = base_, .visit = static_cast<int>(turns_ / n), .turn = static_cast<int>(turns_ % n), .rank = parts_.rank, .num_ranks = n};
}

RowTurns::Turn GradientTurns::take(Stream& s) {
  invariant(is_in_round_ && turns_ + 1 < static_cast<std::int64_t>(PartTurn::kTurnsOfACall), "a turn of a call, in a round");
  const PartTurn mine = turn();
  device_mesh_.shard_norm_group().wait_for_turn(s, unit_name_.c_str(), parts_, mine);
  return {.range = mine.range(), .is_first = turns_ == 0};
}

void GradientTurns::pass_on(Stream& s) {
  parts_.publish(s, turn().number());
  ++turns_;
}

void GradientTurns::end(Stream& s) {
  base_ += PartTurn::kTurnsOfACall;
  turns_ = 0;
  parts_.publish(s, base_);
}

void GradientTurns::wait_until_written(ProcessGroup& group, Stream& s) {
  group.wait_for_written(s, unit_name_.c_str(), parts_, base_);
  is_in_round_ = false;
}

void GradientTurns::drop_round() {
  is_in_round_ = false;
  turns_ = 0;
}

}  // namespace mica::fsdp
