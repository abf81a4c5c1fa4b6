// SPDX-License-Identifier: Apache-2.0
#include "mica/comm/watchdog.hpp"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <ctime>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include <unistd.h>

#include "mica/comm/flight_recorder.hpp"
#include "mica/comm/hang_folder.hpp"
#include "mica/comm/host_comm.hpp"
#include "mica/core/host.hpp"
#include "mica/core/steady_ns.hpp"

#include "job_end.hpp"
#include "node_logs.hpp"
#include "node_ring.hpp"

namespace mica {
namespace {

using Seconds = std::chrono::duration<double>;
using std::chrono::milliseconds;

constexpr milliseconds kLookEvery{100};
/// Of the time between two looks that counts at most: a process that was suspended has not waited.
constexpr Seconds kLongestLook{0.5};
/// A shared file system is asked less often.
constexpr int kLooksPerFolderLook = 20;
/// NCCL's own watch, which knows more, goes first.
constexpr Seconds kAfterNccl{5};
/// How long the watchdogs have to see a death that may be the reason of this rank's error.
constexpr milliseconds kDeathIsSeen{1000};

/// One communicator's exchanges, as a group of the log.
class RecordedExchanges final : public mpi::ExchangeRecord {
 public:
  explicit RecordedExchanges(const std::vector<int>& world_ranks) : recorder_(std::string(HangRecord::kHostGroup)) {
    recorder_.publish(world_ranks);
  }
  void begin(const char* kind, std::int64_t bytes) override {
    auto found = Collective::barrier;
    for (std::size_t i = 0; i < kNumCollectives; ++i) {
      if (std::string_view(collective_name(static_cast<Collective>(i))) == kind) found = static_cast<Collective>(i);
    }
    sequence_ = recorder_.enqueue(found, "", bytes);
    recorder_.start(sequence_);
  }
  void end(bool succeeded) override { recorder_.end(sequence_, succeeded); }

 private:
  FlightRecorder recorder_;
  std::int64_t sequence_ = 0;
};

/// Of this launch, the same on all ranks: sorts by time.
std::string launch_name(const mpi::Communicator& world) {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y%m%d-%H%M%S", &utc);
  return world.broadcast_string(fmt::format("{}-{}", text, ::getpid()), 0);
}

}  // namespace

class Watchdog::Thread {
 public:
  explicit Thread(const mpi::Communicator& world) : logs_(world), launch_(launch_name(world)) {
    const std::string contact = detail::NodeRing::open(ring_, logs_.rank() == logs_.leader(), launch_);
    std::map<int, std::string> contacts;
    std::vector<std::string> hosts;
    for (const std::string& words : world.gather_strings(fmt::format("{} {} {}", logs_.leader(), host_name(), contact))) {
      const std::size_t first = words.find(' '), second = words.find(' ', first + 1);
      const int leader = std::stoi(words.substr(0, first));
      if (leader == std::ssize(hosts)) contacts[leader] = words.substr(second + 1);
      hosts.push_back(words.substr(first + 1, second - first - 1));
    }
    if (contacts.size() == 1) ring_.reset();
    if (ring_) ring_->connect(logs_.rank(), contacts);
    has_other_nodes_ = hosts.size() > logs_.ranks().size();
    end_ = std::make_unique<detail::JobEnd>(logs_, std::move(hosts), static_cast<int>(contacts.size()), ring_.get());
    FlightLog::set_of_process(logs_.own());
    mpi::record_exchanges([](const std::vector<int>& world_ranks) { return std::make_unique<RecordedExchanges>(world_ranks); });
    const auto own = std::ranges::find(logs_.ranks(), logs_.rank());
    next_ = std::next(own) == logs_.ranks().end() ? logs_.leader() : *std::next(own);
    if (world.num_ranks() > 1) thread_ = std::jthread([this](const std::stop_token& stop) { work(stop); });
  }
  ~Thread() {
    note_phase(RankPhase::ended);
    thread_.request_stop();
    if (thread_.joinable()) thread_.join();
    mpi::record_exchanges({});
    FlightLog::set_of_process(nullptr);
  }
  Thread(const Thread&) = delete;
  Thread& operator=(const Thread&) = delete;

  void set_timeout(milliseconds timeout) { timeout_ms_ = timeout.count(); }
  void add_patience(int num) { num_patiences_ += num; }
  void set_folder(const std::string& run_folder, const std::string& log_file) {
    end_->set_place(HangFolder::of_launch(run_folder, launch_), log_file);
  }
  void set_save(Save save) { end_->set_save(std::move(save)); }
  void note_phase(RankPhase phase) {
    head().phase.store(static_cast<std::uint8_t>(phase));
    if (phase == RankPhase::ended && ring_) ring_->say_goodbye();
  }
  [[nodiscard]] Seconds longest_wait() const { return longest_wait_.load(); }
  void let_finish() {
    for (milliseconds waited{0}; waited < kDeathIsSeen; waited += kLookEvery) {
      while (head().has_alarm.load() != 0) std::this_thread::sleep_for(kLookEvery);
      std::this_thread::sleep_for(kLookEvery);
    }
  }

 private:
  [[nodiscard]] FlightHead& head() const { return logs_.own()->head(); }
  [[nodiscard]] Seconds timeout() const {
    const milliseconds timeout(timeout_ms_.load());
    return num_patiences_ > 0 ? std::max<milliseconds>(timeout, kFileTimeout) : timeout;
  }

  void work(const std::stop_token& stop) {
    std::mutex mutex;
    std::condition_variable_any stopped;
    std::unique_lock lock(mutex);
    auto last = std::chrono::steady_clock::now();
    milliseconds pause{0};  // the first look connects the nodes: one may die early
    for (int looks = 1; !stopped.wait_for(lock, stop, std::exchange(pause, kLookEvery), [&] { return stop.stop_requested(); }); ++looks) {
      const auto now = std::chrono::steady_clock::now();
      const Seconds passed = std::min<Seconds>(now - std::exchange(last, now), kLongestLook);
      head().heartbeat_ns.store(steady_ns());
      const std::string alarm = look(passed, looks);
      if (head().phase.load() == static_cast<std::uint8_t>(RankPhase::ended)) continue;
      if (!alarm.empty()) end_->end(alarm);
    }
  }

  /// @returns why the job is to end; empty: it goes on
  std::string look(Seconds passed, int looks) {
    for (const int rank : logs_.ranks()) {
      const FlightLog* const log = logs_.log_of(rank);
      if (rank != logs_.rank() && log != nullptr && log->head().has_alarm.load() != 0) return log->head().alarm.get();
    }
    if (logs_.health_of(next_, steady_ns()) == RankHealth::dead) return fmt::format("rank {} is lost", next_);
    const std::string waits = look_at_groups(passed);
    if (!waits.empty()) return waits;
    if (ring_) {
      ring_->exchange(passed, longest_wait_, timeout());
      if (const std::string alarm = ring_->alarm(); !alarm.empty()) return alarm;
    }
    // A shared file system may stall, and this thread gives the signs of life: alarms come over the ring.
    if (ring_ && ring_->has_neighbour()) return {};
    if (logs_.rank() != logs_.leader() || !has_other_nodes_ || looks % kLooksPerFolderLook != 0) return {};
    const std::optional<HangFolder> place = end_->place();
    return place && place->exists() ? "another node has an alarm" : "";
  }

  /// Adds up how long this rank has been in the collectives that it has entered.
  std::string look_at_groups(Seconds passed) {
    Seconds longest_wait{0};
    std::string alarm;
    for (const FlightGroup& group : logs_.own()->groups()) {
      Wait& wait = waits_[&group];
      const std::int64_t ended = group.ended.load(), enqueued = group.enqueued.load();
      const bool starts_unseen = group.starts_unseen.load() != 0;
      const std::int64_t entered = starts_unseen ? std::min(enqueued, ended + 1) : group.started.load();
      const bool is_waiting = group.use.load() == static_cast<std::uint8_t>(FlightGroup::Use::open) && entered > ended;
      const bool is_same = is_waiting && wait.sequence == entered;
      wait = {is_waiting ? entered : 0, is_same ? wait.time + passed : Seconds(0)};
      longest_wait = std::max(longest_wait, wait.time);
      if (wait.time < timeout() + (starts_unseen ? kAfterNccl : Seconds(0))) continue;
      alarm = fmt::format("rank {} waits for {:.0f} s (mesh.timeout)", logs_.rank(), wait.time.count());
    }
    longest_wait_ = longest_wait;
    return alarm;
  }

  struct Wait {
    std::int64_t sequence = 0;
    Seconds time{0};
  };

  detail::NodeLogs logs_;
  std::string launch_;
  std::unique_ptr<detail::NodeRing> ring_;
  std::unique_ptr<detail::JobEnd> end_;
  bool has_other_nodes_ = false;
  int next_ = 0;  // of this node, whose process this rank looks at
  std::atomic<std::int64_t> timeout_ms_{milliseconds(kTimeout).count()};
  std::atomic<int> num_patiences_ = 0;
  std::map<const FlightGroup*, Wait> waits_;
  std::atomic<Seconds> longest_wait_{Seconds(0)};
  std::jthread thread_;  // last: it uses the others
};

Watchdog::Watchdog(const mpi::Communicator& world) : thread_(std::make_unique<Thread>(world)) {}
Watchdog::~Watchdog() = default;
void Watchdog::set_timeout(std::chrono::milliseconds timeout) { thread_->set_timeout(timeout); }
Watchdog::Patience::Patience(Watchdog& of) : of_(of) { of_.thread_->add_patience(1); }
Watchdog::Patience::~Patience() { of_.thread_->add_patience(-1); }
void Watchdog::set_folder(const std::string& run_folder, const std::string& log_file) { thread_->set_folder(run_folder, log_file); }
void Watchdog::set_save(Save save) { thread_->set_save(std::move(save)); }
std::chrono::duration<double> Watchdog::waits() const { return thread_->longest_wait(); }
void Watchdog::note_closing() { thread_->note_phase(RankPhase::closing); }
void Watchdog::note_end() { thread_->note_phase(RankPhase::ended); }
void Watchdog::let_finish() { thread_->let_finish(); }

}  // namespace mica
