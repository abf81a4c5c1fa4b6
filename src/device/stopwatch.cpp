// SPDX-License-Identifier: Apache-2.0
#include "mica/device/stopwatch.hpp"

#include <utility>

#include "mica/core/steady_ns.hpp"
#include "mica/device/forwarding_stream.hpp"

namespace mica {
namespace {

class TimedWaits final : public ForwardingStream {
 public:
  TimedWaits(std::unique_ptr<Stream> inner, Stopwatch& waits) : ForwardingStream(std::move(inner)), waits_(waits) {}

  void wait(const Event& event, std::source_location site) override {
    if (event.is_complete()) return inner_->wait(event, site);  // there is nothing to wait for, but maybe an error to take over
    waits_.start(*inner_);
    inner_->wait(event, site);
    waits_.stop(*inner_);
  }

 private:
  Stopwatch& waits_;
};

}  // namespace

void Stopwatch::start(Stream& stream) {
  stream.submit("start of a stretch", {}, [times = times_] { times->started_ns = steady_ns(); });
}

void Stopwatch::stop(Stream& stream) {
  stream.submit("end of a stretch", {}, [times = times_] { times->total_ns += steady_ns() - times->started_ns; });
}

double Stopwatch::ms() const { return static_cast<double>(times_->total_ns.load()) * 1e-6; }

std::unique_ptr<Stream> time_waits(std::unique_ptr<Stream> inner, Stopwatch& waits) {
  return std::make_unique<TimedWaits>(std::move(inner), waits);
}

}  // namespace mica
