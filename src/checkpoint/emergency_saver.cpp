// SPDX-License-Identifier: Apache-2.0
#include "mica/checkpoint/emergency_saver.hpp"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <functional>
#include <future>
#include <map>
#include <optional>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

#include "mica/checkpoint/folder.hpp"
#include "mica/core/open_folder.hpp"
#include "mica/core/poll_interval.hpp"
#include "mica/core/unique_fd.hpp"
#include "mica/io/atomic_file.hpp"
#include "mica/io/raw_file.hpp"

#include "complete_checkpoint.hpp"
#include "model_index.hpp"
#include "shard_file.hpp"

namespace mica::checkpoint {
namespace {

namespace fs = std::filesystem;
using Clock = EmergencySaver::Clock;

constexpr std::chrono::milliseconds kPoll{20}, kSlowestPoll{1000};
/// Limit for the slowest rank to write its file.
constexpr std::chrono::minutes kMostWriting{10};
constexpr std::string_view kClaim = "claim-", kPart = "part-", kFailure = "failure-";

std::string numbered(std::string_view prefix, int shard_rank) { return fmt::format("{}{:05}", prefix, shard_rank); }

/// 0 if the folder cannot be listed: whoever waits for files there looks again.
int count_files(const std::string& folder, std::string_view prefix) {
  return static_cast<int>(names_with(folder, prefix).value_or(std::vector<std::string>()).size());
}

/// When ranks wrote why they could not write what they claimed, by the files' paths.
std::map<std::string, fs::file_time_type> failures_in(const std::string& folder) {
  std::map<std::string, fs::file_time_type> times;
  for (const std::string& name : names_with(folder, kFailure).value_or(std::vector<std::string>())) {
    std::error_code error;
    const fs::file_time_type time = fs::last_write_time(folder + "/" + name, error);
    if (!error) times.emplace(folder + "/" + name, time);  // else that rank tries again
  }
  return times;
}

/// On NFS only as this node last saw the folder that it is in: open_folder() asks the server.
bool exists(const std::string& path) {
  std::error_code none;
  return fs::exists(path, none);
}

/// Sleeps for `pause`, which then grows to `slowest`.
void sleep_longer_each_time(std::chrono::milliseconds& pause, std::chrono::milliseconds slowest) {
  std::this_thread::sleep_for(pause);
  pause = std::min(2 * pause, slowest);
}

/// Polls less and less often, in the end once per `slowest`: when many nodes poll for a file that does not exist yet, they slow the file
/// system down for the writers. @param check  throws if there is nothing more to wait for
void wait_until(const std::function<bool()>& is_done, const std::function<void()>& check, std::chrono::milliseconds slowest) {
  const auto deadline = Clock::now() + kMostWriting;
  for (std::chrono::milliseconds pause = kPoll; !is_done(); sleep_longer_each_time(pause, slowest)) {
    check();
    require(Clock::now() < deadline, "the ranks that are left have not written all parts within {} minutes", kMostWriting.count());
  }
}

bool is_unsharded(const fsdp::Root& root) {
  return std::ranges::all_of(unit_storages(root), [](const fsdp::UnitStorage* storage) { return storage->shard_size() == 1; });
}

}  // namespace

/// While it lives, masters and optimizer state stay as the last update left them.
class EmergencySaver::Frozen {
 public:
  explicit Frozen(EmergencySaver& saver) : saver_(saver) {
    std::unique_lock lock(saver_.mutex_);
    const bool is_over = saver_.changed_.wait_for(lock, kPatience, [&] { return !saver_.is_changing_; });
    require(is_over, "this rank's update of step {} does not end, so its parameters belong to no step", saver_.done_.step + 1);
    saver_.is_frozen_ = true;
    done_ = saver_.done_;
  }
  ~Frozen() {
    const std::lock_guard lock(saver_.mutex_);
    saver_.is_frozen_ = false;
    saver_.changed_.notify_all();
  }
  Frozen(const Frozen&) = delete;
  Frozen& operator=(const Frozen&) = delete;

  [[nodiscard]] const StepsDone& done() const { return done_; }

 private:
  EmergencySaver& saver_;
  StepsDone done_;
};

bool EmergencySaver::can_save(const fsdp::Root& root) {
  const Mesh& mesh = root.device_mesh().mesh();
  // A forward may move a buffer or change it while it is read.
  return root.buffers().entries().empty() && mesh.world_size() > 1 && (mesh.replicas() > 1 || is_unsharded(root));
}

EmergencySaver::EmergencySaver(const std::string& run_folder, const SaveState& state, std::function<void()> check_owner)
    : device_mesh_(state.root->device_mesh()), check_owner_(std::move(check_owner)), checkpoints_(checkpoints_folder(run_folder)) {
  require(state.root->buffers().entries().empty(), "a model with buffers cannot be saved in an emergency: see EmergencySaver::can_save()");
  const bool is_whole = is_unsharded(*state.root);
  job_ = std::make_unique<SaveJob>(describe_save(run_folder, state, is_whole ? 0 : device_mesh_.mesh().shard_rank()));
  if (is_whole) {  // then every rank is a replica, with any mesh
    job_->header.shard_size = 1;
    job_->header.replicas = job_->header.world_size;
  }
  if (job_->contents.shard_rank != 0) job_->tokenizer.reset();
  done_ = {.run_id = state.run_id,
           .step = state.step,
           .tokens = state.tokens,
           .sequences = state.sequences,
           .parent = state.parent,
           .optimizer_steps = job_->header.optimizer_steps,
           .parameter_steps = job_->header.parameter_steps,
           .scalars = state.scalars,
           .diverged = state.diverged};
}

EmergencySaver::~EmergencySaver() = default;

void EmergencySaver::before_update() {
  device_mesh_.compute().submit("masters change", {}, [this] {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !is_frozen_; });
    is_changing_ = true;
  });
}

void EmergencySaver::after_update(StepsDone done) {
  device_mesh_.compute().submit("masters changed", {}, [this, done = std::move(done)] {
    const std::lock_guard lock(mutex_);
    is_changing_ = false;
    done_ = done;
    changed_.notify_all();
  });
}

SaveReport EmergencySaver::save() {
  const std::lock_guard one_at_a_time(saving_);
  const auto start = Clock::now();
  const bool is_first_try = !std::exchange(has_tried_, true);
  for (bool sees_later = true;;) {
    StepsDone done;
    bool is_mine = false;
    SaveReport report;
    Claims claims = Claims::missing;
    int num_claimed = 0;
    std::future<FileEntry> index;  // of model.h5, on the rank that completes the checkpoint
    Failures earlier_failures;     // of an earlier try, by ranks that try again, too
    {
      const Frozen frozen(*this);
      done = frozen.done();
      set_run_id(done.run_id);
      const std::int64_t step = done.step;
      require(step > 0, "no step has been done yet, so there is nothing to save");
      report.path = folder_of(step);
      report.step = step;
      (void)open_folder(checkpoints_);
      if (exists(report.path)) return report;
      if (!is_first_try) earlier_failures = failures_of(step);
      is_mine = claim(step);
      claims = wait_for_claims(step, sees_later, num_claimed);
      if (claims == Claims::all && is_mine) {
        telling_others(step, [&] {
          job_->contents.step = step;
          io::make_folder(temporary_of(step));
          if (job_->contents.shard_rank == 0) {
            index = std::async(std::launch::async, [this, step] { return write_model_index(temporary_of(step), job_->contents); });
          }
          write_part(step, report);
        });
      }
    }
    if (claims == Claims::all || claims == Claims::saved) {
      if (finish(done, is_mine, earlier_failures, index, report)) {
        report.total_ms = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
        return report;
      }
      withdraw(done.step);
    }
    if (claims == Claims::missing) {
      withdraw(done.step);
      throw Error(fmt::format("of {} shards of step {} the ranks that are left have {}", job_->header.shard_size, done.step, num_claimed));
    }
    // If this rank cannot reach the later step, perhaps no other can: then wait for claims of this step only.
    sees_later = wait_for_update(done.step);
    if (sees_later) withdraw(done.step);
  }
}

bool EmergencySaver::finish(const StepsDone& done, bool is_mine, const Failures& earlier_failures, std::future<FileEntry>& index,
                            SaveReport& report) {
  const std::string parts = claims_of(done.step);
  const auto all_try_again_until = Clock::now() + kPatience;
  bool have_others_gone_on = false;
  const auto look_at_others = [&] {
    fail_with_others_since(Clock::now() < all_try_again_until ? earlier_failures : Failures(), done.step);
    const auto claimed = names_with(parts, kClaim);
    const bool is_claimed = !claimed || std::ssize(*claimed) == job_->header.shard_size;
    if (is_claimed || has_checkpoint(done.step)) return;  // in this order: whoever completes the checkpoint deletes the claims after it
    have_others_gone_on = exists(claims_of(done.step + 1));
    if (have_others_gone_on) return;
    withdraw(done.step);
    throw Error(fmt::format("a rank has given up its shard of step {}", done.step));
  };
  if (is_mine && job_->contents.shard_rank == 0) {
    // Only one rank waits here, and the launcher may leave it only a second.
    const auto is_written = [&] {
      return have_others_gone_on || count_files(parts, kPart) == job_->header.shard_size || has_checkpoint(done.step);
    };
    wait_until(is_written, look_at_others, kPoll);
    if (!have_others_gone_on && !has_checkpoint(done.step)) telling_others(done.step, [&] { complete(done, index.get(), report); });
  } else {
    wait_until([&] { return have_others_gone_on || has_checkpoint(done.step); }, look_at_others, kSlowestPoll);
  }
  if (have_others_gone_on) return false;
  if (!exists(report.path)) report.path = folder_of(++report.step);
  return true;
}

void EmergencySaver::set_run_id(const std::string& run_id) {
  if (run_id == job_->header.run_id) return;
  job_->header.run_id = job_->contents.run_id = run_id;
  claimed_.clear();
}

std::string EmergencySaver::folder_of(std::int64_t step) const { return checkpoints_ + "/" + step_folder_name(step); }

std::string EmergencySaver::claims_of(std::int64_t step) const {
  return fmt::format("{}.{}.claims.tmp", folder_of(step), job_->header.run_id);
}

std::string EmergencySaver::part_of(std::int64_t step, int shard_rank) const { return claims_of(step) + "/" + numbered(kPart, shard_rank); }

std::string EmergencySaver::temporary_of(std::int64_t step) const {
  return fmt::format("{}.{}.emergency.tmp", folder_of(step), job_->header.run_id);
}

bool EmergencySaver::claim(std::int64_t step) {
  if (claimed_.contains(step)) return true;
  io::make_folder(claims_of(step));
  const std::string path = claims_of(step) + "/" + numbered(kClaim, job_->contents.shard_rank);
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  // ENOENT: others have completed the checkpoint meanwhile, and deleted the claims.
  require<IoError>(fd || errno == EEXIST || errno == ENOENT, "{}", io::io_error_text(path, "creation", errno));
  if (fd) claimed_.insert(step);
  return static_cast<bool>(fd);
}

void EmergencySaver::withdraw(std::int64_t step) {
  if (claimed_.erase(step) == 0) return;
  std::error_code ignored;
  fs::remove(claims_of(step) + "/" + numbered(kClaim, job_->contents.shard_rank), ignored);
}

EmergencySaver::Claims EmergencySaver::wait_for_claims(std::int64_t step, bool sees_later, int& num_claimed) const {
  const auto deadline = Clock::now() + kPatience;
  const auto slowest = poll_interval(job_->header.world_size);
  for (std::chrono::milliseconds pause = kPoll; Clock::now() < deadline; sleep_longer_each_time(pause, slowest)) {
    num_claimed = std::max(num_claimed, count_files(claims_of(step), kClaim));  // others may give theirs up a moment earlier
    if (num_claimed >= job_->header.shard_size) return Claims::all;
    if (has_checkpoint(step)) return Claims::saved;  // and so the claims are gone, perhaps between two looks at them
    // In the folder that has_checkpoint() has just opened.
    if (sees_later && exists(claims_of(step + 1))) return Claims::later_step;
  }
  return Claims::missing;
}

bool EmergencySaver::wait_for_update(std::int64_t step) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, kPatience, [&] { return done_.step > step; });
}

EmergencySaver::Failures EmergencySaver::failures_of(std::int64_t step) const {
  Failures failures = failures_in(claims_of(step));
  failures.merge(failures_in(claims_of(step + 1)));  // of ranks that have gone on to the next step
  return failures;
}

void EmergencySaver::fail_with_others_since(const Failures& earlier, std::int64_t step) const {
  for (const auto& failure : failures_of(step)) {
    if (std::ranges::count(earlier, failure) > 0) continue;
    std::string text;
    try {
      text = io::read_file(failure.first);
    } catch (const IoError&) {  // that rank tries again
      continue;
    }
    throw Error(text);
  }
}

void EmergencySaver::telling_others(std::int64_t step, const std::function<void()>& work) const {
  const std::string told = claims_of(step) + "/" + numbered(kFailure, job_->contents.shard_rank);
  std::error_code ignored;
  fs::remove(told, ignored);  // of an earlier try
  try {
    work();
  } catch (const std::exception& failure) {
    if (!exists(part_of(step, job_->contents.shard_rank))) {  // then a full disk has room for the text
      fs::remove(temporary_of(step) + "/" + shard_file_name(job_->contents.run_id, step, job_->contents.shard_rank), ignored);
    }
    try {
      io::write_file_atomically(told, failure.what());
    } catch (const std::exception&) {  // then they wait until their limit
    }
    throw;
  }
}

void EmergencySaver::write_part(std::int64_t step, SaveReport& report) {
  const auto start = Clock::now();
  if (exists(part_of(step, job_->contents.shard_rank))) return;  // this is another try, since another rank has failed
  const FileEntry entry = write_shard_file(temporary_of(step), job_->contents, {});
  io::write_file_atomically(part_of(step, job_->contents.shard_rank), file_entry_text(entry));
  report.shard_bytes = entry.bytes;
  report.write_ms = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

void EmergencySaver::complete(const StepsDone& done, const FileEntry& index, SaveReport& report) {
  const std::int64_t step = done.step;
  std::vector<std::string> files;
  for (int shard = 0; shard < job_->header.shard_size; ++shard) {
    const std::string part = part_of(step, shard);
    files.push_back(io::read_file(part));
    std::error_code ignored;
    fs::remove(part, ignored);  // if this fails, the files that it tells of go, too
  }
  Manifest& header = job_->header;
  header.step = step;
  header.tokens = done.tokens;
  header.sequences = done.sequences;
  header.parent = done.parent;
  header.optimizer_steps = done.optimizer_steps;
  header.parameter_steps = done.parameter_steps;
  header.scalars = done.scalars;
  header.diverged = done.diverged;
  io::Publication publication(folder_of(step), temporary_of(step));
  const auto before_rename = [&](std::string_view point) {
    if (point == "before rename") check_owner_();
  };
  report.bytes = complete_checkpoint(*job_, files, index, /*retention=*/std::nullopt, publication, before_rename, report.notes);
  std::error_code ignored;  // if something stays, the next save deletes it (remove_leftovers)
  fs::remove_all(claims_of(step), ignored);
}

bool EmergencySaver::has_checkpoint(std::int64_t step) const {
  (void)open_folder(checkpoints_);
  return exists(folder_of(step)) || exists(folder_of(step + 1));
}

}  // namespace mica::checkpoint
