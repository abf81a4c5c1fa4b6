// SPDX-License-Identifier: Apache-2.0
#include "mica/train/step_trace.hpp"

#include <filesystem>

#include <fmt/format.h>

#include "mica/io/atomic_file.hpp"

namespace mica::train {

StepTrace::StepTrace(Tracer* tracer, Stream& compute, const std::string& steps, std::string run_folder, int rank, int num_ranks)
    : tracer_(tracer),
      compute_(compute),
      text_(steps),
      steps_(parse_steps(steps).value_or(StepRange{})),
      run_folder_(std::move(run_folder)),
      rank_(rank),
      num_ranks_(num_ranks) {}

std::string StepTrace::path_of(int rank) const { return fmt::format("{}/trace-rank{}.json", run_folder_, rank); }

void StepTrace::remove_earlier() const {
  std::error_code error;  // what stays is replaced, or is of a rank that there no longer is
  std::filesystem::remove(path_of(rank_), error);
  if (rank_ != 0) return;
  for (int rank = num_ranks_; std::filesystem::remove(path_of(rank), error);) ++rank;
}

void StepTrace::begin_step(std::int64_t step) {
  if (tracer_ == nullptr || is_written_ || step < steps_.first || step > steps_.last) return;  // written: the run was rolled back
  if (first_traced_ == 0) {
    first_traced_ = step;  // a resumed run may begin inside the range
    remove_earlier();
    tracer_->start();
  }
  compute_.begin_range(fmt::format("step {}", step), "whole");
}

std::string StepTrace::write(std::int64_t last_traced) {
  tracer_->stop();
  const std::string path = path_of(rank_);
  is_written_ = true;  // also if it fails: it is not tried again
  io::write_file_atomically(path, tracer_->to_json());
  return fmt::format("traced steps {} to {}: {}", first_traced_, last_traced, path);
}

void StepTrace::go_back() {
  if (first_traced_ == 0 || is_written_) return;
  tracer_->stop();
  first_traced_ = 0;
}

std::optional<std::string> StepTrace::end_step(std::int64_t step) {
  if (tracer_ == nullptr || first_traced_ == 0 || is_written_) return std::nullopt;
  compute_.end_range();
  if (step != steps_.last) return std::nullopt;
  return write(step);
}

std::optional<std::string> StepTrace::end_run(std::int64_t last_done) {
  if (tracer_ == nullptr || is_written_) return std::nullopt;
  if (first_traced_ != 0) return fmt::format("{}; the run ended before the last step of log.trace = {}", write(last_done), text_);
  return fmt::format(
      "log.trace = {}: nothing was traced, since {}", text_,
      last_done < steps_.first ? fmt::format("the run ended after step {}", last_done) : "those steps were done before this launch");
}

}  // namespace mica::train
