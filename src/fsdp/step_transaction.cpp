// SPDX-License-Identifier: Apache-2.0
#include "mica/fsdp/step_transaction.hpp"

#include <algorithm>
#include <ranges>

namespace mica::fsdp {

StepParty::StepParty(std::shared_ptr<StepTransaction> transaction) : transaction_(std::move(transaction)) {
  transaction_->parties_.push_back(this);
}

StepParty::~StepParty() {
  transaction_->forget(*this);
  std::erase(transaction_->parties_, this);
}

void StepTransaction::before_change(StepParty& party) {
  if (!is_open()) steps_.emplace_back();
  auto& memos = steps_.back().memos;
  if (std::ranges::none_of(memos, [&](const auto& memo) { return memo.first == &party; })) {
    memos.emplace_back(&party, party.remember());
  }
}

void StepTransaction::enqueued(Event made) {
  const auto is_made = [](const Step& step) {
    return std::ranges::any_of(step.enqueued, [](const Event& e) { return e.is_complete() && !e.has_failed(); });
  };
  while (steps_.size() > 1 && is_made(steps_.front())) steps_.pop_front();
  if (!steps_.empty()) steps_.back().enqueued.push_back(std::move(made));
}

void StepTransaction::forget(const StepParty& party) {
  for (Step& step : steps_) std::erase_if(step.memos, [&](const auto& memo) { return memo.first == &party; });
}

void StepTransaction::abandon(std::span<Stream* const> streams) noexcept {
  // Before the errors are cleared, while the events of work that did not run still report failure.
  const auto not_made = std::ranges::find_if(
      steps_, [](const Step& step) { return std::ranges::all_of(step.enqueued, [](const Event& e) { return e.has_failed(); }); });
  drain_and_clear_errors(streams);
  for (const Step& step : std::ranges::subrange(not_made, steps_.end()) | std::views::reverse) {
    for (const auto& [party, memo] : step.memos) party->restore(memo);
  }
  steps_.clear();
  for (StepParty* party : parties_) party->forget_step();
}

}  // namespace mica::fsdp
