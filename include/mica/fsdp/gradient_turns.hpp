// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "mica/comm/shared_parts.hpp"
#include "mica/fsdp/device_mesh.hpp"
#include "mica/tensor/row_turns.hpp"

namespace mica::fsdp {

/// The turns in which the ranks of a shard group write one unit's gradient, which they share. [Note: shared gradients]
/// A round is a backward, or several without reduction: begin_round(), calls of kernels that write in turns, wait_until_written(). From
/// then until the next round a rank's part is its own. The first turn of a round waits until all ranks have begun it, and so have no
/// more use for their parts.
/// All ranks call the same functions in the same order. After an abandoned step each epoch of the mesh starts from a higher number than all
/// earlier ones, since ranks may have come differently far.
class GradientTurns final : public RowTurns {
 public:
  /// @param unit_name  for labels; outlives this object, as `parts` does
  GradientTurns(const std::string& unit_name, DeviceMesh& device_mesh, const SharedParts& parts);

  [[nodiscard]] bool is_in_round() const { return is_in_round_; }
  /// On `s` behind the last use of this rank's part, and in front of the round's first turn.
  void begin_round(Stream& s);
  [[nodiscard]] int num_ranges() const override;
  Turn take(Stream& s) override;
  void pass_on(Stream& s) override;
  void end(Stream& s) override;
  /// Ends the round: `s` continues when all ranks have written what they write in it.
  void wait_until_written(ProcessGroup& group, Stream& s);
  /// Ends the round without a wait: what was written is not used.
  void drop_round();

 private:
  [[nodiscard]] PartTurn turn() const;

  const std::string& unit_name_;
  DeviceMesh& device_mesh_;
  const SharedParts& parts_;
  std::uint64_t base_ = 0;  // the end of the last call, or the beginning of the round
  std::int64_t turns_ = 0;  // taken in this call
  bool is_in_round_ = false;
};

}  // namespace mica::fsdp
