// SPDX-License-Identifier: Apache-2.0
#include "nccl_watch.hpp"

#include <algorithm>
#include <vector>

#include "mica/core/error.hpp"
#include "mica/device/cuda/check.hpp"

namespace mica::nccl {
namespace {

using Clock = std::chrono::steady_clock;

/// Errors are noticed soon, and the load on the core is negligible.
constexpr auto kPollEvery = std::chrono::milliseconds(5);

}  // namespace

Watch::Watch(int gpu, std::chrono::milliseconds timeout) : gpu_(gpu), timeout_(timeout), thread_([this] { work(); }) {}

Watch::~Watch() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  work_.notify_one();
  thread_.join();
  for (cudaEvent_t event : spare_) static_cast<void>(cudaEventDestroy(event));
}

void Watch::take_events(cudaEvent_t& begin, cudaEvent_t& end) {
  const std::lock_guard lock(mutex_);
  for (cudaEvent_t* event : {&begin, &end}) {
    if (spare_.empty()) {
      cuda::check(cudaEventCreateWithFlags(event, cudaEventDefault), "cudaEventCreateWithFlags");
    } else {
      *event = spare_.back();
      spare_.pop_back();
    }
  }
}

void Watch::add(Entry entry) {
  {
    const std::lock_guard lock(mutex_);
    if (!ended_by_.empty()) {
      entry.stream->fail(std::make_exception_ptr(NcclError(ended_by_)));
      return finish(entry, false);
    }
    under_way_.push_back(std::move(entry));
  }
  work_.notify_one();
}

void Watch::forget(const void* group) {
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [&] { return std::ranges::none_of(under_way_, [&](const Entry& e) { return e.group == group; }); });
}

void Watch::end(const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    give_up(why);
  }
  ended_.notify_all();
}

std::string Watch::ended_by() {
  const std::lock_guard lock(mutex_);
  return ended_by_;
}

void Watch::add_communicator(Communicator& communicator) {
  const std::lock_guard lock(mutex_);
  communicators_.push_back(&communicator);
  if (!ended_by_.empty()) communicator.abort();
}

void Watch::remove_communicator(Communicator& communicator) {
  const std::lock_guard lock(mutex_);
  std::erase(communicators_, &communicator);
}

void Watch::work() {
  static_cast<void>(cudaSetDevice(gpu_));
  std::unique_lock lock(mutex_);
  for (;;) {
    work_.wait(lock, [&] { return stop_ || !under_way_.empty(); });
    if (under_way_.empty()) return;
    const std::string why = poll();
    if (!why.empty()) give_up(why);
    ended_.notify_all();
    if (!under_way_.empty()) work_.wait_for(lock, kPollEvery, [&] { return false; });
  }
}

std::string Watch::poll() {
  std::vector<const Stream*> busy;  // streams with an unfinished collective: later ones are not finished either
  for (auto it = under_way_.begin(); it != under_way_.end();) {
    if (std::ranges::find(busy, it->stream) != busy.end()) {
      ++it;
      continue;
    }
    const cudaError_t state = cudaEventQuery(it->end);
    if (state == cudaSuccess) {
      finish(*it, true);
      it = under_way_.erase(it);
      continue;
    }
    if (state != cudaErrorNotReady) return fmt::format("{}: {} ({})", it->what, cudaGetErrorString(state), cudaGetErrorName(state));
    if (const std::string error = it->communicator->asynchronous_error(); !error.empty()) return fmt::format("{}: {}", it->what, error);
    // The host may be steps ahead: the timeout counts from when the stream reached the collective.
    if (it->begun_at == Clock::time_point{} && cudaEventQuery(it->begin) == cudaSuccess) it->begun_at = Clock::now();
    if (it->begun_at != Clock::time_point{} && Clock::now() - it->begun_at > timeout_) {
      return fmt::format("{}: not done within {} s (mesh.timeout); a rank is missing or slower than that", it->what,
                         std::chrono::duration_cast<std::chrono::seconds>(timeout_).count());
    }
    busy.push_back(it->stream);
    ++it;
  }
  return {};
}

void Watch::finish(Entry& entry, bool succeeded) {
  float ms = 0;
  if (succeeded && cudaEventElapsedTime(&ms, entry.begin, entry.end) != cudaSuccess) ms = 0;
  entry.on_end(succeeded, static_cast<std::int64_t>(static_cast<double>(ms) * 1e6));
  spare_.push_back(entry.begin);
  spare_.push_back(entry.end);
}

void Watch::give_up(const std::string& why) {
  if (ended_by_.empty()) ended_by_ = why;
  const auto error = std::make_exception_ptr(NcclError(ended_by_));
  for (Entry& entry : under_way_) {
    entry.stream->fail(error);
    finish(entry, false);
  }
  // In one group: an abort waits for its stream, which may wait for a collective of a communicator that is not aborted yet.
  static_cast<void>(ncclGroupStart());
  for (Communicator* communicator : communicators_) communicator->abort();
  static_cast<void>(ncclGroupEnd());
  under_way_.clear();
}

}  // namespace mica::nccl
