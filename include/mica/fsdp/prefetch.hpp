// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

namespace mica::fsdp {

class Unit;

/// The order in which units ran, from which the next one is predicted.
/// Forward follows the order in which the first training forward entered units; backward goes in reverse through the
/// order in which the latest forwards left them, so that a unit comes before those inside it, the root unit first.
class ExecutionOrder {
 public:
  void begin_forward();
  void entered_forward(Unit& unit);
  void left_forward(Unit& unit);
  /// @param is_training  the forward left a Record
  void end_forward(bool is_training);
  void begin_backward();
  /// Also called for a pass that is abandoned.
  void end_backward();

  /// The unit that follows this call of `unit` in the recorded forward; null without a record or at its end.
  [[nodiscard]] Unit* next_in_forward(const Unit& unit);
  /// The unit whose backward follows this call of `unit`; null at the end.
  [[nodiscard]] Unit* next_in_backward(const Unit& unit);

 private:
  std::vector<Unit*> first_forward_;
  bool first_is_complete_ = false;
  std::size_t forward_cursor_ = 0;
  std::vector<Unit*> left_;  // since the last backward pass ended
  std::size_t backward_cursor_ = 0;
};

}  // namespace mica::fsdp
