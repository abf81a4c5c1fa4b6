#include "mica/train/step_trace.hpp"

#include <charconv>

#include "mica/io/atomic_file.hpp"

namespace mica::train {

std::optional<StepRange> parse_steps(const std::string& text) {
  StepRange range;
  const char* end = text.data() + text.size();
  const auto [dash, error] = std::from_chars(text.data(), end, range.first);
  if (error != std::errc{} || range.first < 1) return std::nullopt;
  range.last = range.first;
  if (dash == end) return range;
  const auto [rest, last_error] = std::from_chars(dash + 1, end, range.last);
  if (*dash != '-' || last_error != std::errc{} || rest != end || range.last < range.first) return std::nullopt;
  return range;
}

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
