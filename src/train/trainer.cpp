// SPDX-License-Identifier: Apache-2.0
#include "mica/train/trainer.hpp"

#include <algorithm>

#include "mica/checkpoint/init_from.hpp"
#include "mica/checkpoint/load.hpp"
#include "mica/checkpoint/save.hpp"
#include "mica/core/version.hpp"
#include "mica/fsdp/replica_drift.hpp"
#include "mica/io/atomic_file.hpp"
#include "mica/tensor/fetch.hpp"

#include "memory_check.hpp"

namespace mica::train {
namespace {

/// Runs the set-up work of a member initialiser on all ranks together.
template <class Make>
auto made_together(const HostComm& comm, Make&& make) {
  std::optional<decltype(make())> made;
  comm.agree([&] { made.emplace(make()); });
  return std::move(*made);
}

data::BatchPlan make_plan(const Config& config, const StartPoint& start, bool is_adopted, std::int64_t sequences_before, int num_ranks) {
  const Config::Train& train = config.train;
  if (is_adopted && train.global_batch % (train.micro_batch * num_ranks) != 0) {
    const std::string ways = data::ways_to_keep_batch(train.micro_batch, num_ranks, train.global_batch);
    throw ConfigError(
        fmt::format("{} was saved with {} sequences a step, a batch that train.micro_batch x ranks = {} x {} "
                    "does not divide{}{}",
                    start.checkpoint, train.global_batch, train.micro_batch, num_ranks, ways.empty() ? "" : "; keep it ", ways));
  }
  data::BatchPlan plan = data::make_batch_plan(train.micro_batch, num_ranks, train.global_batch);
  constexpr std::int64_t kMostRounds = 100'000;
  require<ConfigError>(plan.accumulation <= kMostRounds,
                       "train.global_batch = {} is {} micro-batches a step on each rank, expected at most {}: lower it or "
                       "raise train.micro_batch",
                       config.train.global_batch, plan.accumulation, kMostRounds);
  require<ConfigError>(!config.optim.in_backward || plan.accumulation == 1 || config.train.gradient_sync == "no_sync",
                       "optim.in_backward = true makes an optimizer step at each reduction, and each of the {} micro-batches of a step "
                       "would be reduced: set train.gradient_sync = no_sync",
                       plan.accumulation);
  if (start.manifest) plan.first_step = start.manifest->step + 1;
  plan.sequences_before = sequences_before;
  return plan;
}

}  // namespace

Trainer::Trainer(App& app, const Config& config, StartPoint start, Logger logger)
    : app_(app),
      start_point_(std::move(start)),
      config_(made_together(
          app.comm,
          [&] { return start_point_.manifest ? with_batch_of(config, *start_point_.manifest, start_point_.checkpoint) : config; })),
      logger_(std::move(logger)),
      device_(Device::make(config, app.session, app.world, logger_)),
      datasets_(made_together(app.comm, [&] { return Datasets::open(config); })),
      data_fingerprint_(made_together(app.comm, [&] { return datasets_.train.fingerprint(); })),
      continuation_(made_together(app.comm,
                                  [&] {
                                    if (!start_point_.manifest) return Continuation{};
                                    return check_resume(config_, *start_point_.manifest, {data_fingerprint_, datasets_.train.num_tokens()},
                                                        start_point_.checkpoint);
                                  })),
      plan_(made_together(app.comm,
                          [&] {
                            const bool is_adopted = start_point_.manifest && config.train.global_batch == 0;
                            return make_plan(config_, start_point_, is_adopted, continuation_.sequences, app.world.num_ranks());
                          })),
      model_(made_together(app.comm, [&] { return ShardedModel::make(config, device_); })),
      schedule_(made_together(app.comm, [&] { return make_schedule(config); })),
      start_plan_(made_together(app.comm, [&] { return make_start_plan(config, device_, model_, plan_); })),
      run_id_(app.world.broadcast_string(checkpoint::make_run_id(), 0)) {
  config_.train.global_batch = plan_.global_batch();
  config_.run.take_over = false;  // of this launch alone: not for config.resolved.cfg
}

void Trainer::print_start(IniKeys keys) const {
  if (!is_main()) return;
  logger_.info("mica-train {}", kVersion);
  for (const auto& [old_name, name] : config_.old_names) {
    logger_.warn("the key {} is called {} now; the old name is still read, but write the new one", old_name, name);
  }
  logger_.info("{}", to_ini(config_, keys));
  if (keys == IniKeys::changed)
    logger_.info("config   other keys have their defaults; all of them: {}/config.resolved.cfg", config_.run_folder());
  logger_.info("data     {} tokens, {} sequences of {} tokens{}", datasets_.train.num_tokens(), datasets_.train.num_sequences(),
               config_.train.seq_len,
               datasets_.val ? fmt::format("; validation {} tokens", datasets_.val->num_tokens()) : "; no validation");
  logger_.info(
      "batch    {} sequences a step = micro_batch {} x accumulation {} x {} ranks; {} tokens a step, {:.2f} epochs in "
      "{} steps",
      plan_.global_batch(), plan_.micro_batch, plan_.accumulation, plan_.num_ranks, plan_.global_batch() * config_.train.seq_len,
      static_cast<double>(plan_.global_batch() * config_.train.steps) / static_cast<double>(datasets_.train.num_sequences()),
      config_.train.steps);
  if (start_point_.manifest) {
    logger_.info("start    resumes from {}, step {}{}", start_point_.checkpoint, start_point_.manifest->step,
                 start_point_.num_later == 0
                     ? ""
                     : fmt::format("; later checkpoints of this run ({}) will be set aside, not deleted", start_point_.num_later));
    for (const std::string& change : continuation_.changes) logger_.warn("changed since the checkpoint: {}", change);
  }
  logger_.info("{}", device_.mesh->describe());
  logger_.info("device   {}", device_.describe());
  logger_.info("kernels  {}; {}", device_.kernels->description(), mpi::Session::library_version());
  const DType param_dtype = fsdp_options(config_).param_dtype();
  if ((param_dtype == DType::bf16 && !device_.kernels->bf16_is_native()) ||
      (param_dtype == DType::f16 && !device_.kernels->f16_is_native())) {
    logger_.warn("no native {} products here; they are computed in fp32 (correct, but slower than fsdp.param_dtype=fp32)",
                 dtype_name(param_dtype));
  }
  logger_.info("{}", model_.root->describe());
  logger_.info("memory plan, per rank\n{}", plan::format_memory_plan(start_plan_.memory));
  if (device_.mesh->world_size() > 1) logger_.info("communication per step and rank\n{}", plan::format_volume(start_plan_.volume));
}

void Trainer::resume() {
  model_.root->initialize(config_.run.seed);
  if (!start_point_.manifest) {
    init_parameters();
    return;
  }
  const std::string& folder = start_point_.checkpoint;
  const checkpoint::Manifest& manifest = *start_point_.manifest;
  app_.comm.agree([&] {
    require<ConfigError>(!manifest.optimizer.empty(),
                         "{} holds the model only, without the optimizer state (checkpoint.optimizer = false, or it was imported): a run "
                         "cannot resume from it; start one in another run.dir with --model.init_from={}",
                         folder, folder);
    model_.optimizer->allocate_state();
  });
  app_.comm.agree([&] {
    const checkpoint::LoadReport report = checkpoint::load(
        folder, manifest, {.root = model_.root, .optimizer = model_.optimizer.get(), .omp_threads = device_.num_threads}, app_.comm);
    if (model_.scaler && manifest.scalars.contains("loss_scale")) {
      model_.scaler->set_state(
          {manifest.scalars.at("loss_scale"), static_cast<std::int64_t>(manifest.scalars.at("loss_scale_growth_tracker"))});
    }
    tokenizer_ = report.tokenizer;
    parent_ = manifest.id();
    last_done_ = last_saved_ = manifest.step;
    if (!is_main()) return;
    logger_.info("resume   {}: step {} of {} is done, written by {} ranks ({} x {}), {} read and checked in {:.0f} ms", folder,
                 manifest.step, config_.train.steps, manifest.world_size, manifest.shard_size, manifest.replicas,
                 plan::format_bytes(manifest.total_bytes()), report.ms);
    for (const std::string& note : report.notes) logger_.warn("{}", note);
  });
}

void Trainer::begin_files() {
  app_.comm.agree([&] {
    if (!is_main()) {
      metrics_ = std::make_unique<MetricsFile>("", [](const std::string&) {});
      return;
    }
    folder_->check_owner();
    const std::string set_aside = folder_->keep_line_of(start_point_);
    if (!set_aside.empty()) {
      logger_.warn("went back to step {}: later checkpoints and metrics are now in {}", last_done_, set_aside);
    }
    // Only now: a config that does not go with the folder's checkpoints must not replace theirs.
    io::write_file_atomically(config_.run_folder() + "/config.resolved.cfg", to_ini(config_, IniKeys::explained));
    metrics_ = std::make_unique<MetricsFile>(config_.log.metrics ? config_.run_folder() + "/metrics.jsonl" : "",
                                             [&](const std::string& text) { progress_->warn(text); });
    if (!start_point_.manifest) return;
    metrics_->write_resumed(
        {.from = last_done_, .checkpoint = start_point_.checkpoint, .num_ranks = app_.world.num_ranks(), .set_aside = set_aside});
  });
}

void Trainer::init_parameters() {
  if (config_.model.init_from.empty()) return;
  app_.comm.agree([&] {
    const checkpoint::InitReport report =
        checkpoint::init_from(config_.model.init_from, model_description(config_), *model_.root, app_.comm);
    tokenizer_ = report.tokenizer;
    if (!is_main()) return;
    logger_.info("start    with the {} parameters of {}, read in {:.0f} ms", report.numel, report.source, report.ms);
  });
}

std::int64_t Trainer::tokens_at(std::int64_t step) const {
  const std::int64_t before = start_point_.manifest ? start_point_.manifest->tokens : 0;
  return before + (plan_.sequences_at(step + 1) - plan_.sequences_before) * config_.train.seq_len;
}

void Trainer::check_drift() const {
  try {
    fsdp::check_replicas(*model_.root);
  } catch (const DesyncError& error) {  // every rank's
    app_.comm.agree([&] { throw DesyncError(fmt::format("after step {}: {}", last_done_, error.what())); });
  }
}

Request Trainer::agree_on_request(RequestPace& pace) {
  if (!pace.is_due(last_done_) && last_done_ != config_.train.steps) return Request::none;
  const Clock::time_point now = Clock::now();
  Request mine = request_of_clocks(config_, now - start_, now - last_save_begin_);
  if (mine == Request::save && !is_main()) mine = Request::none;  // rank 0's clock decides
  if ((saver_ && saver_->is_failed()) || folder_->is_lost()) mine = std::max(mine, Request::look);
  if (StopSignal::received() != 0) mine = Request::stop;
  const std::int64_t maximum = app_.world.all_max(pace.encode(mine, last_done_, now));
  return pace.agree(maximum, last_done_, Clock::now());
}

ExitCode Trainer::run(const RunFolder& folder) {
  folder_ = &folder;
  check_memory(app_.world, config_, device_, plan_, start_plan_);
  resume();
  progress_ = std::make_unique<Progress>(is_main() ? logger_ : Logger(), config_.train.steps, is_main() && Progress::is_on_terminal());
  if (last_done_ >= config_.train.steps) {
    progress_->say(fmt::format("nothing to do: step {} of {} is done; raise train.steps to continue", last_done_, config_.train.steps));
    return ExitCode::done;
  }
  prepare_background_saves();
  runner_ = std::make_unique<StepRunner>(config_, model_, datasets_.train, plan_, device_.mesh->rank());
  begin_files();  // last: a launch that is refused changes nothing
  try {
    return train();
  } catch (const std::exception& error) {
    // The end of saver_ would wait for ranks that may be lost.
    if (!saver_ || app_.comm.is_shared(error)) throw;
    abort_job(error, app_.world.rank(), app_.world.num_ranks(), app_.log_file);
  }
}

ExitCode Trainer::train() {
  const StopSignal stop_signal;
  last_save_begin_ = Clock::now();
  RequestPace pace(last_done_, Clock::now());
  begin_interval();
  StepTrace trace(device_.tracer.get(), config_.log.trace, fmt::format("{}/trace-rank{}.json", config_.run_folder(), device_.mesh->rank()));
  while (last_done_ < config_.train.steps) {
    const std::int64_t step = last_done_ + 1;
    const double lr = schedule_.at(step);
    trace.begin_step(step);
    pending_.push_back({runner_->run(step, lr), {.step = step, .lr = lr}});
    last_done_ = step;
    tell_slow_paths();
    if (const auto written = trace.end_step(step)) progress_->say(*written);
    if (config_.train.drift_interval > 0 && step % config_.train.drift_interval == 0) check_drift();

    const Request request = agree_on_request(pace);
    const bool stops = request == Request::stop;
    const bool is_last = step == config_.train.steps;
    const bool logs = is_last || step % config_.train.log_interval == 0;
    const bool evaluates = is_last || (config_.train.eval_interval > 0 && step % config_.train.eval_interval == 0);
    const bool saves =
        is_last || stops || request == Request::save || (config_.checkpoint.interval > 0 && step % config_.checkpoint.interval == 0);
    look_at_background_save();
    if (request == Request::look) {
      finish_background_save();
      check_owner();
    }
    if (logs || evaluates || saves) read_figures(logs || stops);
    if (evaluates) evaluate_now(step);
    if (saves) save(step, saver_ != nullptr && !is_last && !stops);
    if (stops || is_last) {
      if (const auto said = trace.end_run(step)) progress_->say(*said);
    }
    if (stops && !is_last) {
      progress_->say(fmt::format("stopped after step {} of {}; start the same command again to resume", step, config_.train.steps));
      return ExitCode::requeue;
    }
  }
  progress_->say(fmt::format("memory   peak of a rank {} measured, {} planned",
                             plan::format_bytes(app_.world.all_max(device_.pool->stats().peak)),
                             plan::format_bytes(start_plan_.memory.peak)));
  return ExitCode::done;
}

void Trainer::tell_slow_paths() {
  if (!is_main()) return;
  for (const std::string& text : slow_paths_.new_lines(slow_paths(*device_.kernels))) progress_->warn(text);
}

void Trainer::read_figures(bool show) {
  if (pending_.empty()) return;
  std::vector<const StepFigures*> steps;
  for (const Pending& each : pending_) steps.push_back(&each.figures);
  const std::vector<double> losses = mean_losses(model_, steps);  // one collective for all steps since the last look

  const auto now = Clock::now();
  const double interval_ms = ms_between(interval_start_, now);
  const double comm_ms = device_.device_mesh->communication_ms() - interval_comm_ms_;
  const auto num_steps = static_cast<double>(pending_.size());
  const std::int64_t peak_bytes = app_.world.all_max(device_.pool->stats().peak);
  const std::int64_t tokens = plan_.global_batch() * config_.train.seq_len;
  const auto value_of = [&](const Tensor& scalar) {
    return static_cast<double>(fetch_scalar(model_.context.kernels, model_.context.compute, scalar));
  };
  for (std::size_t i = 0; i < pending_.size(); ++i) {
    StepMetrics& m = pending_[i].metrics;
    m.loss = losses[i];
    if (pending_[i].figures.grad_norm) m.grad_norm = value_of(pending_[i].figures.grad_norm);
    if (pending_[i].figures.loss_scale) {
      m.loss_scale = value_of(pending_[i].figures.loss_scale);
      m.is_skipped = value_of(pending_[i].figures.skipped) != 0;
    }
    m.tokens = tokens;
    m.step_ms = interval_ms / num_steps;
    m.tokens_per_s = static_cast<double>(tokens) / (m.step_ms / 1e3);
    m.comm_wait_ms = comm_ms / num_steps;
    m.peak_bytes = peak_bytes;
    metrics_->write(m);
  }
  const StepMetrics& last = pending_.back().metrics;
  progress_->show(last, static_cast<double>(config_.train.steps - last.step) * last.step_ms / 1e3, show);
  pending_.clear();
  begin_interval();
}

void Trainer::begin_interval() {
  interval_start_ = Clock::now();
  interval_comm_ms_ = device_.device_mesh->communication_ms();
}

void Trainer::evaluate_now(std::int64_t step) {
  if (!datasets_.val) return;
  const double loss = evaluate(model_, *datasets_.val,
                               {.num_sequences = config_.train.eval_batches * kSequencesPerEvalBatch,
                                .sequences_at_once = config_.train.deterministic ? 1 : plan_.micro_batch});
  metrics_->write_eval(step, loss);
  tell_slow_paths();
  progress_->say(fmt::format("eval after step {}: validation loss {:.4f}", step, loss));
  begin_interval();
}

}  // namespace mica::train
