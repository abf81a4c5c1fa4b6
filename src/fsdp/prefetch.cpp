// SPDX-License-Identifier: Apache-2.0
#include "mica/fsdp/prefetch.hpp"

namespace mica::fsdp {

void ExecutionOrder::begin_forward() { forward_cursor_ = 0; }

void ExecutionOrder::entered_forward(Unit& unit) {
  if (!first_is_complete_) first_forward_.push_back(&unit);
}

void ExecutionOrder::left_forward(Unit& unit) { left_.push_back(&unit); }

void ExecutionOrder::end_forward(bool is_training) { first_is_complete_ = first_is_complete_ || is_training; }

void ExecutionOrder::begin_backward() { backward_cursor_ = left_.size(); }

void ExecutionOrder::end_backward() {
  left_.clear();
  backward_cursor_ = 0;
}

Unit* ExecutionOrder::next_in_forward(const Unit& unit) {
  if (!first_is_complete_) return nullptr;
  while (forward_cursor_ < first_forward_.size() && first_forward_[forward_cursor_] != &unit) ++forward_cursor_;
  if (forward_cursor_ < first_forward_.size()) ++forward_cursor_;
  return forward_cursor_ < first_forward_.size() ? first_forward_[forward_cursor_] : nullptr;
}

Unit* ExecutionOrder::next_in_backward(const Unit& unit) {
  std::size_t at = backward_cursor_;
  while (at > 0 && left_[at - 1] != &unit) --at;
  if (at == 0) return nullptr;
  backward_cursor_ = at - 1;
  return backward_cursor_ > 0 ? left_[backward_cursor_ - 1] : nullptr;
}

}  // namespace mica::fsdp
