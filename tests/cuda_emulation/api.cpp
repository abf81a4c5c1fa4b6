// SPDX-License-Identifier: Apache-2.0
#include "api.hpp"

#include <cstdlib>
#include <map>
#include <mutex>
#include <string>

#include "cuda_emulation.hpp"

namespace mica::cuda_emulation {

namespace {

struct Functions {
  std::mutex mutex;
  std::map<std::string, Api, std::less<>> by_name;
};

Functions& functions() {
  static Functions all;
  return all;
}

std::int64_t from_environment(const char* name, std::int64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoll(text);
}

std::atomic<std::int64_t>& devices() {
  static std::atomic<std::int64_t> count = from_environment("MICA_CUDA_EMULATION_DEVICES", 1);
  return count;
}

std::atomic<std::int64_t>& memory() {
  static std::atomic<std::int64_t> bytes = from_environment("MICA_CUDA_EMULATION_MEMORY", std::int64_t{4} << 30);
  return bytes;
}

thread_local cudaError_t last = cudaSuccess;

}  // namespace

Api& Api::named(std::string_view name) {
  auto& all = functions();
  const std::lock_guard lock(all.mutex);
  auto it = all.by_name.find(name);
  if (it == all.by_name.end()) it = all.by_name.try_emplace(std::string(name)).first;
  return it->second;
}

int Api::enter() {
  ++calls_;
  int left = failing_in_;
  while (left > 0 && !failing_in_.compare_exchange_weak(left, left - 1)) {
  }
  return left > 0 && left <= times_ ? error_ : 0;
}

void Api::fail(int error, int after, int times) {
  error_ = error;
  times_ = times;
  failing_in_ = after + times;
}

cudaError_t failed(cudaError_t error) { return last = error; }
cudaError_t last_error() { return last; }
void forget_error() { last = cudaSuccess; }

bool& in_host_function() {
  thread_local bool inside = false;
  return inside;
}

int device_count() { return static_cast<int>(devices()); }
std::int64_t memory_bytes() { return memory(); }
int& current_device() {
  thread_local int device = 0;
  return device;
}

void set_device_count(int count) { devices() = count; }
void set_memory_bytes(std::int64_t bytes) { memory() = bytes; }

std::int64_t calls(std::string_view name) { return Api::named(name).calls(); }

std::int64_t host_waits() {
  auto& all = functions();
  const std::lock_guard lock(all.mutex);
  std::int64_t sum = 0;
  for (const auto& [name, api] : all.by_name) sum += api.is_wait() ? api.calls() : 0;
  return sum;
}

void reset_calls() {
  auto& all = functions();
  const std::lock_guard lock(all.mutex);
  for (auto& [name, api] : all.by_name) api.reset();
}

void fail_next(std::string_view name, int error, int after, int times) { Api::named(name).fail(error, after, times); }

}  // namespace mica::cuda_emulation
