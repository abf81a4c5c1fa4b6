// SPDX-License-Identifier: Apache-2.0
#pragma once

// Private to mica-bench: memory that is not from Mica's pool.

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace mica::train::bench {

/// 4 KiB-aligned bytes, every 16-bit half 0x3c00: about 0.0078 as f32 and as bf16, so that products see ordinary numbers.
class HostBuffer {
 public:
  explicit HostBuffer(std::int64_t bytes) : bytes_(bytes) {
    const auto rounded = (static_cast<std::size_t>(bytes) + 4095) / 4096 * 4096;
    memory_.reset(static_cast<std::uint16_t*>(std::aligned_alloc(4096, rounded == 0 ? 4096 : rounded)));
    if (!memory_) throw std::bad_alloc();
    for (std::size_t i = 0; i < rounded / 2; ++i) memory_.get()[i] = 0x3c00;
  }
  [[nodiscard]] void* data() const { return memory_.get(); }
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(std::uint16_t* memory) const { std::free(memory); }
  };
  std::int64_t bytes_;
  std::unique_ptr<std::uint16_t[], Free> memory_;
};

}  // namespace mica::train::bench
