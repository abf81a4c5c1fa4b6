// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mica/device/pool.hpp"
#include "mica/device/stream.hpp"
#include "mica/plan/pass_profile.hpp"

namespace mica::plan {

/// Drops every task: what is enqueued never runs.
class DryStream final : public Stream {
 public:
  [[nodiscard]] DeviceKind device() const override { return DeviceKind::cpu; }
  [[nodiscard]] const std::string& name() const override { return name_; }
  using Stream::submit;
  void submit(const char*, std::span<const Access>, Task) override {}
  [[nodiscard]] Event record() override { return {}; }
  void wait(const Event&, std::source_location) override {}
  void synchronize() override {}
  void drain_and_clear_error() noexcept override {}

 private:
  std::string name_ = "dry";
};

/// Consecutive ranges of addresses without memory behind them.
class DryAddresses {
 public:
  void* take(std::int64_t bytes) {
    constexpr std::uintptr_t kAlignment = 64;
    const std::uintptr_t address = next_;
    next_ += (static_cast<std::uintptr_t>(bytes) + kAlignment) / kAlignment * kAlignment;
    return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
  }

 private:
  std::uintptr_t next_ = std::uintptr_t{1} << 20;
};

/// Counts memory, and keeps the peak of activations and workspace since the last take_stretch().
class DryPool final : public Pool {
 public:
  explicit DryPool(DryAddresses& addresses) : addresses_(addresses) {}

  [[nodiscard]] Stretch take_stretch();

 protected:
  Taken take(std::int64_t bytes, Stream& home) override;
  void give(void* data, Stream* home, std::vector<Event> pending) override;
  void release_free_memory() override {}
  [[nodiscard]] std::int64_t reserved_bytes() const override { return 0; }

 private:
  /// Notes the levels since the last event. stats() shows an allocation only after take() returns, so each is noted at the next event.
  void note();

  DryAddresses& addresses_;
  Stretch stretch_;
};

}  // namespace mica::plan
