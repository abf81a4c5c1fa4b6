// SPDX-License-Identifier: Apache-2.0
#include "testing/disturbed_stream.hpp"

#include <algorithm>
#include <random>
#include <string_view>
#include <thread>

#include <fmt/format.h>

#include "mica/device/forwarding_stream.hpp"

namespace mica {
namespace {

class DroppingStream final : public ForwardingStream {
 public:
  DroppingStream(std::unique_ptr<Stream> inner, WaitDropper& dropper) : ForwardingStream(std::move(inner)), dropper_(dropper) {}
  void wait(const Event& event, std::source_location site) override {
    if (!dropper_.drops(site)) inner_->wait(event, site);
  }

 private:
  WaitDropper& dropper_;
};

class DelayingStream final : public ForwardingStream {
 public:
  DelayingStream(std::unique_ptr<Stream> inner, std::uint64_t seed, std::chrono::microseconds longest, std::uint64_t one_in)
      : ForwardingStream(std::move(inner)), random_(seed), longest_(longest), one_in_(one_in) {}
  void submit(const char* what, std::span<const Access> accesses, Task task) override {
    const std::uint64_t draw = random_();
    if (draw % one_in_ != 0) return inner_->submit(what, accesses, std::move(task));
    const std::chrono::microseconds delay(static_cast<std::int64_t>((draw / one_in_) % (longest_.count() + 1)));
    inner_->submit(what, accesses, [delay, task = std::move(task)] {
      std::this_thread::sleep_for(delay);
      task();
    });
  }

 private:
  std::mt19937_64 random_;
  std::chrono::microseconds longest_;
  std::uint64_t one_in_;
};

}  // namespace

bool WaitDropper::drops(const std::source_location& where) {
  const std::string_view path = where.file_name();
  const std::string place = fmt::format("{}:{}", path.substr(path.find_last_of('/') + 1), where.line());
  auto site = std::find_if(sites_.begin(), sites_.end(), [&](const Site& known) { return known.place == place; });
  if (site == sites_.end()) site = sites_.insert(sites_.end(), Site{place, 0});
  ++site->num_waits;
  const bool dropped = num_waits_ == dropped_call_ || place == dropped_place_;
  ++num_waits_;
  num_dropped_ += dropped ? 1 : 0;
  return dropped;
}

std::unique_ptr<Stream> drop_waits(std::unique_ptr<Stream> inner, WaitDropper& dropper) {
  return std::make_unique<DroppingStream>(std::move(inner), dropper);
}

std::unique_ptr<Stream> delay_tasks(std::unique_ptr<Stream> inner, std::uint64_t seed, std::chrono::microseconds longest,
                                    std::uint64_t one_in) {
  return std::make_unique<DelayingStream>(std::move(inner), seed, longest, one_in);
}

}  // namespace mica
