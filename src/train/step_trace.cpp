#include "mica/train/step_trace.hpp"

#include "mica/io/atomic_file.hpp"

namespace mica::train {

StepTrace::StepTrace(Tracer* tracer, const std::string& steps, std::string path)
    : tracer_(tracer), steps_(parse_steps(steps).value_or(StepRange{})), path_(std::move(path)) {}

void StepTrace::begin_step(std::int64_t step) {
  if (tracer_ != nullptr && step == steps_.first) tracer_->start();
}

std::optional<std::string> StepTrace::end_step(std::int64_t step) {
  if (tracer_ == nullptr || step != steps_.last || !tracer_->is_recording()) return std::nullopt;
  tracer_->stop();
  io::write_file_atomically(path_, tracer_->to_json());
  return path_;
}

}  // namespace mica::train
