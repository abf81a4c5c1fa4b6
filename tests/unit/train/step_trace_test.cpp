// SPDX-License-Identifier: Apache-2.0
#include "mica/train/step_trace.hpp"

#include <gtest/gtest.h>

#include "mica/device/forwarding_stream.hpp"

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
  StepTrace trace(&tracer, *stream, "2-3", folder / "trace.json");
  bool is_told = false;
  for (const std::int64_t step : {1, 2, 3, 2, 3, 4}) {
    trace.begin_step(step);
    if (trace.end_step(step)) is_told = true;
    EXPECT_EQ(num_open, 0) << step;
  }
  EXPECT_TRUE(is_told);
}

}  // namespace
}  // namespace mica::train
