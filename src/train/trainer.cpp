// SPDX-License-Identifier: Apache-2.0
#include "mica/train/trainer.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "mica/fsdp/replica_drift.hpp"
#include "mica/tensor/fetch.hpp"
#include "mica/tensor/loss_scale.hpp"
#include "mica/tensor/products_made.hpp"

#include "memory_check.hpp"
#include "start_record.hpp"

namespace mica::train {
namespace {

double wall_time() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

double flops_of(const std::vector<ProductShape>& products) {
  double flops = 0;
  for (const ProductShape& p : products) flops += 2.0 * static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k);
  return flops;
}

std::vector<TaggedValue> tagged_values(const StepMetrics& m) {
  std::vector<TaggedValue> values{{"train/loss", m.loss},
                                  {"train/lr", m.lr},
                                  {"speed/tokens_per_s", m.tokens_per_s},
                                  {"speed/step_ms", m.step_ms},
                                  {"speed/comm_wait_ms", m.comm_wait_ms},
                                  {"memory/peak_bytes", static_cast<double>(m.peak_bytes)}};
  if (m.grad_norm) values.emplace_back("train/grad_norm", *m.grad_norm);
  if (m.loss_scale != 0) values.emplace_back("train/loss_scale", m.loss_scale);
  if (m.split) {
    values.emplace_back("speed/compute_ms", m.split->compute_ms);
    values.emplace_back("speed/exposed_comm_ms", m.split->exposed_comm_ms);
    values.emplace_back("speed/optimizer_ms", m.split->optimizer_ms);
    values.emplace_back("speed/data_ms", m.split->data_ms);
  }
  return values;
}

/// A phase of the first step, for StartTimes.
std::string_view name_of_first(StepPhase phase) {
  switch (phase) {
    case StepPhase::batch:
      return "first batch";
    case StepPhase::forward:
      return "first forward";
    case StepPhase::backward:
      return "first backward";
    case StepPhase::update:
      return "first optimizer step";
  }
  return "?";
}

}  // namespace

Trainer::~Trainer() { static_cast<void>(device_.device_mesh->compute().record().has_failed()); }

void Trainer::open_metrics() {
  const auto warn = [&](const std::string& text) { progress_->warn(text); };
  metrics_ = std::make_unique<MetricsFile>(config_.log.metrics ? config_.run_folder() + "/metrics.jsonl" : "", warn);
  if (config_.log.tensorboard) events_ = std::make_unique<EventFile>(config_.run_folder(), wall_time(), last_done_ + 1, warn);
}

std::int64_t Trainer::tokens_at(std::int64_t step) const {
  return tokens_before_ + (plan_.sequences_at(step + 1) - plan_.sequences_before) * config_.train.seq_len;
}

void Trainer::check_drift() const {
  try {
    fsdp::check_replicas(*model_.root);
  } catch (const DesyncError& error) {  // every rank's
    app_.comm.agree([&] { throw DesyncError(fmt::format("after step {}: {}", last_done_, error.what())); });
  }
}

ExitCode Trainer::run(const RunFolder& folder) {
  folder_ = &folder;
  check_memory(app_.world, config_, device_, plan_, start_plan_);
  times_.end("memory check");
  note_start();
  if (stops_while_starting()) return ExitCode::requeue;
  try {
    prepare();
    ExitCode code = ExitCode::done;
    if (last_done_ < config_.train.steps) {
      code = train();
      if (code == ExitCode::done && is_main()) StartRecord(config_.run_folder()).remove();
    } else {
      const bool has_optimizer = !start_point_.manifest->optimizer.empty();
      progress_->say(fmt::format("nothing to do: step {} of {} is done; {}", last_done_, config_.train.steps,
                                 has_optimizer ? "raise train.steps to continue" : "its checkpoint holds the model only"));
    }
    forget_lost_ranks();
    return code;
  } catch (const std::exception& error) {
    withdraw_start_if_refused(error);
    if (lost_ranks_ && dynamic_cast<const MpiError*>(&error) != nullptr && !app_.comm.is_shared(error)) {
      lost_ranks_->save_and_exit(error.what());
    }
    forget_lost_ranks();
    if (!saver_) throw;
    share_or_abort(error, app_);  // saver_'s destructor waits for a save of all ranks
  }
}

void Trainer::tell_trace(const std::function<std::optional<std::string>()>& write) {
  try {
    if (const auto said = write()) progress_->say(*said);
  } catch (const IoError& error) {
    const std::string text = fmt::format("{}; training goes on without this trace", error.what());
    is_main() ? progress_->warn(text) : logger_.warn("{}", text);
  }
}

ExitCode Trainer::train() {
  estimate_save();
  if (stops_while_starting()) return ExitCode::requeue;
  app_.watchdog.set_timeout(std::chrono::milliseconds(static_cast<std::int64_t>(config_.mesh.timeout * 1e3)));
  watch_for_lost_ranks();
  last_save_begin_ = asked_at_ = Clock::now();
  RequestPace pace(last_done_, Clock::now());
  begin_interval();
  StepTrace trace(device_.tracer.get(), model_.context.compute, config_.log.trace, config_.run_folder(), app_.world.rank(),
                  app_.world.num_ranks());
  while (last_done_ < config_.train.steps) {
    const std::int64_t step = last_done_ + 1;
    const double lr = schedule_.at(step);
    trace.begin_step(step);
    pending_.push_back({run_step(step, lr), {.step = step, .lr = lr}});
    tell_slow_paths();
    tell_trace([&] { return trace.end_step(step); });
    if (pending_.back().figures.is_rejected && handle_bad_step(step)) {
      trace.go_back();
      pace = RequestPace(last_done_, Clock::now());
      asked_at_ = Clock::now();  // the load and the save were no steps
      continue;
    }
    last_done_ = step;
    if (config_.train.drift_interval > 0 && step % config_.train.drift_interval == 0) check_drift();

    const bool is_last = step == config_.train.steps;
    Request request = Request::none;
    if (is_last || pace.is_due(step)) {
      time_limit_.note_steps(Clock::now() - asked_at_);
      request = agree_on_request(pace, step);
    }
    const bool logs = is_logged(step);
    const bool evaluates = datasets_.val && (is_last || (config_.train.eval_interval > 0 && step % config_.train.eval_interval == 0));
    const bool saves = is_last || request == Request::save || (config_.checkpoint.interval > 0 && step % config_.checkpoint.interval == 0);
    look_at_background_save();
    if (saver_ && saver_->is_under_way()) ++num_saving_steps_;
    if (request == Request::look) {
      finish_background_save();
      check_owner();
      asked_at_ = Clock::now();
    }
    const bool is_full = std::ssize(pending_) == most_unread_steps(plan_.accumulation);
    if (logs || evaluates || saves || is_full || request == Request::stop) read_figures(logs || request == Request::stop);
    // A stop leaves time for a save only, so the save comes before anything that may take longer.
    if (evaluates && request != Request::stop) request = std::max(request, evaluate_or_save(step));
    if (saves && request != Request::stop) {
      save(step, saver_ != nullptr && !is_last ? SaveKind::in_background : SaveKind::at_once);
      if (!is_last) request = std::max(request, agree_on_request(pace, step));
    }
    const bool stops = request == Request::stop;
    if (stops) {
      const bool leaves_out = !is_last && evaluates && evaluated_step_ != step;
      const std::string reason = reason_to_stop();
      if (!is_last) progress_->say(fmt::format("stops after step {}{}: {}", step, leaves_out ? ", without its evaluation" : "", reason));
      save(step, is_last ? SaveKind::at_once : SaveKind::to_resume);
      if (is_last && evaluates && evaluated_step_ != step) (void)evaluate_now(step, GivesUp::never);
    }
    if (stops || is_last) {
      tell_trace([&] { return trace.end_run(step); });
    }
    if (stops && !is_last) {
      app_.comm.agree([&] {
        if (lacks_next_batch()) runner_->batches().read(step + 1);  // throws, unless the file system was away for a moment
      });
      progress_->say(fmt::format("stopped after step {} of {}; {} to resume", step, config_.train.steps, how_to_go_on(config_)));
      return ExitCode::requeue;
    }
  }
  progress_->say(fmt::format("memory   peak of a rank {} measured, {} planned",
                             plan::format_bytes(app_.world.all_max(device_.pool->stats().peak)),
                             plan::format_bytes(start_plan_.memory.peak)));
  return ExitCode::done;
}

StepFigures Trainer::run_step(std::int64_t step, double lr) {
  const bool tells = is_main() && config_.log.level == "debug" && step == plan_.first_step;
  const bool records = is_main() && step == plan_.first_step;
  if (records) {
    products_.clear();
    device_.kernels->record_products(&products_);
  }
  const AfterPhase time_phase = [this](StepPhase phase) {
    device_.device_mesh->compute().synchronize();
    times_.end(name_of_first(phase));
  };
  StepFigures figures = runner_->run(step, lr, tells ? time_phase : AfterPhase());
  if (records) device_.kernels->record_products(nullptr);
  if (!tells) return figures;
  const ProductsMade made = products_made(*device_.kernels);
  logger_.debug("{}\n  of which oneDNN took {:.1f} ms to make {} products", times_.table(), made.ms, made.num);
  return figures;
}

void Trainer::tell_slow_paths() {
  if (!is_main()) return;
  for (const std::string& text : slow_paths_.new_lines(slow_paths(*device_.kernels))) progress_->warn(text);
}

bool Trainer::is_logged(std::int64_t step) const { return step == config_.train.steps || step % config_.train.log_interval == 0; }

void Trainer::read_figures(bool show) {
  if (pending_.empty()) return;
  std::vector<const StepFigures*> steps;
  for (const Pending& each : pending_) steps.push_back(&each.figures);
  const std::vector<double> losses = mean_losses(model_, steps);  // one collective for all steps since the last call

  const auto now = Clock::now();
  const double interval_ms = ms_between(interval_start_, now);
  const double comm_ms = clocks().comm_ms - interval_clocks_.comm_ms;
  const auto num_steps = static_cast<double>(pending_.size());
  const std::optional<StepSplit> split = split_of_step(interval_ms / num_steps, num_steps);
  const std::vector<RankFigures> ranks = exchange_figures(interval_ms / num_steps, split ? split->exposed_comm_ms : comm_ms / num_steps);
  const std::int64_t peak_bytes = std::ranges::max_element(ranks, {}, &RankFigures::peak_bytes)->peak_bytes;
  const std::int64_t tokens = plan_.global_batch() * config_.train.seq_len;
  const auto value_of = [&](const Tensor& scalar) {
    return static_cast<double>(fetch_scalar(model_.context.kernels, model_.context.compute, scalar));
  };
  for (std::size_t i = 0; i < pending_.size(); ++i) {
    StepMetrics& m = pending_[i].metrics;
    m.loss = losses[i];
    m.is_skipped = pending_[i].figures.is_rejected;
    if (pending_[i].figures.grad_norm) m.grad_norm = value_of(pending_[i].figures.grad_norm);
    if (pending_[i].figures.loss_scale) {
      m.loss_scale = value_of(pending_[i].figures.loss_scale);
      m.is_skipped = value_of(pending_[i].figures.skipped) != 0;
    }
    m.tokens = tokens;
    m.step_ms = interval_ms / num_steps;
    m.tokens_per_s = static_cast<double>(tokens) / (m.step_ms / 1e3);
    m.comm_wait_ms = comm_ms / num_steps;
    m.split = split;
    m.gflop_per_s = flops_of(products_) / m.step_ms * 1e-6;
    m.peak_bytes = peak_bytes;
    metrics_->write(m);
    if (events_) events_->write(wall_time(), m.step, tagged_values(m));
    // The norm of a step that the loss scaler skips is infinite because of the scale.
    const bool is_overflow = m.is_skipped && !pending_[i].figures.is_rejected;
    has_diverged_ = !std::isfinite(m.loss) || (!is_overflow && m.grad_norm && !std::isfinite(*m.grad_norm));
    warn_of_bad_loss(m);
    num_hopeless_ = is_overflow && m.loss_scale <= kLeastLossScale ? num_hopeless_ + 1 : 0;
  }
  const StepMetrics& last = pending_.back().metrics;
  write_ranks_and_memory(last.step, ranks);
  name_slow_ranks(ranks);
  progress_->show(last, static_cast<double>(config_.train.steps - last.step) * last.step_ms / 1e3, show);
  pending_.clear();
  begin_interval();
  if (num_hopeless_ >= kMostBadInARow) stop_at_overflows(last.step);
}

std::vector<RankFigures> Trainer::exchange_figures(double step_ms, double wait_ms) const {
  const auto num_steps = static_cast<double>(pending_.size());
  return gather_rank_figures(app_.world, {.step_ms = step_ms,
                                          .wait_ms = std::min(wait_ms, step_ms),
                                          .data_ms = (clocks().data_ms - interval_clocks_.data_ms) / num_steps,
                                          .saving = static_cast<double>(num_saving_steps_) / num_steps,
                                          .peak_bytes = device_.pool->stats().peak});
}

void Trainer::name_slow_ranks(const std::vector<RankFigures>& ranks) {
  if (!is_main()) return;
  if (!slow_ranks_) {
    std::vector<std::string> hosts(ranks.size());
    for (const RankPlace& place : device_.mesh->places()) hosts[static_cast<std::size_t>(place.world_rank)] = place.host;
    slow_ranks_.emplace(std::move(hosts));
  }
  for (const std::string& line : slow_ranks_->note(static_cast<std::int64_t>(pending_.size()), ranks)) progress_->warn(line);
}

void Trainer::begin_interval() {
  interval_start_ = Clock::now();
  interval_clocks_ = clocks();
  num_saving_steps_ = 0;
}

Trainer::Clocks Trainer::clocks() const {
  return {.comm_ms = device_.device_mesh->communication_ms(),
          .exposed_ms = device_.exposed_communication_ms().value_or(0),
          .optimizer_ms = runner_->optimizer_ms(),
          .data_ms = runner_->data_ms()};
}

std::optional<StepSplit> Trainer::split_of_step(double step_ms, double num_steps) const {
  if (device_.gpu) return std::nullopt;
  const Clocks now = clocks();
  StepSplit split{.exposed_comm_ms = (now.exposed_ms - interval_clocks_.exposed_ms) / num_steps,
                  .optimizer_ms = (now.optimizer_ms - interval_clocks_.optimizer_ms) / num_steps,
                  .data_ms = (now.data_ms - interval_clocks_.data_ms) / num_steps};
  split.compute_ms = std::max(0.0, step_ms - split.exposed_comm_ms - split.optimizer_ms - split.data_ms);
  return split;
}

void Trainer::write_ranks_and_memory(std::int64_t step, const std::vector<RankFigures>& ranks) {
  if (!is_main()) return;
  if (ranks.size() > 1) metrics_->write_ranks(step, ranks);
  const MemoryStats memory = device_.pool->stats();
  if (std::exchange(told_peak_bytes_, memory.peak) != memory.peak) metrics_->write_memory(step, memory.peak_by_role, memory.peak);
}

Request Trainer::evaluate_or_save(std::int64_t step) {
  try {
    return evaluate_now(step, GivesUp::on_a_stop);
  } catch (const Error& error) {
    if (!app_.comm.is_shared(error)) throw;
    progress_->warn(fmt::format("the evaluation after step {} failed; the run saves and ends", step));
    save(step, SaveKind::to_resume);
    throw;
  }
}

Request Trainer::evaluate_now(std::int64_t step, GivesUp gives_up) {
  RequestPace of_rounds(0, Clock::now());
  const auto is_given_up = [&](std::int64_t round) {
    if (gives_up == GivesUp::never || !of_rounds.is_due(round)) return false;
    time_limit_.note_steps(Clock::now() - asked_at_);
    return agree_on_request(of_rounds, round) == Request::stop;
  };
  const Clock::time_point begin = Clock::now();
  const Evaluation evaluation{.num_sequences = config_.train.eval_batches * kSequencesPerEvalBatch,
                              .sequences_at_once = config_.train.deterministic ? 1 : plan_.micro_batch,
                              .is_given_up = is_given_up};
  const std::optional<double> loss = evaluate(model_, *datasets_.val, evaluation, app_.comm);
  tell_slow_paths();
  if (loss) {
    metrics_->write_eval(step, *loss, ms_between(begin, Clock::now()));
    if (events_) events_->write(wall_time(), step, {{"val/loss", *loss}});
    progress_->say(fmt::format("eval after step {}: validation loss {:.4f}", step, *loss));
    evaluated_step_ = step;
    val_loss_ = *loss;
    val_data_ =
        fmt::format("{}; {} sequences of {} tokens", val_fingerprint_, num_evaluated(*datasets_.val, evaluation), config_.train.seq_len);
  }
  asked_at_ = Clock::now();
  begin_interval();
  return loss ? Request::none : Request::stop;
}

}  // namespace mica::train
