// SPDX-License-Identifier: Apache-2.0
// What ends a run before its last step: signals, time limits, starts without progress.
#include "mica/checkpoint/async_saver.hpp"
#include "mica/train/trainer.hpp"

#include "save_estimate.hpp"
#include "start_record.hpp"

namespace mica::train {

void Trainer::note_start() {
  if (start_step() >= config_.train.steps) return;
  app_.comm.from_first_rank([&] {
    StartRecord(config_.run_folder()).begin(start_step(), to_ini(config_));
    return std::string();
  });
}

void Trainer::withdraw_start_if_refused(const std::exception& error) const {
  const auto* ours = dynamic_cast<const Error*>(&error);
  const bool is_refused = ours != nullptr && ours->exit_code() == ExitCode::user_mistake;
  const bool is_mine_to_tell = is_main() || !app_.comm.is_shared(error);
  if (is_refused && is_mine_to_tell) StartRecord(config_.run_folder()).withdraw();
}

void Trainer::estimate_save() {
  if (app_.world.all_max(time_limit_.is_set() ? 1 : 0) == 0) return;
  const std::int64_t shard_bytes = checkpoint::snapshot_bytes(*model_.root, saved_optimizer(SaveKind::to_resume));
  time_limit_.estimate_save(train::estimate_save(app_.comm, disk_of_checkpoints(config_.run_folder()), shard_bytes));
}

Request Trainer::agree_on_request(RequestPace& pace, std::int64_t at) {
  const Clock::time_point now = asked_at_ = Clock::now();
  num_saves_to_do_ = saver_ && saver_->is_under_way() ? 2 : 1;
  Request mine = Request::none;
  if (is_main()) {  // rank 0's clock decides
    mine = request_of_clocks(time_limit_, config_.checkpoint.interval_minutes, now - start_, now - last_save_begin_, num_saves_to_do_);
  }
  if ((saver_ && saver_->is_failed()) || folder_->is_lost()) mine = std::max(mine, Request::look);
  if (StopSignal::received() != 0 || lacks_next_batch()) mine = Request::stop;
  const std::int64_t maximum = app_.world.all_max(pace.encode(mine, at, now));
  return pace.agree(maximum, at, Clock::now());
}

bool Trainer::lacks_next_batch() const { return last_done_ < config_.train.steps && runner_->batches().lacks(last_done_ + 1); }

bool Trainer::stops_while_starting() const {
  if (app_.world.all_max(StopSignal::received()) == 0) return false;
  const std::string reason = reason_to_stop();
  logger_.info("stopped before step {} of {}, while the run started: {}; start the same command again", start_step() + 1,
               config_.train.steps, reason);
  return true;
}

std::string Trainer::reason_to_stop() const {
  constexpr std::int64_t kRanks = std::int64_t{1} << 32;
  const std::int64_t heard = app_.world.all_max(StopSignal::received() * kRanks + app_.world.rank());  // the highest rank that got one
  if (heard >= kRanks) return fmt::format("{} on rank {}", signal_name(static_cast<int>(heard / kRanks)), heard % kRanks);
  const std::int64_t lacking = app_.world.all_max(lacks_next_batch() ? app_.world.rank() : -1);
  if (lacking >= 0) return fmt::format("rank {} cannot read its next batch", lacking);
  return time_limit_.reason_to_stop(Clock::now() - start_, num_saves_to_do_);
}

}  // namespace mica::train
