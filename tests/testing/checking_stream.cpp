// SPDX-License-Identifier: Apache-2.0
#include "testing/checking_stream.hpp"

#include <algorithm>
#include <iterator>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "mica/device/forwarding_stream.hpp"

namespace mica {

void VectorClock::set(std::size_t stream, std::uint64_t tick) {
  if (stream >= ticks_.size()) ticks_.resize(stream + 1, 0);
  ticks_[stream] = tick;
}

void VectorClock::join(const VectorClock& other) {
  if (other.ticks_.size() > ticks_.size()) ticks_.resize(other.ticks_.size(), 0);
  for (std::size_t i = 0; i < other.ticks_.size(); ++i) ticks_[i] = std::max(ticks_[i], other.ticks_[i]);
}

namespace {

/// The inner stream's event (perhaps the null one) with the clock of the point.
class CheckedEvent final : public EventState {
 public:
  CheckedEvent(Event inner, std::shared_ptr<VectorClock> stream_clock, std::size_t stream, std::shared_ptr<VectorClock> host_clock)
      : inner_(std::move(inner)),
        origin_(std::move(stream_clock)),
        sequence_(origin_->of(stream)),
        clock_(*origin_),
        host_clock_(std::move(host_clock)),
        host_(std::this_thread::get_id()) {}

  /// Null: of a stream that is not checked.
  static const CheckedEvent* of(const Event& event) { return dynamic_cast<const CheckedEvent*>(event.state().get()); }

  [[nodiscard]] const Event& inner() const { return inner_; }
  /// What had happened before this point.
  [[nodiscard]] const VectorClock& clock() const { return clock_; }
  [[nodiscard]] bool is_complete() const override { return inner_.is_complete(); }
  void wait_on_host() override {
    // A worker of a stream that is not wrapped may come here too; that orders nothing for the host.
    if (std::this_thread::get_id() == host_) host_clock_->join(clock_);
    inner_.wait_on_host();
  }
  [[nodiscard]] const void* origin() const override { return origin_.get(); }
  [[nodiscard]] std::uint64_t sequence() const override { return sequence_; }

 private:
  Event inner_;
  std::shared_ptr<VectorClock> origin_;
  std::uint64_t sequence_;
  VectorClock clock_;
  std::shared_ptr<VectorClock> host_clock_;
  std::thread::id host_;
};

}  // namespace

class CheckingStream final : public ForwardingStream {
 public:
  CheckingStream(std::unique_ptr<Stream> inner, HappensBeforeChecker& checker, std::size_t index)
      : ForwardingStream(std::move(inner)),
        checker_(checker),
        clock_(checker.clocks_[index]),
        host_clock_(checker.clocks_[0]),
        index_(index) {}
  ~CheckingStream() override {
    inner_.reset();
    join_host();
  }
  CheckingStream(const CheckingStream&) = delete;
  CheckingStream& operator=(const CheckingStream&) = delete;

  void submit(const char* what, std::span<const Access> accesses, Task task) override {
    clock_->join(*host_clock_);
    clock_->tick(index_);
    for (const Access& access : accesses) checker_.access(index_, what, access);
    inner_->submit(what, accesses, std::move(task));
  }

  [[nodiscard]] Event record() override { return Event(std::make_shared<CheckedEvent>(inner_->record(), clock_, index_, host_clock_)); }

  void wait(const Event& event, std::source_location site) override {
    const CheckedEvent* checked = CheckedEvent::of(event);
    if (checked) {
      clock_->join(checked->clock());
      clock_->tick(index_);  // events recorded before and after this wait know different things
    }
    inner_->wait(checked ? checked->inner() : event, site);
  }

  void synchronize() override {
    join_host();
    inner_->synchronize();
  }
  void drain_and_clear_error() noexcept override {
    inner_->drain_and_clear_error();
    join_host();
  }

 private:
  void join_host() { host_clock_->join(*clock_); }

  HappensBeforeChecker& checker_;
  std::shared_ptr<VectorClock> clock_;
  std::shared_ptr<VectorClock> host_clock_;
  std::size_t index_;
};

HappensBeforeChecker::HappensBeforeChecker() : clocks_{std::make_shared<VectorClock>()} {}

std::unique_ptr<Stream> HappensBeforeChecker::wrap(std::unique_ptr<Stream> inner) {
  const std::size_t index = clocks_.size();
  clocks_.push_back(std::make_shared<VectorClock>());
  names_.push_back(inner->name());
  return std::make_unique<CheckingStream>(std::move(inner), *this, index);
}

void HappensBeforeChecker::host_access(const char* what, Access access) {
  clocks_[0]->tick(0);
  this->access(0, what, access);
}

void HappensBeforeChecker::host_joined(const Event& event) {
  if (const CheckedEvent* checked = CheckedEvent::of(event)) clocks_[0]->join(checked->clock());
}

void HappensBeforeChecker::forget(const void* data, std::int64_t bytes) {
  if (data == nullptr || bytes <= 0) return;
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  const std::uintptr_t end = begin + static_cast<std::uintptr_t>(bytes);
  split_at(begin);
  split_at(end);
  ranges_.erase(ranges_.lower_bound(begin), ranges_.lower_bound(end));
}

void HappensBeforeChecker::access(std::size_t stream, const char* what, const Access& access) {
  if (access.data == nullptr || access.bytes <= 0) return;
  const auto begin = reinterpret_cast<std::uintptr_t>(access.data);
  const std::uintptr_t end = begin + static_cast<std::uintptr_t>(access.bytes);
  split_at(begin);
  split_at(end);
  const bool is_write = access.mode == Access::Mode::write;
  const char* verb = is_write ? "writes" : "reads";
  Use use{stream, clocks_[stream]->of(stream), what};
  const std::size_t num_before = violations_.size();
  for (auto it = ranges_.lower_bound(begin); it != ranges_.end() && it->first < end; ++it) {
    check(use, verb, access, it->second.writes, "write", num_before);
    if (is_write) check(use, verb, access, it->second.reads, "read", num_before);
  }
  if (is_write) {
    note_write(begin, end, std::move(use));
  } else {
    note_read(begin, end, use);
  }
}

void HappensBeforeChecker::check(const Use& use, const char* verb, const Access& access, const std::vector<Use>& earlier,
                                 const char* earlier_verb, std::size_t num_known) {
  for (const Use& other : earlier) {
    if (other.stream == use.stream || clocks_[use.stream]->of(other.stream) >= other.tick) continue;
    Violation found{fmt::format("{}:{} {} [{},+{}) while {}:{} may still {} it: no event orders them", names_[use.stream], use.what, verb,
                                access.data, access.bytes, names_[other.stream], other.what, earlier_verb)};
    // An access over many ranges meets the same earlier task in each: one report will do.
    const auto first = violations_.begin() + static_cast<std::ptrdiff_t>(num_known);
    const bool is_known = std::any_of(first, violations_.end(), [&](const auto& v) { return v.text == found.text; });
    if (!is_known) violations_.push_back(std::move(found));
  }
}

void HappensBeforeChecker::note_read(std::uintptr_t begin, std::uintptr_t end, const Use& use) {
  std::uintptr_t covered = begin;
  for (auto it = ranges_.lower_bound(begin); covered < end; ++it) {
    const std::uintptr_t next = it == ranges_.end() ? end : std::min(it->first, end);
    if (covered < next) it = ranges_.emplace(covered, Range{next, {}, {}}).first;  // memory never seen before
    Range& range = it->second;
    const auto same = std::find_if(range.reads.begin(), range.reads.end(), [&](const Use& read) { return read.stream == use.stream; });
    if (same == range.reads.end()) {
      range.reads.push_back(use);
    } else {
      *same = use;
    }
    covered = range.end;
  }
}

void HappensBeforeChecker::note_write(std::uintptr_t begin, std::uintptr_t end, Use use) {
  ranges_.erase(ranges_.lower_bound(begin), ranges_.lower_bound(end));
  ranges_.emplace(begin, Range{end, {}, {std::move(use)}});
}

/// Makes `address` a border of ranges.
void HappensBeforeChecker::split_at(std::uintptr_t address) {
  auto it = ranges_.lower_bound(address);
  if (it == ranges_.begin()) return;
  --it;
  if (it->second.end <= address) return;
  Range upper = it->second;
  it->second.end = address;
  ranges_.emplace(address, std::move(upper));
}

}  // namespace mica
