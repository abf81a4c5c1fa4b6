// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <any>
#include <deque>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "mica/device/event.hpp"
#include "mica/device/stream.hpp"

namespace mica::fsdp {

class StepParty;

/// Parties (optimizers) count on the host ahead of the streams; abandon() undoes what they counted for steps whose work did not
/// run. [Note: step transaction]
/// A step begins with a party's first change and ends at enqueued(). The host may be several steps ahead; the steps
/// whose work has not run yet are kept in order. Each rank decides on its own which steps count: ranks agree if all their
/// streams failed at the same collective.
class StepTransaction {
 public:
  /// `party` is about to change its host state. Calls remember() once per step.
  void before_change(StepParty& party);
  /// Ends the step. `made` is recorded after work that changes masters or optimizer state. A step may have several such
  /// events, and counts as made once one of them is reached.
  void enqueued(Event made);
  /// `party` was given new values, which an abandon() keeps.
  void forget(const StepParty& party);
  /// Drains the streams and clears their errors. Parties are restored to before the first step that was not made.
  void abandon(std::span<Stream* const> streams) noexcept;

 private:
  friend class StepParty;
  /// Whether a step has begun that has not enqueued anything.
  [[nodiscard]] bool is_open() const { return !steps_.empty() && steps_.back().enqueued.empty(); }
  struct Step {
    std::vector<std::pair<StepParty*, std::any>> memos;
    std::vector<Event> enqueued;
  };
  std::deque<Step> steps_;  // whose work may not have run yet
  std::vector<StepParty*> parties_;
};

/// An object with host state that a step changes. It is registered with the transaction during its lifetime.
class StepParty {
 public:
  StepParty(const StepParty&) = delete;
  StepParty& operator=(const StepParty&) = delete;

 protected:
  explicit StepParty(std::shared_ptr<StepTransaction> transaction);
  virtual ~StepParty();
  [[nodiscard]] StepTransaction& transaction() const { return *transaction_; }

 private:
  friend class StepTransaction;
  /// Returns the state that a step changes. Called only for parties that call before_change().
  [[nodiscard]] virtual std::any remember() const { return {}; }
  /// Restores what remember() returned. The streams are drained.
  virtual void restore(const std::any& /*memo*/) {}
  /// Drops the state of a running step. Called last in every abandon().
  virtual void forget_step() {}

  std::shared_ptr<StepTransaction> transaction_;
};

}  // namespace mica::fsdp
