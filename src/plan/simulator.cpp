// SPDX-License-Identifier: Apache-2.0
#include "mica/plan/simulator.hpp"

#include <algorithm>
#include <array>
#include <deque>
#include <limits>

#include "mica/core/error.hpp"

namespace mica::plan {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr std::int32_t kIdle = -1;

class Simulation {
 public:
  Simulation(std::span<const SimOp> ops, const SimOptions& options)
      : ops_(ops), options_(options), streams_(static_cast<std::size_t>(options.num_streams)), done_(ops.size(), false) {
    for (std::size_t i = 0; i < ops.size(); ++i) {
      require(ops[i].event < static_cast<std::int32_t>(i) && ops[i].stream < options.num_streams,
              "op {} of a simulation waits for op {} on stream {} of {}: expected an earlier op and a stream that exists", i, ops[i].event,
              ops[i].stream, options.num_streams);
    }
  }

  std::vector<SimStep> run() {
    for (;;) {
      while (advance_host() || advance_streams()) {
      }
      const double next = std::min(host_at_end_or_blocked() ? kNever : host_free_, next_end());
      if (next == kNever) break;
      pass(next - now_);
      now_ = next;
      end_tasks();
    }
    invariant(host_ == ops_.size() && num_queued_ == 0, "a simulation that comes to its end");
    return std::move(steps_);
  }

 private:
  struct StreamState {
    std::deque<std::int32_t> queue;
    std::int32_t running = kIdle;
    double left = 0;  // seconds of work, when it runs alone
  };
  /// A mark whose earlier tasks are not all done.
  struct OpenMark {
    std::size_t op;
    std::int64_t num_left;
  };

  [[nodiscard]] const SimOp& op(std::int32_t i) const { return ops_[static_cast<std::size_t>(i)]; }
  [[nodiscard]] bool is_done(std::int32_t i) const { return i < 0 || done_[static_cast<std::size_t>(i)]; }
  [[nodiscard]] bool host_is_blocked() const { return awaited_ != kIdle && !is_done(awaited_); }
  [[nodiscard]] bool host_at_end_or_blocked() const { return host_ == ops_.size() || host_is_blocked(); }

  /// Does the host's next op. False if it is busy, waits or has done everything.
  bool advance_host() {
    if (host_at_end_or_blocked() || host_free_ > now_) return false;
    host_free_ = now_;
    awaited_ = kIdle;
    const auto index = static_cast<std::int32_t>(host_);
    const SimOp& next = ops_[host_++];
    switch (next.kind) {
      case SimOp::Kind::task:
      case SimOp::Kind::wait:
        streams_[next.stream].queue.push_back(index);
        ++num_queued_;
        host_free_ += next.kind == SimOp::Kind::task ? options_.host_task_s : options_.host_wait_s;
        if (options_.inlined) awaited_ = index;
        break;
      case SimOp::Kind::host_wait:
        awaited_ = next.event;
        finish(index);
        break;
      case SimOp::Kind::mark:
        marks_.push_back({host_ - 1, num_queued_});
        close_marks();
        finish(index);
        break;
    }
    return true;
  }

  bool advance_streams() {
    bool moved = false;
    for (StreamState& stream : streams_) {
      while (stream.running == kIdle && !stream.queue.empty()) {
        const std::int32_t first = stream.queue.front();
        if (op(first).kind == SimOp::Kind::wait && !is_done(op(first).event)) break;
        stream.queue.pop_front();
        moved = true;
        if (op(first).kind == SimOp::Kind::task && op(first).seconds > 0) {
          stream.running = first;
          stream.left = op(first).seconds;
        } else {
          leave_queue(first);
        }
      }
    }
    return moved;
  }

  /// The speed of a task relative to running alone, at most 1.
  [[nodiscard]] double rate(const StreamState& stream) const {
    const Resource mine = op(stream.running).resource;
    int computing = 0, communicating = 0, alike = 0;
    for (const StreamState& other : streams_) {
      if (other.running == kIdle) continue;
      const Resource its = op(other.running).resource;
      its == Resource::compute ? ++computing : ++communicating;
      alike += its == mine ? 1 : 0;
    }
    const int others = mine == Resource::compute ? communicating : computing;
    const double beside = mine == Resource::compute ? options_.compute_beside_communication : options_.communication_beside_compute;
    return (others > 0 ? beside : 1) / alike;
  }

  [[nodiscard]] double next_end() const {
    double next = kNever;
    for (const StreamState& stream : streams_) {
      if (stream.running != kIdle) next = std::min(next, now_ + stream.left / rate(stream));
    }
    return next;
  }

  /// Advances time over a period in which nothing begins or ends.
  void pass(double seconds) {
    bool communicates = false;
    std::array<double, 256> rates{};
    for (std::size_t s = 0; s < streams_.size(); ++s) {
      if (streams_[s].running == kIdle) continue;
      rates[s] = rate(streams_[s]);
      communicates = communicates || op(streams_[s].running).resource != Resource::compute;
    }
    const StreamState& compute = streams_[options_.compute_stream];
    const bool computes = compute.running != kIdle && op(compute.running).resource == Resource::compute;
    step_.compute_busy += computes ? seconds : 0;
    step_.communication_busy += communicates ? seconds : 0;
    step_.exposed += communicates && !computes ? seconds : 0;
    step_.host_waits += host_is_blocked() && !options_.inlined ? seconds : 0;
    for (std::size_t s = 0; s < streams_.size(); ++s) {
      if (streams_[s].running != kIdle) streams_[s].left = std::max(0.0, streams_[s].left - seconds * rates[s]);
    }
  }

  void end_tasks() {
    // What rounding may leave of a task. An end so near that adding it does not change now_ counts as reached, or time would not advance.
    const double rounding = 1e-15 + 1e-12 * now_;
    for (StreamState& stream : streams_) {
      if (stream.running == kIdle || stream.left > rounding) continue;
      const std::int32_t ended = stream.running;
      stream.running = kIdle;
      leave_queue(ended);
    }
  }

  void finish(std::int32_t index) { done_[static_cast<std::size_t>(index)] = true; }

  void leave_queue(std::int32_t index) {
    finish(index);
    --num_queued_;
    for (OpenMark& mark : marks_) {
      if (static_cast<std::size_t>(index) < mark.op) --mark.num_left;
    }
    close_marks();
  }

  void close_marks() {
    while (!marks_.empty() && marks_.front().num_left == 0) {
      marks_.pop_front();
      step_.seconds = now_ - step_begin_;
      step_begin_ = now_;
      steps_.push_back(step_);
      step_ = {};
    }
  }

  std::span<const SimOp> ops_;
  const SimOptions& options_;
  std::vector<StreamState> streams_;
  std::vector<bool> done_;
  std::size_t host_ = 0;          // the host's next op
  double host_free_ = 0;          // when the host can do it
  std::int32_t awaited_ = kIdle;  // op that the host waits for
  double now_ = 0;
  std::int64_t num_queued_ = 0;  // enqueued and not done
  std::deque<OpenMark> marks_;
  SimStep step_;
  double step_begin_ = 0;
  std::vector<SimStep> steps_;
};

}  // namespace

std::vector<SimStep> simulate(std::span<const SimOp> ops, const SimOptions& options) { return Simulation(ops, options).run(); }

}  // namespace mica::plan
