// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>

#include <cuda.h>
#include <cuda_runtime_api.h>

namespace mica::cuda_emulation {

/// One function of the API: how often it was called, and whether a test wants it to fail.
class Api {
 public:
  /// The function of that name; lives as long as the process.
  static Api& named(std::string_view name);
  /// Sum over all functions of that kind is host_waits().
  Api& waits() {
    waits_ = true;
    return *this;
  }

  /// Counts a call. @return the error that a test ordered, 0 otherwise
  int enter();
  void fail(int error, int after, int times);

  [[nodiscard]] std::int64_t calls() const { return calls_; }
  [[nodiscard]] bool is_wait() const { return waits_; }
  void reset() { calls_ = 0; }

 private:
  std::atomic<std::int64_t> calls_ = 0;
  std::atomic<int> failing_in_ = 0;  ///< calls until the last one that fails, 0: none
  int error_ = 0, times_ = 1;
  std::atomic<bool> waits_ = false;
};

/// Remembers the calling thread's error for cudaGetLastError. @return it
cudaError_t failed(cudaError_t error);
[[nodiscard]] cudaError_t last_error();
void forget_error();

/// True inside of a function that cudaLaunchHostFunc runs, which may not call CUDA.
bool& in_host_function();

[[nodiscard]] int device_count();
[[nodiscard]] std::int64_t memory_bytes();
/// The calling thread's GPU.
int& current_device();

/// The first line of each function of the runtime API.
#define MICA_EMULATED_ENTER(name, ...)                                          \
  do {                                                                          \
    static auto& api = ::mica::cuda_emulation::Api::named(#name) __VA_ARGS__;   \
    if (const int ordered = api.enter(); ordered != 0) {                        \
      return ::mica::cuda_emulation::failed(static_cast<cudaError_t>(ordered)); \
    }                                                                           \
    if (::mica::cuda_emulation::in_host_function()) {                           \
      return ::mica::cuda_emulation::failed(cudaErrorNotPermitted);             \
    }                                                                           \
  } while (false)

}  // namespace mica::cuda_emulation
