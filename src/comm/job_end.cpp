// SPDX-License-Identifier: Apache-2.0
#include "job_end.hpp"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <ranges>
#include <set>
#include <thread>
#include <utility>

#include <unistd.h>

#include "mica/comm/hang_report.hpp"
#include "mica/core/error.hpp"
#include "mica/core/error_text.hpp"
#include "mica/core/poll_interval.hpp"
#include "mica/core/steady_ns.hpp"
#include "mica/mpi/session.hpp"

namespace mica::detail {
namespace {

using Seconds = JobEnd::Seconds;

constexpr int kStatus = static_cast<int>(ExitCode::runtime_failure);
/// How long the others' records are waited for. After a death little time is left: mpirun kills the others a second later.
constexpr Seconds kRecordsOfHang{3.5}, kRecordsOfLoss{0.4};
/// Three signs of life of another node.
constexpr Seconds kThreeBeats{3};
/// After a death: how long ranks wait for the one that reports.
constexpr Seconds kReportOfLoss{1};
/// How long the end of the job waits for MPI.
constexpr Seconds kEnd{5};
/// How long a launcher gets to see for itself that a host is gone. It ends the job then; once ranks end before, Open MPI's mpirun wants
/// an answer of that host, and waits for it until TCP gives up, a quarter of an hour later.
constexpr Seconds kLauncher{60};
/// For the slowest emergency save.
constexpr Seconds kSaves{600};
/// The first may fail because a rank hears of the loss too late for the others. Once all have tried, they try together.
constexpr int kSaveAttempts = 2;
/// Records and report may take so long. Then the file system is taken for what hangs.
constexpr Seconds kReporting{30};
/// What the files of one more rank may take.
constexpr Seconds kEachRank{0.005};
/// What an alarm may take for one more node: it goes around the ring both ways, from look to look of the watchdogs.
constexpr Seconds kEachNode{0.05};
/// In larger jobs a record has fewer events, kEventsOfGroup of each group: one rank reads all records.
constexpr std::size_t kRanksInFull = 64;
constexpr std::ptrdiff_t kEventsOfGroup = 32;

/// Waits until `is_done`, at most for `limit`. @param num_ranks  that ask the same file system  @returns whether it is
template <class IsDone>
bool wait_until_done(Seconds limit, std::int64_t num_ranks, const IsDone& is_done) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (!is_done()) {
    if (std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(poll_interval(num_ranks));
  }
  return true;
}

/// Leaves the last kEventsOfGroup of each group.
void shorten(HangRecord& record) {
  std::vector<std::ptrdiff_t> left(record.groups.size(), kEventsOfGroup);
  std::vector<HangRecord::Event> kept;
  for (HangRecord::Event& event : std::ranges::reverse_view(record.events)) {
    if (left[event.group]-- > 0) kept.push_back(std::move(event));
  }
  record.events.assign(std::make_move_iterator(kept.rbegin()), std::make_move_iterator(kept.rend()));
}

std::string parent_of(const std::string& path) { return path.substr(0, path.rfind('/')); }

void print(const std::string& text) {
  std::fputs(text.c_str(), stderr);
  std::fflush(stderr);
}

/// What the rank that reports has found out; if it has not, what all records say.
HangSummary found_by_all(const std::vector<HangRecord>& of_node, const std::optional<HangFolder>& place) {
  if (!place) return summary_of(of_node);
  if (const std::optional<HangSummary> summary = place->read_summary()) return *summary;
  std::vector<HangRecord> records = place->read().records;
  std::ranges::copy_if(of_node, std::back_inserter(records),
                       [&](const HangRecord& own) { return !std::ranges::count(records, own.rank, &HangRecord::rank); });
  return summary_of(records);
}

void exit_after(Seconds time) {
  std::thread([time] {
    std::this_thread::sleep_for(time);
    ::_exit(kStatus);
  }).detach();
}

}  // namespace

JobEnd::Seconds limit_for(Seconds limit, std::int64_t num_ranks, int num_nodes) {
  return limit + static_cast<double>(num_ranks) * kEachRank + num_nodes * kEachNode;
}

void JobEnd::set_place(HangFolder place, std::string log_file) {
  const std::lock_guard lock(mutex_);
  place_ = std::move(place);
  log_file_ = std::move(log_file);
}

std::optional<HangFolder> JobEnd::place() const {
  const std::lock_guard lock(mutex_);
  return place_;
}

void JobEnd::set_save(Watchdog::Save save) {
  const std::lock_guard lock(saving_);
  save_ = std::move(save);
  can_save_ = can_save_ || save_;
}

JobEnd::Seconds JobEnd::for_all_ranks(Seconds limit) const { return limit_for(limit, std::ssize(hosts_), num_nodes_); }

void JobEnd::end(const std::string& alarm) {
  try {
    report_and_save(alarm);
  } catch (const std::exception& error) {
    print(fmt::format("mica: error: rank {}: {}: {}\n", logs_.rank(), alarm, message_for_user(error)));
  }
  end_process();
}

void JobEnd::report_and_save(const std::string& alarm) {
  logs_.own()->head().alarm.set(alarm);
  logs_.own()->head().has_alarm.store(1);
  if (ring_ != nullptr) {
    ring_->send_alarm(alarm);
    ring_->count_silent(kThreeBeats);
  }
  const std::optional<HangFolder> place = this->place();
  std::vector<HangRecord> of_node = make_records(alarm);
  guard_report(of_node);
  if (!place) {
    if (is_lowest_alive(of_node)) {
      tell(HangScene{hosts_, of_node, /*is_of_one_node=*/true}, std::nullopt);
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
  if (!lost.empty()) save(fmt::format("rank {} is lost", lost.begin()->first), linger, place, num_alive);
  std::this_thread::sleep_for(linger);
}

void JobEnd::guard_report(const std::vector<HangRecord>& of_node) {
  std::thread([this, of_node] {
    const Seconds records_then_report = for_all_ranks(for_all_ranks(kReporting));
    if (wait_until_done(records_then_report, 1, [&] { return is_reported_.load(); })) return;
    exit_after(kEnd);  // stderr may block, too
    if (is_lowest_alive(of_node)) {
      print(fmt::format("mica: error: the job hangs or has lost a rank, and its run's folder cannot be written: {}",
                        hang_report(HangScene{hosts_, of_node, /*is_of_one_node=*/true})));
    } else {
      std::this_thread::sleep_for(kReportOfLoss);
    }
    ::_exit(kStatus);
  }).detach();
}

std::vector<HangRecord> JobEnd::make_records(const std::string& alarm) const {
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

std::vector<HangRecord::Sighting> JobEnd::sightings_of(const std::vector<HangRecord>& of_node) const {
  std::vector<HangRecord::Sighting> sightings;
  for (const HangRecord& record : of_node) {
    if (record.health != RankHealth::alive) sightings.push_back({record.rank, record.health});
  }
  if (ring_ == nullptr) return sightings;
  for (const int rank : ring_->silent()) sightings.push_back({rank, RankHealth::silent});
  for (const int rank : ring_->gone()) sightings.push_back({rank, RankHealth::dead});
  return sightings;
}

bool JobEnd::is_lowest_alive(const std::vector<HangRecord>& of_node) const {
  const auto lowest = std::ranges::find(of_node, RankHealth::alive, &HangRecord::health);
  return lowest != of_node.end() && lowest->rank == logs_.rank();
}

void JobEnd::report_in(const HangFolder& place, std::vector<HangRecord>& of_node) {
  bool has_lost = false;
  try {
    const bool writes_for_others = is_lowest_alive(of_node);
    const std::set<int> written = place.ranks();
    for (const HangRecord& record : of_node) {
      has_lost |= counts_as_lost(record.health);
      const bool is_written = written.contains(record.rank);
      // Written by another rank while this one was stopped: that says more. A rank that ends gives no sign of life either.
      if (is_written && (record.rank == logs_.rank() || record.health == RankHealth::silent)) continue;
      if (record.rank == logs_.rank() || (writes_for_others && record.health != RankHealth::alive)) place.write(record);
    }
  } catch (const std::exception& error) {
    print(fmt::format("mica: error: rank {}: the records of this hang cannot be written: {}\n", logs_.rank(), error.what()));
  }
  const bool are_complete = wait_for_records(place, has_lost ? kRecordsOfLoss : for_all_ranks(kRecordsOfHang));
  if (!are_complete) add_silent_nodes(place, of_node);
  const std::optional<int> lowest = place.lowest_writer();
  if (lowest ? *lowest == logs_.rank() : is_lowest_alive(of_node)) {
    HangScene scene = place.read();
    scene.hosts = hosts_;
    if (!lowest) {  // nothing can be written there
      scene.records = of_node;
      scene.is_of_one_node = true;
    }
    tell(scene, place);
  } else {
    static_cast<void>(
        wait_until_done(for_all_ranks(has_lost ? kReportOfLoss : kReporting), std::ssize(hosts_), [&] { return place.has_report(); }));
  }
}

bool JobEnd::wait_for_records(const HangFolder& place, Seconds limit) {
  auto last = std::chrono::steady_clock::now();
  return wait_until_done(limit, std::ssize(hosts_), [&] {
    const auto now = std::chrono::steady_clock::now();
    if (ring_ != nullptr) ring_->exchange(now - std::exchange(last, now), Seconds(0), kReporting);
    return place.ranks().size() == hosts_.size();
  });
}

void JobEnd::add_silent_nodes(const HangFolder& place, std::vector<HangRecord>& of_node) {
  if (ring_ == nullptr) return;
  ring_->count_silent(kThreeBeats);
  const auto own = std::ranges::find(of_node, logs_.rank(), &HangRecord::rank);
  own->sightings = sightings_of(of_node);
  try {
    place.write(*own);
  } catch (const std::exception&) {  // it is told with the others
  }
}

void JobEnd::tell(const HangScene& scene, const std::optional<HangFolder>& place) const {
  const std::string report = hang_report(scene);
  const std::string where =
      place ? fmt::format("records: {}; mica-inspect hang {} prints this again\n", place->path(), parent_of(parent_of(place->path()))) : "";
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

void JobEnd::save(const std::string& why, Seconds linger, const std::optional<HangFolder>& place, int num_alive) {
  for (int attempt = 1; attempt <= kSaveAttempts; ++attempt) {
    {
      const std::lock_guard lock(saving_);
      if (!can_save_) return;
      if (save_) save_(why, linger);  // else its main thread has tried, and has given up
    }
    if (!place) return;
    try {
      place->write_unsaved(logs_.rank(), attempt);
      if (!wait_until_done(kSaves, std::ssize(hosts_), [&] { return place->num_unsaved(attempt) >= num_alive; })) return;
    } catch (const std::exception&) {  // then nobody can save there either
      return;
    }
  }
}

void JobEnd::end_process() {
  exit_after(kEnd);  // MPI may not come back
  mpi::Session::abort(kStatus);
}

}  // namespace mica::detail
