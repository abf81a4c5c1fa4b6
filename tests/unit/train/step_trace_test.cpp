// SPDX-License-Identifier: Apache-2.0
#include "mica/train/step_trace.hpp"

#include <array>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "mica/device/forwarding_stream.hpp"
#include "mica/io/atomic_file.hpp"

#include "support/temporary_folder.hpp"

namespace mica::train {
namespace {

class RangeCounter final : public ForwardingStream {
 public:
  RangeCounter(std::unique_ptr<Stream> inner, int& num_open) : ForwardingStream(std::move(inner)), num_open_(num_open) {}
  void begin_range(std::string_view owner, const char* phase) override {
    ++num_open_;
    ForwardingStream::begin_range(owner, phase);
  }
  void end_range() override {
    --num_open_;
    ForwardingStream::end_range();
  }

 private:
  int& num_open_;
};

// A rolled-back run makes steps again whose trace is written.
TEST(StepTrace, EveryRangeEndsAlsoWhenStepsAreRepeated) {
  const test::TemporaryFolder folder;
  Tracer tracer(0);
  int num_open = 0;
  const auto stream = tracer.wrap(std::make_unique<RangeCounter>(make_cpu_stream("compute", StreamMode::inlined), num_open));
  StepTrace trace(&tracer, *stream, "2-3", folder.path(), 0, 1);
  bool is_told = false;
  for (const std::int64_t step : {1, 2, 3, 2, 3, 4}) {
    trace.begin_step(step);
    if (trace.end_step(step)) is_told = true;
    EXPECT_EQ(num_open, 0) << step;
  }
  EXPECT_TRUE(is_told);
}

// Those of before it went back are no part of the trace, nor are the steps on the way to its first one.
TEST(StepTrace, ARunThatGoesBackInsideTheRangeTracesItAnew) {
  const test::TemporaryFolder folder;
  Tracer tracer(0);
  int num_open = 0;
  const auto stream = tracer.wrap(std::make_unique<RangeCounter>(make_cpu_stream("compute", StreamMode::inlined), num_open));
  StepTrace trace(&tracer, *stream, "3-5", folder.path(), 0, 1);
  constexpr std::array kWork{"", "work of 1", "work of 2", "work of 3", "work of 4", "work of 5"};
  std::optional<std::string> told;
  const auto make = [&](std::int64_t step) {
    trace.begin_step(step);
    stream->submit(kWork.at(static_cast<std::size_t>(step)), {}, [] {});
    told = trace.end_step(step);
    EXPECT_EQ(num_open, 0) << step;
  };
  for (const std::int64_t step : {1, 2, 3, 4}) make(step);
  trace.go_back();
  for (const std::int64_t step : {2, 3, 4, 5}) make(step);
  ASSERT_TRUE(told);
  std::vector<std::string> names;
  for (const TracedTask& task : tracer.tasks()) names.push_back(task.name);
  EXPECT_EQ(names, (std::vector<std::string>{kWork[3], kWork[4], kWork[5]}));
  trace.go_back();  // it is written
  make(3);
  EXPECT_FALSE(told);
}

// A report would mix them.
TEST(StepTrace, TracesOfAnEarlierLaunchAreRemoved) {
  const test::TemporaryFolder folder;
  for (int rank = 0; rank < 4; ++rank) io::write_file_atomically(folder / ("trace-rank" + std::to_string(rank) + ".json"), "{}");
  Tracer tracer(0);
  const auto stream = tracer.wrap(make_cpu_stream("compute", StreamMode::inlined));
  StepTrace trace(&tracer, *stream, "2", folder.path(), 0, 2);
  const auto names = [&] {
    std::set<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(folder.path())) found.insert(entry.path().filename());
    return found;
  };
  trace.begin_step(1);
  EXPECT_EQ(trace.end_step(1), std::nullopt);
  EXPECT_EQ(names().size(), 4u) << "nothing is traced yet";
  trace.begin_step(2);
  EXPECT_EQ(names(), std::set<std::string>{"trace-rank1.json"}) << "which rank 1 removes";
  EXPECT_NE(trace.end_step(2), std::nullopt);
  EXPECT_EQ(names(), (std::set<std::string>{"trace-rank0.json", "trace-rank1.json"}));
}

}  // namespace
}  // namespace mica::train
