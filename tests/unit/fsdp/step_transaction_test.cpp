// SPDX-License-Identifier: Apache-2.0
// What a step changes on the host goes back to before the first step that was not made, and no further.
#include "mica/fsdp/step_transaction.hpp"

#include <gtest/gtest.h>

#include "mica/core/error.hpp"

namespace mica::fsdp {
namespace {

/// An event of which the test says what has become of it.
class GivenEvent final : public EventState {
 public:
  enum class Outcome { pending, reached, failed };
  explicit GivenEvent(Outcome outcome) : outcome_(outcome) {}
  [[nodiscard]] bool is_complete() const override { return outcome_ != Outcome::pending; }
  void wait_on_host() override {
    if (outcome_ == Outcome::failed) throw Error("did not run");
  }

 private:
  Outcome outcome_;
};

Event reached() { return Event(std::make_shared<GivenEvent>(GivenEvent::Outcome::reached)); }
Event pending() { return Event(std::make_shared<GivenEvent>(GivenEvent::Outcome::pending)); }
Event failed() { return Event(std::make_shared<GivenEvent>(GivenEvent::Outcome::failed)); }

/// Counts its changes.
class Counter final : public StepParty {
 public:
  explicit Counter(std::shared_ptr<StepTransaction> transaction) : StepParty(std::move(transaction)) {}
  void change() {
    transaction().before_change(*this);
    ++count;
  }
  int count = 0, num_forgotten = 0;

 private:
  [[nodiscard]] std::any remember() const override { return count; }
  void restore(const std::any& memo) override { count = std::any_cast<int>(memo); }
  void forget_step() override { ++num_forgotten; }
};

struct Steps {
  std::shared_ptr<StepTransaction> transaction = std::make_shared<StepTransaction>();
  Counter counter{transaction};

  void step(Event made) {
    counter.change();
    transaction->enqueued(std::move(made));
  }
  void abandon() { transaction->abandon({}); }
};

TEST(StepTransaction, StepsThatWereMadeStay) {
  Steps steps;
  steps.step(reached());
  steps.step(pending());  // reached by the time its outcome is asked for
  steps.abandon();
  EXPECT_EQ(steps.counter.count, 2);
  EXPECT_EQ(steps.counter.num_forgotten, 1);
}

TEST(StepTransaction, AllBehindTheFirstThatFailedAreTakenBack) {
  Steps steps;
  steps.step(reached());
  steps.step(pending());
  steps.step(failed());
  steps.step(failed());
  steps.counter.change();
  steps.counter.change();
  steps.abandon();
  EXPECT_EQ(steps.counter.count, 2);
}

TEST(StepTransaction, AStepThatFailedIsKeptWhenTheNextOneEnqueues) {
  Steps steps;
  steps.step(failed());
  steps.step(failed());
  steps.abandon();
  EXPECT_EQ(steps.counter.count, 0);
}

TEST(StepTransaction, OneEventThatIsReachedMakesTheStep) {
  Steps steps;
  steps.counter.change();
  steps.transaction->enqueued(reached());
  steps.transaction->enqueued(failed());
  steps.abandon();
  EXPECT_EQ(steps.counter.count, 1);
}

TEST(StepTransaction, AStepThatCameToNothingIsTheNextOne) {
  Steps steps;
  steps.counter.change();
  steps.counter.change();
  steps.transaction->enqueued(failed());
  steps.abandon();
  EXPECT_EQ(steps.counter.count, 0);
}

TEST(StepTransaction, AfterAnAbandonedStepComesAnother) {
  Steps steps;
  steps.step(failed());
  steps.abandon();
  steps.step(reached());
  steps.step(failed());
  steps.abandon();
  EXPECT_EQ(steps.counter.count, 1);
}

TEST(StepTransaction, WhoWasGivenNewValuesKeepsThem) {
  Steps steps;
  Counter other(steps.transaction);
  other.change();
  steps.step(failed());
  steps.counter.count = 70;
  steps.transaction->forget(steps.counter);
  steps.abandon();
  EXPECT_EQ(steps.counter.count, 70);
  EXPECT_EQ(other.count, 0);
}

TEST(StepTransaction, WhoIsGoneIsNotAsked) {
  Steps steps;
  {
    Counter other(steps.transaction);
    other.change();
  }
  steps.step(failed());
  steps.abandon();
  EXPECT_EQ(steps.counter.count, 0);
}

}  // namespace
}  // namespace mica::fsdp
