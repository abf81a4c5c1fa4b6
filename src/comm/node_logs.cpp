// SPDX-License-Identifier: Apache-2.0
#include "node_logs.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "mica/core/host.hpp"
#include "mica/core/process_stat.hpp"
#include "mica/core/steady_ns.hpp"

#include "shared_file.hpp"

namespace mica::detail {
namespace {

/// A rank without a heartbeat for this long is silent, even if its process exists.
constexpr std::int64_t kSilenceNs = 5'000'000'000;

/// Each group has a table of its members. In jobs larger than this, a log has fewer groups, or it would take megabytes.
constexpr int kSmallWorld = 1024;
constexpr std::size_t kGroupsOfLarge = 32;

/// Inode of the process's pid namespace; "" if unknown.
std::string pid_namespace() {
  struct stat info {};
  return ::stat("/proc/self/ns/pid", &info) == 0 ? std::to_string(info.st_ino) : "";
}

/// Null if /dev/shm has no room or does not exist.
std::shared_ptr<std::byte> make_file(SharedFile& file, std::size_t bytes) {
  if (static_cast<std::int64_t>(bytes) > max_file_bytes()) return nullptr;
  file = SharedFile::make();
  // Allocate all pages now: later, a write without room would end the process (SIGBUS).
  if (!file || ::posix_fallocate(file.fd(), 0, static_cast<off_t>(bytes)) != 0) return nullptr;
  return file.map(bytes, PROT_READ | PROT_WRITE);
}

}  // namespace

NodeLogs::NodeLogs(const mpi::Communicator& world) : rank_(world.rank()) {
  const std::size_t num_groups = world.num_ranks() > kSmallWorld ? kGroupsOfLarge : FlightLog::kGroups;
  const std::size_t bytes = FlightLog::bytes_for(FlightLog::kEvents, num_groups, world.num_ranks());
  SharedFile own;
  if (std::shared_ptr<std::byte> memory = make_file(own, bytes)) {
    own_ = std::make_shared<FlightLog>(std::move(memory), FlightLog::kEvents, num_groups, world.num_ranks());
  } else {
    own.remove_name();
    own_ = FlightLog::make_private(FlightLog::kEvents, num_groups, world.num_ranks());
  }
  FlightHead& head = own_->head();
  head.rank.store(rank_);
  head.heartbeat_ns.store(steady_ns());
  if (const auto self = process_stat(::getpid())) {
    head.start_ticks.store(static_cast<std::int64_t>(self->start_ticks));
    head.pid.store(::getpid());
  }
  const mpi::Communicator node = world.split_node();
  if (node.rank() == 0) SharedFile::remove_leftovers();
  ranks_ = node.ranks_in(world);
  const std::vector<std::string> names = node.gather_strings(own.name()), namespaces = node.gather_strings(pid_namespace());
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (ranks_[i] == rank_ || names[i].empty()) continue;
    std::shared_ptr<std::byte> memory = SharedFile::open(names[i], O_RDONLY).map(bytes, PROT_READ);
    if (memory == nullptr) continue;
    auto log = std::make_unique<FlightLog>(std::move(memory), FlightLog::kEvents, num_groups, world.num_ranks());
    const auto stat = process_stat(static_cast<pid_t>(log->head().pid.load()));
    const bool has_same_pids = namespaces[i] == pid_namespace();
    shares_pids_[ranks_[i]] = has_same_pids && stat && static_cast<std::int64_t>(stat->start_ticks) == log->head().start_ticks.load();
    others_[ranks_[i]] = std::move(log);
  }
  node.barrier();  // all ranks have opened the files
  std::ranges::sort(ranks_);
}

const FlightLog* NodeLogs::log_of(int rank) const {
  if (rank == rank_) return own_.get();
  const auto found = others_.find(rank);
  return found == others_.end() ? nullptr : found->second.get();
}

RankHealth NodeLogs::health_of(int rank, std::int64_t now_ns) const {
  const FlightLog* const log = log_of(rank);
  if (rank == rank_ || log == nullptr || log->head().phase.load() == static_cast<std::uint8_t>(RankPhase::ended)) return RankHealth::alive;
  if (shares_pids_.at(rank)) {
    const auto pid = static_cast<pid_t>(log->head().pid.load());
    const auto stat = process_stat(pid);
    // Without a free file descriptor /proc cannot be read, though the process exists.
    if (!stat && (::kill(pid, 0) == 0 || errno != ESRCH)) return RankHealth::alive;
    const bool is_gone =
        !stat || static_cast<std::int64_t>(stat->start_ticks) != log->head().start_ticks.load() || stat->state == 'Z' || stat->state == 'X';
    // Read the phase again: it may have exited by itself in between.
    if (is_gone) return log->head().phase.load() == static_cast<std::uint8_t>(RankPhase::ended) ? RankHealth::alive : RankHealth::dead;
    if (stat->state == 'T' || stat->state == 't') return RankHealth::stopped;
  }
  return now_ns - log->head().heartbeat_ns.load() > kSilenceNs ? RankHealth::silent : RankHealth::alive;
}

}  // namespace mica::detail
