// SPDX-License-Identifier: Apache-2.0
// A second kind of device for tests: memory and streams of the CPU that say they are something else.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "mica/device/forwarding_stream.hpp"
#include "mica/device/pool.hpp"

namespace mica::test {

inline constexpr auto kOtherDevice = static_cast<DeviceKind>(200);  // "device 200"

/// Memory of the other device; what no such pool holds is the host's. For inline streams: freed at once.
class OtherPool final : public Pool {
 public:
  [[nodiscard]] DeviceKind device() const override { return kOtherDevice; }
  [[nodiscard]] DeviceKind device_of(const void* data) const override {
    const auto address = reinterpret_cast<std::uintptr_t>(data);
    const std::lock_guard lock(all().mutex);
    auto range = all().ranges.upper_bound(address);
    if (range == all().ranges.begin()) return DeviceKind::cpu;
    --range;
    return address < range->first + range->second ? kOtherDevice : DeviceKind::cpu;
  }
  void copy(void* to, const void* from, std::int64_t bytes) const override { std::memcpy(to, from, static_cast<std::size_t>(bytes)); }

 protected:
  Taken take(std::int64_t bytes, Stream&) override {
    const std::size_t size = (static_cast<std::size_t>(bytes) + 63) / 64 * 64;
    void* data = std::aligned_alloc(64, size);
    const std::lock_guard lock(all().mutex);
    all().ranges[reinterpret_cast<std::uintptr_t>(data)] = size;
    return {data, {}};
  }
  void give(void* data, Stream*, std::vector<Event>) override {
    const std::lock_guard lock(all().mutex);
    all().ranges.erase(reinterpret_cast<std::uintptr_t>(data));
    std::free(data);
  }
  void release_free_memory() override {}
  [[nodiscard]] std::int64_t reserved_bytes() const override { return 0; }

 private:
  struct Ranges {
    std::mutex mutex;  // ranks are threads
    std::map<std::uintptr_t, std::size_t> ranges;
  };
  static Ranges& all() {
    static Ranges ranges;
    return ranges;
  }
};

/// An inline stream of the other device. Tasks that it runs are written to `tasks`, if there is one.
class OtherStream final : public ForwardingStream {
 public:
  explicit OtherStream(std::string name, std::vector<std::string>* tasks = nullptr)
      : ForwardingStream(make_cpu_stream(std::move(name), StreamMode::inlined)), tasks_(tasks) {}
  [[nodiscard]] DeviceKind device() const override { return kOtherDevice; }
  using Stream::submit;
  void submit(const char* what, std::span<const Access> accesses, Task task) override {
    if (tasks_) tasks_->emplace_back(what);
    inner_->submit(what, accesses, std::move(task));
  }

 private:
  std::vector<std::string>* tasks_;
};

}  // namespace mica::test
