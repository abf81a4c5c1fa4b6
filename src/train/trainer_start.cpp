// SPDX-License-Identifier: Apache-2.0
// Everything before a run's first step but what it prints: construction, checks, resume.
#include <algorithm>
#include <cstdlib>
#include <vector>

#include "mica/checkpoint/folder.hpp"
#include "mica/checkpoint/init_from.hpp"
#include "mica/checkpoint/save.hpp"
#include "mica/core/host.hpp"
#include "mica/core/version.hpp"
#include "mica/data/tokenizer_json.hpp"
#include "mica/io/atomic_file.hpp"
#include "mica/launch/checks.hpp"
#include "mica/train/trainer.hpp"

#include "memory_check.hpp"

namespace mica::train {
namespace {

/// Runs a member initialiser on all ranks; if it throws on one, all throw.
template <class Make>
auto make_on_all_ranks(const HostComm& comm, Make&& make) {
  std::optional<decltype(make())> made;
  comm.agree([&] { made.emplace(make()); });
  return std::move(*made);
}

/// A run that resumes on another number of ranks keeps its global batch. @returns the largest micro-batch, up to the config's, that divides
/// it; the config's if none does.
std::int64_t fitting_micro_batch(const Config::Train& train, int num_ranks) {
  for (std::int64_t micro_batch = train.micro_batch; micro_batch > 0; --micro_batch) {
    if (train.global_batch % (micro_batch * num_ranks) == 0) return micro_batch;
  }
  return train.micro_batch;
}

data::BatchPlan make_plan(const Config& config, const StartPoint& start, bool is_adopted, std::int64_t sequences_before, int num_ranks) {
  const Config::Train& train = config.train;
  const std::int64_t micro_batch = start.manifest ? fitting_micro_batch(train, num_ranks) : train.micro_batch;
  if (is_adopted && train.global_batch % (micro_batch * num_ranks) != 0) {
    throw ConfigError(fmt::format("{} was saved with {} sequences per step, which do not divide among {} ranks; keep it {}",
                                  start.checkpoint, train.global_batch, num_ranks,
                                  data::ways_to_keep_batch(1, num_ranks, train.global_batch)));
  }
  data::BatchPlan plan = data::make_batch_plan(micro_batch, num_ranks, train.global_batch);
  constexpr std::int64_t kMostRounds = 100'000;
  require<ConfigError>(plan.accumulation <= kMostRounds,
                       "train.global_batch = {} is {} micro-batches per step on each rank, expected at most {}: lower it or "
                       "raise train.micro_batch",
                       config.train.global_batch, plan.accumulation, kMostRounds);
  require_accumulates(config, plan);
  if (start.manifest) plan.first_step = start.manifest->step + 1;
  plan.sequences_before = sequences_before;
  return plan;
}

/// Whether data.train was made with another tokenizer than the model's tokenizer.json. False where one of them is not known.
bool is_of_another_tokenizer(const data::TokenDataset& dataset, const checkpoint::HfTokenizer& of_model) {
  const auto json = of_model.files.find("tokenizer.json");
  const auto file = std::ranges::find_if(dataset.files(), [](const data::TokenFile& each) { return !each.tokenizer_hash().empty(); });
  if (json == of_model.files.end() || file == dataset.files().end()) return false;
  try {
    return data::parse_tokenizer_json(json->second, json->first)->hash() != file->tokenizer_hash();
  } catch (const ConfigError&) {  // of a kind that mica-tokenize does not take
    return false;
  }
}

}  // namespace

Trainer::Trainer(App& app, const Config& config, StartPoint start, Logger logger, StartTimes& times)
    : app_(app),
      times_(times),
      start_point_(std::move(start)),
      config_(make_on_all_ranks(
          app.comm,
          [&] { return start_point_.manifest ? with_batch_of(config, *start_point_.manifest, start_point_.checkpoint) : config; })),
      logger_(std::move(logger)),
      device_(Device::make(config, app.session, app.world, logger_)),
      datasets_(make_on_all_ranks(app.comm,
                                  [&] {
                                    times.end("device and mesh");
                                    return Datasets::open(config);
                                  })),
      data_fingerprint_(app.comm.from_first_rank([&] { return datasets_.train.fingerprint(); })),
      val_fingerprint_(app.comm.from_first_rank([&] { return datasets_.val ? datasets_.val->fingerprint() : ""; })),
      continuation_(make_on_all_ranks(app.comm,
                                      [&] {
                                        times.end("data");
                                        if (!start_point_.manifest) return Continuation{};
                                        return check_resume(config_, *start_point_.manifest,
                                                            {data_fingerprint_, datasets_.train.num_tokens()}, start_point_.checkpoint);
                                      })),
      plan_(make_on_all_ranks(app.comm,
                              [&] {
                                const bool is_adopted = start_point_.manifest && config.train.global_batch == 0;
                                return make_plan(config_, start_point_, is_adopted, continuation_.sequences, app.world.num_ranks());
                              })),
      model_(make_on_all_ranks(app.comm, [&] { return ShardedModel::make(config, device_); })),
      schedule_(make_on_all_ranks(app.comm, [&] { return make_schedule(config); })),
      start_plan_(make_on_all_ranks(app.comm, [&] { return make_start_plan(config, device_, model_, plan_); })),
      run_id_(app.world.broadcast_string(checkpoint::make_run_id(), 0)),
      judge_(config.train.grad_norm_spike),
      tokens_before_(start_point_.manifest ? start_point_.manifest->tokens : 0),
      time_limit_(make_on_all_ranks(app.comm, [&] {
        if (app.world.rank() != 0) return TimeLimit();
        using SystemClock = std::chrono::system_clock;
        const auto start = SystemClock::now() - std::chrono::duration_cast<SystemClock::duration>(Clock::now() - start_);
        return TimeLimit(config.train.max_hours, std::getenv("SLURM_JOB_END_TIME"), start);
      })) {
  check_same_data();
  times.end("model and plan");
  config_.train.global_batch = plan_.global_batch();
  config_.run.take_over = false;  // for this launch only: not for config.resolved.cfg
}

void Trainer::check_same_data() const {
  const std::string advice = "copy one set of token files to all nodes, or use one on a file system that they share";
  std::vector<launch::Check> checks{launch::same_value(
      "data.train", [&] { return datasets_.train.copy_fingerprint(); }, advice)};
  if (datasets_.val)
    checks.push_back(launch::same_value(
        "data.val", [&] { return datasets_.val->copy_fingerprint(); }, advice));
  launch::LaunchChecks(app_.world).run(checks);
}

void Trainer::check_disk() const {
  const std::int64_t mine = checkpoint::snapshot_bytes(*model_.root, saved_optimizer(SaveKind::to_resume));
  app_.comm.agree([&] {
    require<ConfigError>(
        mine <= max_file_bytes(),
        "a file of this run's checkpoints takes {} bytes, but files may have at most {} bytes here (ulimit -f): raise that", mine,
        max_file_bytes());
  });
  const std::int64_t bytes = app_.world.all_sum(mine);
  app_.comm.from_first_rank([&] {
    check_disk_space(disk_of_checkpoints(config_.run_folder()), bytes, "a checkpoint of this run");
    return std::string();
  });
}

void Trainer::warn_of_refusals() const {
  const auto warn_if_refused = [&](const std::function<void()>& check) {
    try {
      check();
    } catch (const ConfigError& error) {  // every rank's
      if (is_main()) logger_.warn("without --check this run would be refused here: {}", error.what());
    }
  };
  warn_if_refused([&] { check_memory(app_.world, config_, device_, plan_, start_plan_); });
  warn_if_refused([&] {
    app_.comm.agree([&] {
      if (is_main()) check_run_folder(config_.run_folder());
    });
  });
  warn_if_refused([&] { check_disk(); });
}

void Trainer::resume() {
  model_.root->initialize({.seed = config_.run.seed, .zeros = start_point_.manifest || !config_.model.init_from.empty()});
  times_.end("initialization");
  if (!start_point_.manifest) {
    init_parameters();
    return;
  }
  const std::string& folder = start_point_.checkpoint;
  const checkpoint::Manifest& manifest = *start_point_.manifest;
  app_.comm.agree([&] {
    require<ConfigError>(!manifest.optimizer.empty(),
                         "{} holds the model only, without the optimizer state (checkpoint.optimizer = false, or it was imported): a run "
                         "cannot resume from it; name a checkpoint that has it, if there is one, or start a run in another run.dir with "
                         "--model.init_from={}",
                         folder, folder);
    model_.optimizer->allocate_state();
  });
  app_.comm.agree([&] {
    const checkpoint::LoadReport report = load(folder, manifest);
    if (model_.scaler && continuation_.is_loss_scale_new) model_.scaler->set_state({config_.optim.loss_scale, 0});
    tokenizer_ = report.tokenizer;
    parent_ = manifest.id();
    last_saved_ = manifest.step;
    has_diverged_ = manifest.diverged;
    if (!is_main()) return;
    logger_.info("resume   {}: step {} of {} is done, written by {} ranks ({} x {}), {} read and checked in {:.0f} ms", folder,
                 manifest.step, config_.train.steps, manifest.world_size, manifest.shard_size, manifest.replicas,
                 plan::format_bytes(manifest.total_bytes()), report.ms);
    for (const std::string& note : report.notes) logger_.warn("{}", note);
  });
  times_.end("checkpoint");
}

checkpoint::LoadReport Trainer::load(const std::string& folder, const checkpoint::Manifest& manifest) {
  checkpoint::LoadReport report = checkpoint::load(
      folder, manifest, {.root = model_.root, .optimizer = model_.optimizer.get(), .omp_threads = device_.num_threads}, app_.comm);
  if (model_.scaler && manifest.scalars.contains("loss_scale")) {
    model_.scaler->set_state(
        {manifest.scalars.at("loss_scale"), static_cast<std::int64_t>(manifest.scalars.at("loss_scale_growth_tracker"))});
  }
  judge_.restore(manifest.scalars);
  return report;
}

void Trainer::begin_files() {
  app_.comm.agree([&] {
    if (!is_main()) {
      metrics_ = std::make_unique<MetricsFile>("", [](const std::string&) {});
      return;
    }
    folder_->check_owner();
    const std::string set_aside = folder_->set_aside_after(start_point_.last_of_line);
    if (!set_aside.empty()) {
      logger_.warn("went back to step {}: later checkpoints and metrics are now in {}", last_done_, set_aside);
    }
    // Only now: a config that does not fit the folder's checkpoints must not replace theirs.
    Config of_run = config_;
    if (of_run.checkpoint.resume == "none") of_run.checkpoint.resume = "auto";  // which goes on where this launch has begun
    io::write_file_atomically(config_.run_folder() + "/config.resolved.cfg", to_ini(of_run, IniKeys::explained));
    open_metrics();
    if (start_point_.manifest) {
      metrics_->write_resumed(
          {.from = last_done_, .checkpoint = start_point_.checkpoint, .num_ranks = app_.world.num_ranks(), .set_aside = set_aside});
    }
    write_started();
  });
}

void Trainer::write_started() {
  metrics_->write_started({.step = last_done_,
                           .version = std::string(full_version()),
                           .num_ranks = app_.world.num_ranks(),
                           .last_step = config_.train.steps,
                           .device = device_.describe(),
                           .planned = start_plan_.memory.peak_by_role,
                           .planned_peak = start_plan_.memory.peak});
  told_start_ = last_done_;
}

void Trainer::init_parameters() {
  if (config_.model.init_from.empty()) return;
  app_.comm.agree([&] {
    const checkpoint::InitReport report =
        checkpoint::init_from(config_.model.init_from, model_description(config_), *model_.root, app_.comm);
    tokenizer_ = report.tokenizer;
    if (!is_main()) return;
    logger_.info("start    with the {} parameters of {}, read in {:.0f} ms", report.numel, report.source, report.ms);
    if (tokenizer_ && is_of_another_tokenizer(datasets_.train, *tokenizer_)) {
      logger_.warn("data.train was made with another tokenizer than the tokenizer.json that came with {}: its ids mean other text there",
                   report.source);
    }
  });
  times_.end("model.init_from");
}

void Trainer::make_runner() {
  runner_ = std::make_unique<StepRunner>(config_, model_, datasets_.train, plan_, device_.mesh->rank());
  StepHooks hooks;
  if (config_.train.on_bad_step != "none") {
    hooks.accept = [this](std::int64_t step, const StepFigures& figures) { return accept(step, figures); };
  }
  hooks.before_update = [this] {
    if (emergency_saver_) emergency_saver_->before_update();
  };
  hooks.after_update = [this] {
    if (emergency_saver_) emergency_saver_->after_update(steps_done(last_done_ + 1));
  };
  runner_->set_hooks(std::move(hooks));
}

void Trainer::prepare() {
  progress_ = std::make_unique<Progress>(is_main() ? logger_ : Logger(), config_.train.steps, is_main() && Progress::is_on_terminal());
  last_done_ = start_step();
  if (last_done_ >= config_.train.steps) return;
  resume();
  check_disk();
  prepare_background_saves();
  make_runner();
  if (config_.train.on_bad_step != "none") {
    app_.comm.agree(
        [&] { model_.optimizer->allocate_state(); });  // a skipped first step would not allocate it, and a checkpoint may follow
  }
  begin_files();  // last: a launch that is refused changes nothing
  times_.end("run folder");
  prepare_emergency_saves();
}

}  // namespace mica::train
