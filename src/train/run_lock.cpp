// SPDX-License-Identifier: Apache-2.0
#include "mica/train/run_lock.hpp"

#include <array>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>

#include <fcntl.h>
#include <fmt/chrono.h>
#include <nlohmann/json.hpp>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "mica/core/error.hpp"
#include "mica/core/host.hpp"
#include "mica/core/process_stat.hpp"
#include "mica/core/unique_fd.hpp"
#include "mica/io/json.hpp"
#include "mica/io/raw_file.hpp"

namespace mica::train {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// --- who owns a lock -------------------------------------------------------------------------------------------------

/// What /proc says about a process.
struct ProcessStatus {
  enum class Life : std::uint8_t { running, exiting, gone, unknown } life = Life::gone;
  /// When it started, in clock ticks since boot: a process id alone may have been reused since.
  std::string start;
};

ProcessStatus status_of(pid_t pid) {
  using Life = ProcessStatus::Life;
  const std::optional<ProcessStat> stat = process_stat(pid);
  if (!stat) {
    const bool exists = ::kill(pid, 0) == 0 || errno == EPERM;  // /proc may hide the processes of other users
    return {exists ? Life::unknown : Life::gone, ""};
  }
  constexpr unsigned long kExiting = 0x4;                         // the kernel's PF_EXITING
  const bool is_dead = stat->state == 'Z' || stat->state == 'X';  // a zombie: nobody has waited for it
  return {is_dead ? Life::gone : (stat->flags & kExiting) != 0 ? Life::exiting : Life::running, std::to_string(stat->start_ticks)};
}

/// The process that owns a lock, as the lock records it.
struct Owner {
  std::string host, boot, pid_namespace, process_start, since, job;
  pid_t pid = 0;

  static Owner self() {
    std::error_code none;
    const char* slurm = std::getenv("SLURM_JOB_ID");
    return {.host = host_name(),
            .boot = boot_id(),
            .pid_namespace = fs::read_symlink("/proc/self/ns/pid", none).string(),
            .process_start = status_of(::getpid()).start,
            .since = fmt::format("{:%Y-%m-%d %H:%M:%S} UTC", fmt::gmtime(std::time(nullptr))),
            .job = slurm != nullptr ? fmt::format("Slurm job {}", slurm) : "",
            .pid = ::getpid()};
  }

  /// Unknown for a process on another host or in another container.
  [[nodiscard]] ProcessStatus::Life life_seen_by(const Owner& self) const {
    if (boot.empty() || boot != self.boot || pid_namespace != self.pid_namespace) return ProcessStatus::Life::unknown;
    const ProcessStatus status = status_of(pid);
    const bool is_another = !status.start.empty() && status.start != process_start;
    return is_another ? ProcessStatus::Life::gone : status.life;
  }
  [[nodiscard]] std::string describe() const {
    return fmt::format("{}process {} on host {}, since {}", job.empty() ? "" : job + ", ", pid, host, since);
  }
  friend bool operator==(const Owner&, const Owner&) = default;
};

/// The text of a lock. It always has the same length, so that it can be overwritten in place.
std::string lock_text(const Owner& owner, std::int64_t heartbeat) {
  constexpr std::size_t kBytes = 1024;
  const nlohmann::ordered_json json{{"host", owner.host},
                                    {"pid", owner.pid},
                                    {"since", owner.since},
                                    {"job", owner.job},
                                    {"boot", owner.boot},
                                    {"pid_namespace", owner.pid_namespace},
                                    {"process_start", owner.process_start},
                                    {"heartbeat", heartbeat}};
  std::string text = json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  text.resize(std::max(text.size() + 1, kBytes), ' ');
  text.back() = '\n';
  return text;
}

/// Nothing if the text is not a lock or is only partly written. That is not an error; the owner is unknown.
std::optional<Owner> parse_owner(const std::string& text) {
  try {
    const auto json = io::JsonValue::parse<ConfigError>(text, "run.lock");
    return Owner{.host = json["host"].text(),
                 .boot = json["boot"].text(),
                 .pid_namespace = json["pid_namespace"].text(),
                 .process_start = json["process_start"].text(),
                 .since = json["since"].text(),
                 .job = json["job"].text(),
                 .pid = static_cast<pid_t>(json["pid"].integer(1, std::numeric_limits<pid_t>::max()))};
  } catch (const ConfigError&) {
    return std::nullopt;
  }
}

/// A lock's content and time of writing. Reopening the file makes NFS ask the server.
struct Look {
  std::string text;
  timespec written{};
};

std::optional<Look> look_at(const UniqueFd& fd, const std::string& path) {
  if (!fd && errno == ENOENT) return std::nullopt;
  if (!fd) throw IoError(io::io_error_text(path, "open", errno));
  Look look;
  std::array<char, 4096> text{};
  const ssize_t bytes = ::pread(fd.get(), text.data(), text.size(), 0);
  struct stat status {};
  if (bytes < 0 || ::fstat(fd.get(), &status) != 0) {
    if (errno == ESTALE) return std::nullopt;  // NFS: replaced or deleted meanwhile
    throw IoError(io::io_error_text(path, "read", errno));
  }
  look.text.assign(text.data(), static_cast<std::size_t>(bytes));
  look.written = status.st_mtim;
  return look;
}

std::optional<Look> look_at(const std::string& path) { return look_at(UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC)), path); }

milliseconds between(const timespec& a, const timespec& b) {
  return milliseconds((b.tv_sec - a.tv_sec) * 1000 + (b.tv_nsec - a.tv_nsec) / 1'000'000);
}

void write_text(const UniqueFd& fd, const std::string& path, const std::string& text) {
  if (::pwrite(fd.get(), text.data(), text.size(), 0) == static_cast<ssize_t>(text.size())) return;
  throw IoError(io::io_error_text(path, "write", errno));
}

[[noreturn]] void refuse(const std::string& path, const std::optional<Look>& look) {
  const std::optional<Owner> owner = look ? parse_owner(look->text) : std::nullopt;
  throw ConfigError(fmt::format(
      "run folder {} is in use by another job: {} ({}); wait for it to finish, stop it, or choose another folder with --run.dir=FOLDER",
      fs::path(path).parent_path().string(), owner ? owner->describe() : "unknown", path));
}

// --- acquiring a lock ---------------------------------------------------------------------------------------------------

class Acquisition {
 public:
  Acquisition(const std::string& run_folder, const RunLockOptions& options)
      : path_(run_folder + "/run.lock"), own_path_(fmt::format("{}.{}-{}", path_, self_.host, self_.pid)), options_(options) {}
  ~Acquisition() { ::unlink(own_path_.c_str()); }
  Acquisition(const Acquisition&) = delete;
  Acquisition& operator=(const Acquisition&) = delete;

  Owner run() {
    while (!create()) {
      const std::optional<Look> look = look_at(path_);
      if (!look) continue;
      const std::optional<Owner> owner = parse_owner(look->text);
      const bool is_known = owner && owner->life_seen_by(self_) != ProcessStatus::Life::unknown;
      const bool is_free = is_known ? has_ended(*owner) : is_lost(*look);
      if (is_free && replace(*look, is_known)) break;
    }
    return self_;
  }

 private:
  /// @returns false if there is a lock already.
  bool create() const {
    const UniqueFd fd(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (!fd && errno == EEXIST) return false;
    if (!fd) throw IoError(io::io_error_text(path_, "creation", errno));
    try {
      write_text(fd, path_, lock_text(self_, 0));
    } catch (...) {
      ::unlink(path_.c_str());
      throw;
    }
    return true;
  }
  void write_own() const {
    const UniqueFd fd(::open(own_path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
    if (!fd) throw IoError(io::io_error_text(own_path_, "creation", errno));
    write_text(fd, own_path_, lock_text(self_, 0));
  }

  /// For an owner on this host. Waits for one that is exiting (mpirun ends before the ranks that it has killed, and the kernel may take a
  /// while to free their memory). Refuses if it is alive. @returns false if the lock has changed.
  bool has_ended(const Owner& owner) const {
    const Clock::time_point start = Clock::now();
    for (;;) {
      const ProcessStatus::Life life = owner.life_seen_by(self_);
      if (life == ProcessStatus::Life::gone) return true;
      const std::optional<Look> look = look_at(path_);
      if (!look || parse_owner(look->text) != owner) return false;
      if (life == ProcessStatus::Life::running && Clock::now() - start > options_.heartbeat) refuse(path_, look);
      std::this_thread::sleep_for(options_.heartbeat / 100);
    }
  }

  /// For an owner whose process cannot be seen: watches the lock for heartbeats. @returns false if the lock is gone. Refuses if the owner
  /// is alive.
  bool is_lost(const Look& first) {
    write_own();
    const std::optional<Look> now = look_at(own_path_);
    const milliseconds age = now ? between(first.written, now->written) : milliseconds(0);
    ::unlink(own_path_.c_str());
    const Clock::time_point start = Clock::now();
    bool has_told = false;
    for (;;) {
      std::this_thread::sleep_for(options_.heartbeat / 8);
      const std::optional<Look> look = look_at(path_);
      if (!look) return false;
      if (look->text != first.text) refuse(path_, look);
      const auto watched = std::chrono::duration_cast<milliseconds>(Clock::now() - start);
      if (watched < 3 * options_.heartbeat) continue;
      if (options_.take_over || age + watched >= options_.lost_after) return true;
      if (std::exchange(has_told, true)) continue;
      const std::optional<Owner> owner = parse_owner(first.text);
      options_.tell(
          fmt::format("{} belongs to a job that has stopped updating it ({}); taking over once it has been silent for {} s, in {} s "
                      "(--run.take_over=true: at once)",
                      path_, owner ? owner->describe() : "unknown", options_.lost_after.count() / 1000,
                      (options_.lost_after - age - watched).count() / 1000));
    }
  }

  /// Several newcomers may find the same owner dead. The last one to replace the lock gets it, and the others notice. One that can still
  /// replace this job's lock has looked at the lock before, and has made its own file before that look: if there is none, nobody can.
  /// @param is_of_this_host  the dead owner, and so most newcomers. This host may not see the file of one elsewhere, but that one has
  ///                         watched the lock for heartbeats; should both replace it in the same moment, check() finds out.
  /// @returns false if the lock has changed since it was seen.
  bool replace(const Look& seen, bool is_of_this_host) const {
    write_own();
    const std::optional<Look> now = look_at(path_);
    if (!now || now->text != seen.text) return false;
    if (::rename(own_path_.c_str(), path_.c_str()) != 0) throw IoError(io::io_error_text(path_, "rename of a file to it", errno));
    if (!is_of_this_host || sees_newcomers()) std::this_thread::sleep_for(options_.heartbeat / 4);
    const std::optional<Look> look = look_at(path_);
    if (!look || parse_owner(look->text) != self_) refuse(path_, look);
    return true;
  }
  [[nodiscard]] bool sees_newcomers() const {
    const fs::path lock(path_);
    const std::string begin = lock.filename().string() + ".";
    std::error_code error;
    for (fs::directory_iterator it(lock.parent_path(), error), end; !error && it != end; it.increment(error)) {
      if (it->path().filename().string().starts_with(begin)) return true;
    }
    return static_cast<bool>(error);  // there may be some
  }

  const Owner self_ = Owner::self();
  const std::string path_, own_path_;
  const RunLockOptions& options_;
};

}  // namespace

class RunLock::Owned {
 public:
  Owned(std::string path, Owner self, milliseconds heartbeat)
      : path_(std::move(path)),
        self_(std::move(self)),
        heartbeat_([this, heartbeat](const std::stop_token& stop) { beat(stop, heartbeat); }) {}
  ~Owned() {
    heartbeat_.request_stop();
    heartbeat_.join();
    try {
      if (is_mine(look_at(path_))) ::unlink(path_.c_str());
    } catch (const IoError&) {
      // The lock stays; the next job sees that this process is gone.
    }
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;

  void check() const {
    const std::optional<Look> look = look_at(path_);
    if (is_mine(look)) return;
    const std::optional<Owner> owner = look ? parse_owner(look->text) : std::nullopt;
    throw Error(fmt::format("this job has lost {}: {}; it ends so that two jobs do not write into one run folder", path_,
                            owner ? "another job has taken the folder over, " + owner->describe() : "the file is gone"));
  }
  [[nodiscard]] bool is_lost() const { return is_lost_; }

 private:
  [[nodiscard]] bool is_mine(const std::optional<Look>& look) const { return look && parse_owner(look->text) == self_; }

  void beat(const std::stop_token& stop, milliseconds interval) {
    std::mutex mutex;
    std::condition_variable_any stopped;
    for (std::int64_t count = 1;; ++count) {
      std::unique_lock lock(mutex);
      stopped.wait_for(lock, stop, interval, [] { return false; });
      if (stop.stop_requested()) return;
      try {  // one open file for both, so that a lock that replaced ours in between is not overwritten
        const UniqueFd fd(::open(path_.c_str(), O_RDWR | O_CLOEXEC));
        is_lost_ = !is_mine(look_at(fd, path_));
        if (!is_lost_) write_text(fd, path_, lock_text(self_, count));
      } catch (const IoError&) {
        // The file system may be unavailable for a moment; check() decides.
      }
    }
  }

  const std::string path_;
  const Owner self_;
  std::atomic<bool> is_lost_ = false;
  std::jthread heartbeat_;  // last: it uses the others
};

RunLock::RunLock(std::unique_ptr<Owned> owned) : owned_(std::move(owned)) {}
RunLock::RunLock(RunLock&&) noexcept = default;
RunLock& RunLock::operator=(RunLock&&) noexcept = default;
RunLock::~RunLock() = default;

RunLock RunLock::acquire(const std::string& run_folder, const RunLockOptions& options) {
  Owner self = Acquisition(run_folder, options).run();
  return RunLock(std::make_unique<Owned>(run_folder + "/run.lock", std::move(self), options.heartbeat));
}

std::string RunLock::owner_in(const std::string& run_folder) {
  const std::optional<Look> look = look_at(run_folder + "/run.lock");
  const std::optional<Owner> owner = look ? parse_owner(look->text) : std::nullopt;
  return owner ? fmt::format("{}, {} {}", owner->describe(), owner->boot, owner->process_start) : "";
}

bool RunLock::owner_has_died(const std::string& run_folder) {
  const std::string path = run_folder + "/run.lock";
  const std::optional<Look> look = look_at(path);
  const std::optional<Owner> owner = look ? parse_owner(look->text) : std::nullopt;
  const bool is_gone = owner && owner->life_seen_by(Owner::self()) == ProcessStatus::Life::gone;
  if (!is_gone) return false;
  const std::optional<Look> again = look_at(path);
  return again && again->text == look->text;  // it may have deleted the lock and ended since the first look, and another job begun
}

void RunLock::check() const { owned_->check(); }
bool RunLock::is_lost() const { return owned_->is_lost(); }

}  // namespace mica::train
