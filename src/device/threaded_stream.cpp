// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <csignal>
#include <exception>
#include <limits>
#include <mutex>
#include <thread>
#include <vector>

#include <pthread.h>

#include "mica/device/waited_events.hpp"

#include "cpu_streams.hpp"

namespace mica::detail {
namespace {

constexpr std::uint64_t kNobodyWaits = std::numeric_limits<std::uint64_t>::max();

/// A task, or a wait for another stream's event (then `task` is empty).
struct Item {
  Stream::Task task;
  std::shared_ptr<EventState> awaited;
};

/// What the host, the worker and events share. Sequence numbers count items from 1 in enqueue order.
struct Queue {
  std::mutex mutex;
  std::condition_variable work;  // the worker sleeps here while idle
  std::condition_variable done;  // threads that wait for an event sleep here
  std::vector<Item> items;
  bool worker_sleeps = false;
  bool stop = false;

  std::atomic<std::uint64_t> completed{0};
  /// The lowest awaited number: the worker takes the lock and notifies only when it gets there, so that a host waiting
  /// for the last of 200 tasks is not woken 200 times.
  std::atomic<std::uint64_t> wake_at{kNobodyWaits};

  std::atomic<bool> failed{false};
  std::exception_ptr error;     // under mutex
  std::uint64_t failed_at = 0;  // under mutex: the number of the item that failed

  void wait_for(std::uint64_t number) {
    if (completed.load(std::memory_order_acquire) >= number) return;
    std::unique_lock lock(mutex);
    for (;;) {
      // The worker stores completed and then loads wake_at; here the order is reversed, so at least one sees the other's store.
      wake_at.store(std::min(wake_at.load(), number));
      if (completed.load() >= number) return;
      done.wait(lock);
    }
  }

  void complete(std::uint64_t number) {
    completed.store(number);
    if (wake_at.load() > number) return;
    {
      const std::lock_guard lock(mutex);
      wake_at.store(kNobodyWaits);  // threads that still wait register again
    }
    done.notify_all();
  }

  void rethrow_error_up_to(std::uint64_t number) {
    if (!failed.load(std::memory_order_acquire)) return;
    std::exception_ptr seen;
    {
      const std::lock_guard lock(mutex);
      if (failed_at <= number) seen = error;
    }
    if (seen) std::rethrow_exception(seen);
  }
};

class ThreadedEvent final : public EventState {
 public:
  ThreadedEvent(std::shared_ptr<Queue> queue, std::uint64_t number) : queue_(std::move(queue)), number_(number) {}
  [[nodiscard]] bool is_complete() const override { return queue_->completed.load(std::memory_order_acquire) >= number_; }
  void wait_on_host() override {
    queue_->wait_for(number_);
    queue_->rethrow_error_up_to(number_);
  }
  [[nodiscard]] const void* origin() const override { return queue_.get(); }
  [[nodiscard]] std::uint64_t sequence() const override { return number_; }

 private:
  std::shared_ptr<Queue> queue_;
  std::uint64_t number_;
};

/// Asynchronous signals are for the host thread: workers start with them blocked.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t blocked;
    sigemptyset(&blocked);
    for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGALRM, SIGCHLD}) sigaddset(&blocked, signal);
    pthread_sigmask(SIG_BLOCK, &blocked, &before_);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_{};
};

void run_item(Queue& queue, Item& item, std::uint64_t number) {
  try {
    // A failed stream still waits: tasks after drain_and_clear_error() rely on the order.
    if (item.awaited) {
      item.awaited->wait_on_host();
    } else if (!queue.failed.load(std::memory_order_relaxed)) {
      item.task();
    }
  } catch (...) {
    const std::lock_guard lock(queue.mutex);
    if (!queue.error) {
      queue.error = std::current_exception();
      queue.failed_at = number;
      queue.failed.store(true, std::memory_order_release);
    }
  }
  item = Item{};  // destroys the task's captures before it counts as complete
}

void work_loop(Queue& queue) {
  std::vector<Item> batch;
  std::uint64_t number = 0;
  for (;;) {
    {
      std::unique_lock lock(queue.mutex);
      while (queue.items.empty() && !queue.stop) {
        queue.worker_sleeps = true;
        queue.work.wait(lock);
        queue.worker_sleeps = false;
      }
      if (queue.items.empty()) return;
      batch.swap(queue.items);
    }
    for (Item& item : batch) {
      run_item(queue, item, ++number);
      queue.complete(number);
    }
    batch.clear();
  }
}

class ThreadedStream final : public Stream {
 public:
  explicit ThreadedStream(std::string name) : name_(std::move(name)), queue_(std::make_shared<Queue>()) {
    const BlockedSignals blocked;
    worker_ = std::thread([queue = queue_] { work_loop(*queue); });
    pthread_setname_np(worker_.native_handle(), name_.substr(0, 15).c_str());  // 15: the kernel's limit
  }
  ~ThreadedStream() override {
    {
      const std::lock_guard lock(queue_->mutex);
      queue_->stop = true;
    }
    queue_->work.notify_one();
    worker_.join();
  }
  ThreadedStream(const ThreadedStream&) = delete;
  ThreadedStream& operator=(const ThreadedStream&) = delete;

  [[nodiscard]] DeviceKind device() const override { return DeviceKind::cpu; }
  [[nodiscard]] const std::string& name() const override { return name_; }

  void submit(const char* /*what*/, std::span<const Access> /*accesses*/, Task task) override { enqueue({std::move(task), nullptr}); }

  [[nodiscard]] Event record() override {
    if (num_enqueued_ == 0) return {};
    if (!last_recorded_.state() || last_recorded_.state()->sequence() != num_enqueued_) {
      last_recorded_ = Event(std::make_shared<ThreadedEvent>(queue_, num_enqueued_));
    }
    return last_recorded_;
  }

  void wait(const Event& event, std::source_location /*site*/) override {
    if (event.state() && !waited_.is_known(event, queue_.get())) enqueue({{}, event.state()});
  }

  void synchronize() override {
    queue_->wait_for(num_enqueued_);
    queue_->rethrow_error_up_to(num_enqueued_);
  }

  void drain_and_clear_error() noexcept override {
    queue_->wait_for(num_enqueued_);
    const std::lock_guard lock(queue_->mutex);
    queue_->error = nullptr;
    queue_->failed.store(false, std::memory_order_release);
  }

 private:
  void enqueue(Item item) {
    ++num_enqueued_;
    bool wake = false;
    {
      const std::lock_guard lock(queue_->mutex);
      queue_->items.push_back(std::move(item));
      wake = queue_->worker_sleeps;
    }
    if (wake) queue_->work.notify_one();
  }

  std::string name_;
  std::shared_ptr<Queue> queue_;
  std::uint64_t num_enqueued_ = 0;
  Event last_recorded_;
  WaitedEvents waited_;
  std::thread worker_;
};

}  // namespace

std::unique_ptr<Stream> make_threaded_stream(std::string name) { return std::make_unique<ThreadedStream>(std::move(name)); }

}  // namespace mica::detail
