// SPDX-License-Identifier: Apache-2.0
#include "cpu_streams.hpp"

namespace mica {

std::string device_kind_name(DeviceKind kind) {
  switch (kind) {
    case DeviceKind::cpu:
      return "the CPU";
    case DeviceKind::cuda:
      return "the GPU";
  }
  return "device " + std::to_string(static_cast<int>(kind));
}

std::unique_ptr<Stream> make_cpu_stream(std::string name, StreamMode mode) {
  return mode == StreamMode::inlined ? detail::make_inline_stream(std::move(name)) : detail::make_threaded_stream(std::move(name));
}

void drain_and_clear_errors(std::span<Stream* const> streams) noexcept {
  for (Stream* stream : streams) {
    try {
      stream->synchronize();
    } catch (...) {  // the caller is abandoning the work that failed
    }
  }
  for (Stream* stream : streams) stream->drain_and_clear_error();
}

}  // namespace mica
