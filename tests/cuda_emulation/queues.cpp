// SPDX-License-Identifier: Apache-2.0
#include "queues.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "cuda_emulation.hpp"

namespace mica::cuda_emulation {

class Queue {
 public:
  explicit Queue(int device) : device(device) {}

  const int device;
  std::deque<Work> works;
  std::uint64_t num_enqueued = 0, num_ended = 0;
  std::uint64_t priority = 0;
  bool is_tried = false;   ///< a thread tries the first piece now
  bool is_closed = false;  ///< its stream is gone
};

namespace {

constexpr auto kDeadline = std::chrono::seconds(60);
constexpr auto kPause = std::chrono::microseconds(50);
constexpr auto kAlone = std::chrono::milliseconds(5);
constexpr unsigned kPiecesPerDraw = 64;  ///< on average, until priorities are drawn anew

class Queues {
 public:
  Queues() {
    if (const char* seed = std::getenv("MICA_CUDA_EMULATION_LATE")) {
      work_late(std::strtoull(seed, nullptr, 10));
      if (is_late_) std::thread([this] { be_the_gpu(); }).detach();  // as long as the process
    }
  }
  static Queues& all() {
    static auto& queues = *new Queues;
    return queues;
  }

  void work_late(std::uint64_t seed) {
    const std::lock_guard lock(mutex_);
    if (std::ranges::any_of(queues_, [](const auto& it) { return !it->works.empty(); })) {
      std::fprintf(stderr, "CUDA emulation: work_late() while streams are busy\n");
      std::abort();
    }
    is_late_ = seed != 0;
    random_.seed(seed);
  }

  std::shared_ptr<Queue> add(int device) {
    const std::lock_guard lock(mutex_);
    auto queue = std::make_shared<Queue>(device);
    queue->priority = random_();
    queues_.push_back(queue);
    return queue;
  }
  void close(Queue& queue) {
    const std::lock_guard lock(mutex_);
    queue.is_closed = true;
    drop_closed();
  }
  Queue& null_queue(int device) {
    {
      const std::lock_guard lock(mutex_);
      if (const auto it = null_queues_.find(device); it != null_queues_.end()) return *it->second;
    }
    auto made = add(device);
    const std::lock_guard lock(mutex_);
    return *null_queues_.try_emplace(device, std::move(made)).first->second;
  }

  void enqueue(Queue& queue, Work work) {
    ++num_touches_;
    std::unique_lock lock(mutex_);
    queue.works.push_back(std::move(work));
    const std::uint64_t number = ++queue.num_enqueued;
    if (is_late_) return;
    while (queue.num_ended < number) {
      if (queue.is_tried) {
        pause(lock);
        continue;
      }
      switch (try_first(queue, lock)) {
        case Progress::done:
          break;
        case Progress::waits:
          pause(lock);
          break;
        case Progress::hangs:
          return;
      }
    }
  }

  /// @return false: nothing could be done
  bool do_a_piece() {
    std::unique_lock lock(mutex_);
    if (random_() % kPiecesPerDraw == 0) {
      for (const auto& it : queues_) it->priority = random_();
    }
    std::vector<std::shared_ptr<Queue>> in_order;
    std::ranges::copy_if(queues_, std::back_inserter(in_order), [](const auto& it) { return !it->works.empty(); });
    std::ranges::sort(in_order, std::greater(), &Queue::priority);
    for (const auto& queue : in_order) {
      if (queue->is_tried || queue->works.empty()) continue;
      if (try_first(*queue, lock) == Progress::done) return true;
    }
    return false;
  }

  void touch() { ++num_touches_; }
  void go_on() {
    ++num_touches_;
    if (is_late_) {
      (void)do_a_piece();
    } else {
      while (do_a_piece()) {
      }
    }
  }

  bool is_empty(Queue& queue) {
    const std::lock_guard lock(mutex_);
    return queue.works.empty();
  }
  std::uint64_t num_enqueued(Queue& queue) {
    const std::lock_guard lock(mutex_);
    return queue.num_enqueued;
  }
  std::uint64_t num_ended(Queue& queue) {
    const std::lock_guard lock(mutex_);
    return queue.num_ended;
  }
  std::vector<std::shared_ptr<Queue>> of_device(int device) {
    const std::lock_guard lock(mutex_);
    std::vector<std::shared_ptr<Queue>> found;
    std::ranges::copy_if(queues_, std::back_inserter(found), [&](const auto& it) { return it->device == device; });
    return found;
  }

 private:
  Progress try_first(Queue& queue, std::unique_lock<std::mutex>& lock) {
    queue.is_tried = true;
    Work& work = queue.works.front();
    lock.unlock();
    const Progress progress = work();
    lock.lock();
    queue.is_tried = false;
    if (progress != Progress::done) return progress;
    queue.works.pop_front();
    ++queue.num_ended;
    if (queue.is_closed && queue.works.empty()) drop_closed();
    return progress;
  }
  /// Work goes on too while the host waits for something that is not CUDA's: once all threads have left it alone. Of
  /// processes that were told to work late by their environment; tests that call work_late() want nothing done unasked.
  [[noreturn]] void be_the_gpu() {
    for (;;) {
      const std::uint64_t seen = num_touches_;
      std::this_thread::sleep_for(kAlone);
      while (num_touches_ == seen && do_a_piece()) {
      }
    }
  }
  static void pause(std::unique_lock<std::mutex>& lock) {
    lock.unlock();
    std::this_thread::sleep_for(kPause);
    lock.lock();
  }
  void drop_closed() {
    std::erase_if(queues_, [](const auto& it) { return it->is_closed && it->works.empty() && !it->is_tried; });
  }

  std::mutex mutex_;
  std::atomic<bool> is_late_ = false;
  std::atomic<std::uint64_t> num_touches_ = 0;  ///< calls of the host that enqueue, ask or wait
  std::mt19937_64 random_;
  std::vector<std::shared_ptr<Queue>> queues_;
  std::map<int, std::shared_ptr<Queue>> null_queues_;
};

Queues& queues() { return Queues::all(); }

}  // namespace

void work_late(std::uint64_t seed) { queues().work_late(seed); }

std::shared_ptr<Queue> make_queue(int device) { return queues().add(device); }
void close(Queue& queue) { queues().close(queue); }
Queue& null_queue(int device) { return queues().null_queue(device); }
void enqueue(Queue& queue, Work work) { queues().enqueue(queue, std::move(work)); }
void go_on() { queues().go_on(); }
bool is_empty(Queue& queue) { return queues().is_empty(queue); }

void work_until(const std::function<bool()>& is_over, const char* what) {
  const auto begin = std::chrono::steady_clock::now();
  while (!is_over()) {
    queues().touch();
    if (queues().do_a_piece()) continue;
    if (std::chrono::steady_clock::now() - begin > kDeadline) {
      std::fprintf(stderr, "CUDA emulation: %s waited 60 s for work that never ends\n", what);
      std::abort();
    }
    std::this_thread::sleep_for(kPause);
  }
}

void finish(Queue& queue, const char* what) {
  const std::uint64_t number = queues().num_enqueued(queue);
  work_until([&] { return queues().num_ended(queue) >= number; }, what);
}

void finish_device(int device, const char* what) {
  for (const auto& queue : queues().of_device(device)) finish(*queue, what);
}

}  // namespace mica::cuda_emulation
