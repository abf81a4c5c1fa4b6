// SPDX-License-Identifier: Apache-2.0
#include "mica/device/tracer.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "mica/core/steady_ns.hpp"
#include "mica/device/forwarding_stream.hpp"

#include "gpu_clock.hpp"

namespace mica {
namespace {

class CpuMark final : public TimeMark {
 public:
  [[nodiscard]] std::int64_t ns() const override { return ns_; }
  void set() { ns_ = steady_ns(); }

 private:
  std::int64_t ns_ = 0;
};

class CpuClock final : public StreamClock {
 public:
  [[nodiscard]] std::shared_ptr<const TimeMark> mark(Stream& stream) override {
    auto mark = std::make_shared<CpuMark>();
    stream.submit("mark", {}, [mark] { mark->set(); });
    return mark;
  }
};

/// Text as a JSON string, in quotes.
std::string json_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out + '"';
}

}  // namespace

std::unique_ptr<StreamClock> make_clock(Stream& stream) {
  if (stream.device() == DeviceKind::cuda) return detail::make_gpu_clock(stream);
  return std::make_unique<CpuClock>();
}

class TracedStream final : public ForwardingStream {
 public:
  TracedStream(std::unique_ptr<Stream> inner, Tracer& tracer)
      : ForwardingStream(std::move(inner)), tracer_(tracer), row_(tracer.rows_.size()) {
    tracer_.rows_.push_back(name());
    tracer_.streams_.push_back(this);
  }
  ~TracedStream() override { tracer_.streams_[row_] = nullptr; }
  TracedStream(const TracedStream&) = delete;
  TracedStream& operator=(const TracedStream&) = delete;

  using Stream::submit;
  void submit(const char* what, std::span<const Access> accesses, Task task) override {
    if (!tracer_.recording_) return inner_->submit(what, accesses, std::move(task));
    Tracer::Slice slice{.row = row_, .name = what, .label = std::exchange(label_, {}), .kind = "task", .bytes = std::exchange(bytes_, 0)};
    for (const Access& access : accesses) slice.accessed_bytes += access.bytes;
    between(std::move(slice), [&] { inner_->submit(what, accesses, std::move(task)); });
  }
  void wait(const Event& event, std::source_location site) override {
    if (!tracer_.recording_ || !event.state()) return inner_->wait(event, site);
    between({.row = row_, .name = "wait", .kind = "wait"}, [&] { inner_->wait(event, site); });
  }
  void annotate(std::string_view label, std::int64_t bytes) override {
    if (tracer_.recording_) {
      label_ = label;
      bytes_ = bytes;
    }
    inner_->annotate(label, bytes);
  }
  void begin_range(std::string_view owner, const char* phase) override {
    inner_->begin_range(owner, phase);
    if (!tracer_.recording_) return;
    open_.push_back({.row = row_, .name = std::string(owner), .label = phase, .kind = "range", .begin = clock_->mark(*inner_)});
  }
  void end_range() override {
    if (tracer_.recording_ && !open_.empty()) {  // empty: begun before the recording was
      open_.back().end = clock_->mark(*inner_);
      tracer_.slices_.push_back(std::move(open_.back()));
      open_.pop_back();
    }
    inner_->end_range();
  }

  void start() {
    clock_ = make_clock(*inner_);
    open_.clear();
  }
  void stop() {
    try {
      inner_->synchronize();
    } catch (...) {  // sticky: the next wait for the stream reports it
    }
  }

 private:
  template <class Enqueue>
  void between(Tracer::Slice slice, const Enqueue& enqueue) {
    slice.begin = clock_->mark(*inner_);
    enqueue();
    slice.end = clock_->mark(*inner_);
    tracer_.slices_.push_back(std::move(slice));
  }

  Tracer& tracer_;
  std::size_t row_;
  std::unique_ptr<StreamClock> clock_;
  std::string label_;
  std::int64_t bytes_ = 0;
  std::vector<Tracer::Slice> open_;
};

std::unique_ptr<Stream> Tracer::wrap(std::unique_ptr<Stream> inner) { return std::make_unique<TracedStream>(std::move(inner), *this); }

void Tracer::start() {
  slices_.clear();
  for (TracedStream* stream : streams_) {
    if (stream != nullptr) stream->start();
  }
  recording_ = true;
}

void Tracer::stop() {
  recording_ = false;
  for (TracedStream* stream : streams_) {
    if (stream != nullptr) stream->stop();
  }
}

std::vector<TracedTask> Tracer::tasks() const {
  std::vector<TracedTask> tasks;
  for (const Slice& slice : slices_) {
    if (slice.kind != std::string_view("task")) continue;
    tasks.push_back({slice.name, slice.accessed_bytes, slice.begin->ns(), slice.end->ns()});
  }
  return tasks;
}

std::string Tracer::to_json() const {
  std::string events = fmt::format(R"({{"ph":"M","pid":{},"name":"process_name","args":{{"name":"rank {}"}}}})", rank_, rank_);
  for (std::size_t row = 0; row < rows_.size(); ++row) {
    events += fmt::format(",\n{{\"ph\":\"M\",\"pid\":{},\"tid\":{},\"name\":\"thread_name\",\"args\":{{\"name\":{}}}}}", rank_, row,
                          json_string(rows_[row]));
  }
  std::int64_t first = 0;
  for (const Slice& slice : slices_) first = first == 0 ? slice.begin->ns() : std::min(first, slice.begin->ns());
  for (const Slice& slice : slices_) {
    const std::int64_t begin = slice.begin->ns(), end = slice.end->ns();
    events += fmt::format(",\n{{\"ph\":\"X\",\"pid\":{},\"tid\":{},\"name\":{},\"cat\":\"{}\",\"ts\":{:.3f},\"dur\":{:.3f}{}}}", rank_,
                          slice.row, json_string(slice.label.empty() ? slice.name : slice.name + " " + slice.label), slice.kind,
                          static_cast<double>(begin - first) * 1e-3, static_cast<double>(end - begin) * 1e-3,
                          slice.bytes > 0 ? fmt::format(",\"args\":{{\"bytes\":{}}}", slice.bytes) : "");
  }
  return fmt::format("{{\"displayTimeUnit\":\"ms\",\"metadata\":{{\"first_ns\":{}}},\"traceEvents\":[\n{}\n]}}\n", first, events);
}

}  // namespace mica
