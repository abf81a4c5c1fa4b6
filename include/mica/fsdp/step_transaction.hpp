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

/// Parties (optimizers) count on the host what the streams have still to do; abandon() puts back what they counted for
/// steps whose work did not run. [Note: step transaction]
/// A step begins with a party's first change and ends at enqueued(). The host may be several steps ahead; the steps
/// whose work has not run yet are kept in order. Each rank decides alone which steps were made: ranks agree if all their
/// streams failed at the same collective.
class StepTransaction {
 public:
  /// `party` is about to change what it keeps. It is asked what to go back to, once a step.
  void before_change(StepParty& party);
  /// Ends the step. `made` is recorded behind work that changes masters or optimizer state. A step may have several such
  /// events, and has been made once one of them is reached.
  void enqueued(Event made);
  /// `party` was given new values: an abandon() leaves them.
  void forget(const StepParty& party);
  /// Drains the streams and clears their errors. Parties go back to before the first step that was not made.
  void abandon(std::span<Stream* const> streams) noexcept;

 private:
  friend class StepParty;
  /// Whether a step has begun that has enqueued nothing.
  [[nodiscard]] bool is_open() const { return !steps_.empty() && steps_.back().enqueued.empty(); }
  struct Step {
    std::vector<std::pair<StepParty*, std::any>> memos;
    std::vector<Event> enqueued;
  };
  std::deque<Step> steps_;  // that the streams may not have made yet
  std::vector<StepParty*> parties_;
};

/// Who keeps something on the host that a step changes. Takes part for as long as it lives.
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
  /// What a step changes of it, as it is now. Asked only of who calls before_change().
  [[nodiscard]] virtual std::any remember() const { return {}; }
  /// Goes back to what remember() gave. The streams are drained.
  virtual void restore(const std::any& /*memo*/) {}
  /// Forgets what belongs to a running step alone. Comes last in every abandon().
  virtual void forget_step() {}

  std::shared_ptr<StepTransaction> transaction_;
};

}  // namespace mica::fsdp
