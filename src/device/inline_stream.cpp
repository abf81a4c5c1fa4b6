// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <exception>

#include "cpu_streams.hpp"

namespace mica::detail {
namespace {

/// One failure of an inline stream, shared by the events recorded between the failure and its clearing.
struct Failure {
  std::exception_ptr error;
  std::atomic<bool> cleared{false};
};

class FailedEvent final : public EventState {
 public:
  explicit FailedEvent(std::shared_ptr<Failure> failure) : failure_(std::move(failure)) {}
  [[nodiscard]] bool is_complete() const override { return true; }
  void wait_on_host() override {
    if (!failure_->cleared.load(std::memory_order_acquire)) std::rethrow_exception(failure_->error);
  }

 private:
  std::shared_ptr<Failure> failure_;
};

/// Runs tasks inside submit(). All enqueued work has run, so an event of a stream that has not failed is the null event.
class InlineStream final : public Stream {
 public:
  explicit InlineStream(std::string name) : name_(std::move(name)) {}

  [[nodiscard]] DeviceKind device() const override { return DeviceKind::cpu; }
  [[nodiscard]] const std::string& name() const override { return name_; }

  void submit(const char* /*what*/, std::span<const Access> /*accesses*/, Task task) override {
    if (failure_) return;
    try {
      task();
    } catch (...) {
      fail();
    }
  }

  [[nodiscard]] Event record() override { return failure_ ? Event(std::make_shared<FailedEvent>(failure_)) : Event(); }

  void wait(const Event& event, std::source_location /*site*/) override {
    if (!event.state()) return;
    try {
      event.wait_on_host();
    } catch (...) {
      if (!failure_) fail();
    }
  }

  void synchronize() override {
    if (failure_) std::rethrow_exception(failure_->error);
  }

  void drain_and_clear_error() noexcept override {
    if (failure_) failure_->cleared.store(true, std::memory_order_release);
    failure_.reset();
  }

 private:
  /// Called in a catch block.
  void fail() {
    failure_ = std::make_shared<Failure>();
    failure_->error = std::current_exception();
  }

  std::string name_;
  std::shared_ptr<Failure> failure_;
};

}  // namespace

std::unique_ptr<Stream> make_inline_stream(std::string name) { return std::make_unique<InlineStream>(std::move(name)); }

}  // namespace mica::detail
