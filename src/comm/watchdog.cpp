// SPDX-License-Identifier: Apache-2.0
#include "mica/comm/watchdog.hpp"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <ctime>
#include <fstream>
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

/// Waits until `is_done`, at most for `limit`. @returns whether it is
template <class IsDone>
bool wait_until_done(Seconds limit, const IsDone& is_done) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (!is_done()) {
    if (std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(milliseconds(20));
  }
  return true;
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
    if (wait_until_done(Seconds(1), [&] { return head().has_alarm.load() != 0; })) {
      for (;;) std::this_thread::sleep_for(kSaves);
    }
  }

 private:
  [[nodiscard]] FlightHead& head() const { return logs_.own()->head(); }
  [[nodiscard]] Seconds timeout() const { return milliseconds(timeout_ms_.load()); }
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
      if (!alarm.empty()) end_job(alarm);
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
      ring_->exchange(passed, longest_wait_, std::min(timeout(), detail::NodeRing::kSilence));
      if (const std::string alarm = ring_->alarm(); !alarm.empty()) return alarm;
    }
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
    if (!place) {
      if (is_lowest_alive(of_node)) {
        tell(HangScene{hosts_, of_node}, std::nullopt);
      } else {
        std::this_thread::sleep_for(kReportOfLoss);
      }
    } else {
      report_in(*place, of_node);
    }
    const std::map<int, RankHealth> lost = lost_ranks(of_node, place);
    const bool is_host_lost = std::ranges::any_of(lost, [](const auto& rank) { return rank.second == RankHealth::silent; });
    const auto linger = is_host_lost ? kLauncher : Seconds(0);
    if (!lost.empty()) save(lost.begin()->first, linger, place);
    std::this_thread::sleep_for(linger);
    end_process();
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
      if (writes_for_others) place.write_hosts(hosts_);
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
    HangScene scene = place.read();
    scene.hosts = hosts_;
    const auto lowest = std::ranges::find_if(scene.records, [](const HangRecord& record) { return record.written_by == record.rank; });
    if (lowest == scene.records.end()) scene.records = of_node;  // nothing can be written there
    const bool is_mine = lowest == scene.records.end() ? is_lowest_alive(of_node) : lowest->rank == logs_.rank();
    if (is_mine) tell(scene, place);
    if (!is_mine) static_cast<void>(wait_until_done(has_lost ? kReportOfLoss : kReportOfHang, [&] { return place.has_report(); }));
  }

  /// @returns whether all ranks have left one
  bool wait_for_records(const HangFolder& place, Seconds limit) {
    auto last = std::chrono::steady_clock::now();
    return wait_until_done(limit, [&] {
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
    try {
      if (place) place->write_report(report);
    } catch (const std::exception&) {  // it was printed
    }
  }
  static std::string parent_of(const std::string& path) { return path.substr(0, path.rfind('/')); }
  static void print(const std::string& text) {
    std::fputs(text.c_str(), stderr);
    std::fflush(stderr);
  }

  /// Ranks that have died, as any rank has seen it.
  [[nodiscard]] std::map<int, RankHealth> lost_ranks(const std::vector<HangRecord>& of_node, const std::optional<HangFolder>& place) const {
    std::vector<HangRecord> records = of_node;
    if (place) {
      const HangScene scene = place->read();
      records.insert(records.end(), scene.records.begin(), scene.records.end());
    }
    std::map<int, RankHealth> lost;
    const auto lives = [&](int rank) {
      return std::ranges::any_of(
          records, [&](const HangRecord& r) { return r.rank == rank && r.written_by == rank && r.health == RankHealth::alive; });
    };
    const auto note = [&](int rank, RankHealth health) {
      if (is_lost(health) && !lives(rank)) lost.try_emplace(rank, health);
    };
    for (const HangRecord& record : records) {
      note(record.rank, record.health);
      for (const HangRecord::Sighting& s : record.sightings) note(s.rank, s.health);
    }
    return lost;
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
      const std::ptrdiff_t num_alive =
          std::ranges::count_if(place->read().records, [](const HangRecord& r) { return r.written_by == r.rank; });
      static_cast<void>(wait_until_done(kSaves, [&] { return place->num_unsaved() >= num_alive; }));
    } catch (const std::exception&) {  // then nobody can save there either
    }
  }

  [[noreturn]] void end_process() {
    constexpr int kStatus = static_cast<int>(ExitCode::runtime_failure);
    std::thread([] {
      std::this_thread::sleep_for(kEnd);
      ::_exit(kStatus);  // MPI does not come back
    }).detach();
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
void Watchdog::set_folder(const std::string& run_folder, const std::string& log_file) { thread_->set_folder(run_folder, log_file); }
void Watchdog::set_save(Save save) { thread_->set_save(std::move(save)); }
void Watchdog::note_closing() { thread_->note_phase(RankPhase::closing); }
void Watchdog::note_end() { thread_->note_phase(RankPhase::ended); }
void Watchdog::let_finish() { thread_->let_finish(); }

}  // namespace mica
