// SPDX-License-Identifier: Apache-2.0
#include "mica/comm/watchdog.hpp"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include <unistd.h>

#include "mica/comm/flight_recorder.hpp"
#include "mica/comm/hang_folder.hpp"
#include "mica/comm/host_comm.hpp"
#include "mica/core/error.hpp"
#include "mica/core/host.hpp"
#include "mica/core/steady_ns.hpp"
#include "mica/mpi/session.hpp"

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
/// How long the others' records are waited for. After a death little time is left: mpirun kills the others a second later.
constexpr Seconds kRecordsOfHang{3.5}, kRecordsOfLoss{0.4};
/// Three signs of life of another node.
constexpr Seconds kThreeBeats{3};
/// How long ranks wait for the one that reports, and the end of the job for MPI.
constexpr Seconds kReportOfHang{10}, kReportOfLoss{1}, kEnd{5};
/// How long a launcher gets to see for itself that a host is gone. It ends the job then; once ranks end before, Open MPI's mpirun wants
/// an answer of that host, and waits for it until TCP gives up, a quarter of an hour later.
constexpr Seconds kLauncher{60};
/// For the slowest emergency save.
constexpr Seconds kSaves{600};
/// Records and report may take so long. Then the file system is taken for what hangs.
constexpr Seconds kReporting{30};
/// What the files of one more rank may take.
constexpr Seconds kEachRank{0.005};
/// In larger jobs a record has fewer events, kEventsOfGroup of each group: one rank reads all records.
constexpr std::size_t kRanksInFull = 64;
constexpr std::ptrdiff_t kEventsOfGroup = 32;

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

/// Waits until `is_done`, at most for `limit`. @param num_ranks  that ask the same file system  @returns whether it is
template <class IsDone>
bool wait_until_done(Seconds limit, std::size_t num_ranks, const IsDone& is_done) {
  const auto poll = std::max(milliseconds(20), milliseconds(num_ranks / 4));
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (!is_done()) {
    if (std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(poll);
  }
  return true;
}

/// Leaves the last kEventsOfGroup of each group.
void shorten(HangRecord& record) {
  std::vector<std::ptrdiff_t> left(record.groups.size(), kEventsOfGroup);
  std::vector<HangRecord::Event> kept;
  for (auto event = record.events.rbegin(); event != record.events.rend(); ++event) {
    if (left[event->group]-- > 0) kept.push_back(std::move(*event));
  }
  record.events.assign(std::make_move_iterator(kept.rbegin()), std::make_move_iterator(kept.rend()));
}

bool is_lost(RankHealth health) { return health == RankHealth::dead || health == RankHealth::silent; }

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
    for (const std::string& words : world.gather_strings(fmt::format("{} {} {}", logs_.leader(), host_name(), contact))) {
      const std::size_t first = words.find(' '), second = words.find(' ', first + 1);
      const int leader = std::stoi(words.substr(0, first));
      if (leader == std::ssize(hosts_)) contacts[leader] = words.substr(second + 1);
      hosts_.push_back(words.substr(first + 1, second - first - 1));
    }
    if (contacts.size() == 1) ring_.reset();
    if (ring_) ring_->connect(logs_.rank(), contacts);
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
    const std::lock_guard lock(mutex_);
    folder_ = HangFolder::of_launch(run_folder, launch_);
    log_file_ = log_file;
  }
  void set_save(Save save) {
    const std::lock_guard lock(saving_);
    save_ = std::move(save);
  }
  void note_phase(RankPhase phase) {
    head().phase.store(static_cast<std::uint8_t>(phase));
    if (phase == RankPhase::ended && ring_) ring_->say_goodbye();
  }
  void let_finish() {
    if (wait_until_done(Seconds(1), 1, [&] { return head().has_alarm.load() != 0; })) {
      for (;;) std::this_thread::sleep_for(kSaves);
    }
  }

 private:
  [[nodiscard]] FlightHead& head() const { return logs_.own()->head(); }
  [[nodiscard]] Seconds timeout() const {
    const milliseconds timeout(timeout_ms_.load());
    return num_patiences_ > 0 ? std::max<milliseconds>(timeout, kFileTimeout) : timeout;
  }
  /// For what takes longer with more ranks.
  [[nodiscard]] Seconds for_all_ranks(Seconds limit) const { return limit + static_cast<double>(hosts_.size()) * kEachRank; }
  [[nodiscard]] std::optional<HangFolder> folder() const {
    const std::lock_guard lock(mutex_);
    return folder_;
  }

  void work(const std::stop_token& stop) {
    std::mutex mutex;
    std::condition_variable_any stopped;
    std::unique_lock lock(mutex);
    auto last = std::chrono::steady_clock::now();
    for (int looks = 1; !stopped.wait_for(lock, stop, kLookEvery, [&] { return stop.stop_requested(); }); ++looks) {
      const auto now = std::chrono::steady_clock::now();
      const Seconds passed = std::min<Seconds>(now - std::exchange(last, now), kLongestLook);
      head().heartbeat_ns.store(steady_ns());
      const std::string alarm = look(passed, looks);
      if (head().phase.load() == static_cast<std::uint8_t>(RankPhase::ended)) continue;
      if (alarm.empty()) continue;
      try {
        end_job(alarm);
      } catch (const std::exception& error) {
        print(fmt::format("mica: error: rank {}: {}: {}\n", logs_.rank(), alarm, error.what()));
        end_process();
      }
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
    if (logs_.rank() != logs_.leader() || hosts_.size() == logs_.ranks().size() || looks % kLooksPerFolderLook != 0) return {};
    const std::optional<HangFolder> place = folder();
    return place && place->exists() ? "another node has an alarm" : "";
  }

  /// Adds up how long this rank has been in the collectives that it has entered.
  std::string look_at_groups(Seconds passed) {
    longest_wait_ = Seconds(0);
    std::string alarm;
    for (const FlightGroup& group : logs_.own()->groups()) {
      Wait& wait = waits_[&group];
      const std::int64_t ended = group.ended.load(), enqueued = group.enqueued.load();
      const bool starts_unseen = group.starts_unseen.load() != 0;
      const std::int64_t entered = starts_unseen ? std::min(enqueued, ended + 1) : group.started.load();
      const bool is_waiting = group.use.load() == static_cast<std::uint8_t>(FlightGroup::Use::open) && entered > ended;
      const bool is_same = is_waiting && wait.sequence == entered;
      wait = {is_waiting ? entered : 0, is_same ? wait.time + passed : Seconds(0)};
      longest_wait_ = std::max(longest_wait_, wait.time);
      if (wait.time < timeout() + (starts_unseen ? kAfterNccl : Seconds(0))) continue;
      alarm = fmt::format("rank {} waits for {:.0f} s (mesh.timeout)", logs_.rank(), wait.time.count());
    }
    return alarm;
  }

  [[noreturn]] void end_job(const std::string& alarm) {
    head().alarm.set(alarm);
    head().has_alarm.store(1);
    if (ring_) ring_->send_alarm(alarm);
    const std::optional<HangFolder> place = folder();
    std::vector<HangRecord> of_node = make_records(alarm);
    guard_report(of_node);
    if (!place) {
      if (is_lowest_alive(of_node)) {
        tell(HangScene{hosts_, of_node}, std::nullopt);
      } else {
        std::this_thread::sleep_for(kReportOfLoss);
      }
    } else {
      report_in(*place, of_node);
    }
    const auto [lost, num_alive] = found_by_all(of_node, place);
    is_reported_ = true;
    const bool is_host_lost = std::ranges::any_of(lost, [](const auto& rank) { return rank.second == RankHealth::silent; });
    const auto linger = is_host_lost ? kLauncher : Seconds(0);
    num_alive_ = num_alive;
    if (!lost.empty()) save(lost.begin()->first, linger, place);
    std::this_thread::sleep_for(linger);
    end_process();
  }

  /// Ends the process if the file system does not let end_job() come to its end, and tells what is known without it.
  void guard_report(const std::vector<HangRecord>& of_node) {
    std::thread([this, of_node] {
      if (wait_until_done(for_all_ranks(kReporting), 1, [&] { return is_reported_.load(); })) return;
      exit_after(kEnd);  // stderr may block, too
      if (is_lowest_alive(of_node)) {
        print(fmt::format("mica: error: the job hangs or has lost a rank, and its run's folder cannot be written: {}",
                          hang_report(HangScene{hosts_, of_node})));
      } else {
        std::this_thread::sleep_for(kReportOfLoss);
      }
      ::_exit(kStatus);
    }).detach();
  }

  /// This rank's, and those of the ranks of its node that cannot write theirs if this one is to write them. Without a folder, of all.
  std::vector<HangRecord> make_records(const std::string& alarm) const {
    const std::int64_t now = steady_ns();
    std::vector<HangRecord> records;
    for (const int rank : logs_.ranks()) {
      const FlightLog* const log = logs_.log_of(rank);
      const RankHealth health = logs_.health_of(rank, now);
      if (log == nullptr) continue;
      records.push_back(record_of(*log, now));
      if (hosts_.size() > kRanksInFull) shorten(records.back());
      records.back().written_by = logs_.rank();
      records.back().host = hosts_[static_cast<std::size_t>(rank)];
      records.back().health = health;
      records.back().alarm = alarm;
    }
    std::ranges::find(records, logs_.rank(), &HangRecord::rank)->sightings = sightings_of(records);
    return records;
  }

  /// Whom this rank has seen dead, stopped or silent.
  [[nodiscard]] std::vector<HangRecord::Sighting> sightings_of(const std::vector<HangRecord>& of_node) const {
    std::vector<HangRecord::Sighting> sightings;
    for (const HangRecord& record : of_node) {
      if (record.health != RankHealth::alive) sightings.push_back({record.rank, record.health});
    }
    if (!ring_) return sightings;
    for (const int rank : ring_->silent()) sightings.push_back({rank, RankHealth::silent});
    for (const int rank : ring_->gone()) sightings.push_back({rank, RankHealth::dead});
    return sightings;
  }

  [[nodiscard]] bool is_lowest_alive(const std::vector<HangRecord>& of_node) const {
    const auto lowest = std::ranges::find(of_node, RankHealth::alive, &HangRecord::health);
    return lowest != of_node.end() && lowest->rank == logs_.rank();
  }

  /// Writes records, and the report if that is this rank's task.
  void report_in(const HangFolder& place, std::vector<HangRecord>& of_node) {
    bool has_lost = false;
    try {
      const bool writes_for_others = is_lowest_alive(of_node);
      const bool has_mine = place.ranks().contains(logs_.rank());  // written by another rank while this one was stopped: that says more
      for (const HangRecord& record : of_node) {
        has_lost |= is_lost(record.health);
        const bool is_mine = record.rank == logs_.rank() && !has_mine;
        if (is_mine || (writes_for_others && record.health != RankHealth::alive)) place.write(record);
      }
    } catch (const std::exception& error) {
      print(fmt::format("mica: error: rank {}: the records of this hang cannot be written: {}\n", logs_.rank(), error.what()));
    }
    const bool are_complete = wait_for_records(place, has_lost ? kRecordsOfLoss : kRecordsOfHang);
    if (!are_complete) add_silent_nodes(place, of_node);
    const std::optional<int> lowest = place.lowest_writer();
    if (lowest ? *lowest == logs_.rank() : is_lowest_alive(of_node)) {
      HangScene scene = place.read();
      scene.hosts = hosts_;
      if (!lowest) scene.records = of_node;  // nothing can be written there
      tell(scene, place);
    } else {
      static_cast<void>(
          wait_until_done(for_all_ranks(has_lost ? kReportOfLoss : kReportOfHang), hosts_.size(), [&] { return place.has_report(); }));
    }
  }

  /// @returns whether all ranks have left one
  bool wait_for_records(const HangFolder& place, Seconds limit) {
    auto last = std::chrono::steady_clock::now();
    return wait_until_done(limit, hosts_.size(), [&] {
      const auto now = std::chrono::steady_clock::now();
      if (ring_) ring_->exchange(now - std::exchange(last, now), Seconds(0), timeout());
      return place.ranks().size() == hosts_.size();
    });
  }

  /// A node that has died has left no record, and has said nothing meanwhile.
  void add_silent_nodes(const HangFolder& place, std::vector<HangRecord>& of_node) {
    if (!ring_) return;
    ring_->count_silent(kThreeBeats);
    const auto own = std::ranges::find(of_node, logs_.rank(), &HangRecord::rank);
    own->sightings = sightings_of(of_node);
    try {
      place.write(*own);
    } catch (const std::exception&) {  // it is told with the others
    }
  }

  void tell(const HangScene& scene, const std::optional<HangFolder>& place) const {
    const std::string report = hang_report(scene);
    const std::string where =
        place ? fmt::format("records: {}; mica-inspect hang {} prints this again\n", place->path(), parent_of(parent_of(place->path())))
              : "";
    print(fmt::format("mica: error: the job hangs or has lost a rank: {}{}", report, where));
    const std::string log_file = [&] {
      const std::lock_guard lock(mutex_);
      return log_file_;
    }();
    if (!log_file.empty()) std::ofstream(log_file, std::ios::app) << "mica: error: the job hangs or has lost a rank: " << report << where;
    if (!place) return;
    try {
      place->write_hosts(hosts_);
    } catch (const std::exception&) {  // records name their hosts, too
    }
    try {
      place->write_summary(summary_of(place->read().records));  // with what has come meanwhile
      place->write_report(report);
    } catch (const std::exception&) {  // it was printed
    }
  }
  static std::string parent_of(const std::string& path) { return path.substr(0, path.rfind('/')); }
  static void print(const std::string& text) {
    std::fputs(text.c_str(), stderr);
    std::fflush(stderr);
  }

  /// What the rank that reports has found out; if it has not, what all records say.
  [[nodiscard]] static HangSummary found_by_all(const std::vector<HangRecord>& of_node, const std::optional<HangFolder>& place) {
    if (!place) return summary_of(of_node);
    if (const std::optional<HangSummary> summary = place->read_summary()) return *summary;
    std::vector<HangRecord> records = place->read().records;
    std::ranges::copy_if(of_node, std::back_inserter(records),
                         [&](const HangRecord& own) { return !std::ranges::count(records, own.rank, &HangRecord::rank); });
    return summary_of(records);
  }

  /// Ranks that have died, as any rank has seen it, and how many live.
  [[nodiscard]] static HangSummary summary_of(const std::vector<HangRecord>& records) {
    HangSummary summary;
    const auto lives = [&](int rank) {
      return std::ranges::any_of(
          records, [&](const HangRecord& r) { return r.rank == rank && r.written_by == rank && r.health == RankHealth::alive; });
    };
    const auto note = [&](int rank, RankHealth health) {
      if (is_lost(health) && !lives(rank)) summary.lost.try_emplace(rank, health);
    };
    for (const HangRecord& record : records) {
      note(record.rank, record.health);
      for (const HangRecord::Sighting& s : record.sightings) note(s.rank, s.health);
      if (record.written_by == record.rank) ++summary.num_alive;
    }
    return summary;
  }

  /// Saves what this rank holds. Comes back once no other rank that lives is saving either.
  void save(int lost, Seconds linger, const std::optional<HangFolder>& place) {
    {
      const std::lock_guard lock(saving_);
      if (!save_) return;
      save_(fmt::format("rank {} is lost", lost), linger);
    }
    if (!place) return;
    try {
      place->write_unsaved(logs_.rank());
      static_cast<void>(wait_until_done(kSaves, hosts_.size(), [&] { return place->num_unsaved() >= num_alive_; }));
    } catch (const std::exception&) {  // then nobody can save there either
    }
  }

  static constexpr int kStatus = static_cast<int>(ExitCode::runtime_failure);

  static void exit_after(Seconds time) {
    std::thread([time] {
      std::this_thread::sleep_for(time);
      ::_exit(kStatus);
    }).detach();
  }
  [[noreturn]] static void end_process() {
    exit_after(kEnd);  // MPI may not come back
    mpi::Session::abort(kStatus);
  }

  struct Wait {
    std::int64_t sequence = 0;
    Seconds time{0};
  };

  detail::NodeLogs logs_;
  std::string launch_;
  std::vector<std::string> hosts_;  // by rank
  std::unique_ptr<detail::NodeRing> ring_;
  int next_ = 0;  // of this node, whose process this rank looks at
  std::atomic<std::int64_t> timeout_ms_{milliseconds(kTimeout).count()};
  std::atomic<int> num_patiences_ = 0;
  std::atomic<bool> is_reported_ = false;
  int num_alive_ = 0;  // of the ranks, at an alarm
  mutable std::mutex mutex_;
  std::optional<HangFolder> folder_;
  std::string log_file_;
  std::mutex saving_;
  Save save_;
  std::map<const FlightGroup*, Wait> waits_;
  Seconds longest_wait_{0};
  std::jthread thread_;  // last: it uses the others
};

Watchdog::Watchdog(const mpi::Communicator& world) : thread_(std::make_unique<Thread>(world)) {}
Watchdog::~Watchdog() = default;
void Watchdog::set_timeout(std::chrono::milliseconds timeout) { thread_->set_timeout(timeout); }
Watchdog::Patience::Patience(Watchdog& of) : of_(of) { of_.thread_->add_patience(1); }
Watchdog::Patience::~Patience() { of_.thread_->add_patience(-1); }
void Watchdog::set_folder(const std::string& run_folder, const std::string& log_file) { thread_->set_folder(run_folder, log_file); }
void Watchdog::set_save(Save save) { thread_->set_save(std::move(save)); }
void Watchdog::note_closing() { thread_->note_phase(RankPhase::closing); }
void Watchdog::note_end() { thread_->note_phase(RankPhase::ended); }
void Watchdog::let_finish() { thread_->let_finish(); }

}  // namespace mica
