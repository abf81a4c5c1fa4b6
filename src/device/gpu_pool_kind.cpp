// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <string_view>

#include "mica/core/error.hpp"
#include "mica/device/gpu.hpp"

namespace mica {

GpuPoolKind gpu_pool_kind() {
  const char* wanted = std::getenv("MICA_GPU_POOL");
  const std::string_view kind = wanted == nullptr ? "" : wanted;
  if (kind == "plain") return GpuPoolKind::plain;
  require<ConfigError>(kind.empty() || kind == "arena", "MICA_GPU_POOL={}: expected arena, or plain to debug with compute-sanitizer", kind);
  return GpuPoolKind::arena;
}

}  // namespace mica
