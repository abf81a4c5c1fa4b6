// SPDX-License-Identifier: Apache-2.0
#include "mica/optim/moment_precision.hpp"

#include <array>

#include <fmt/ranges.h>

#include "mica/core/error.hpp"

namespace mica::optim {
namespace {
constexpr std::array<std::string_view, 3> kPrecisionNames{"fp32", "bf16", "int8"};
}  // namespace

std::string_view moment_precision_name(MomentPrecision precision) { return kPrecisionNames.at(static_cast<std::size_t>(precision)); }

MomentPrecision moment_precision_from_name(std::string_view name) {
  for (std::size_t i = 0; i < kPrecisionNames.size(); ++i) {
    if (kPrecisionNames[i] == name) return static_cast<MomentPrecision>(i);
  }
  throw ConfigError(fmt::format("optim.state_dtype is '{}', expected {}", name, fmt::join(kPrecisionNames, ", ")));
}

void require_precision_on(DeviceKind device, MomentPrecision precision) {
  require<ConfigError>(precision == MomentPrecision::fp32 || device == DeviceKind::cpu,
                       "optim.state_dtype is {}, but this run is on a GPU, where optimizers keep fp32: set optim.state_dtype=fp32, or "
                       "mesh.device=cpu",
                       moment_precision_name(precision));
}

DType moment_dtype(MomentPrecision precision, std::string_view kind) {
  if (precision == MomentPrecision::int8) return kind == "exp_avg_sq" ? DType::square8 : DType::moment8;
  return precision == MomentPrecision::bf16 ? DType::bf16 : DType::f32;
}

}  // namespace mica::optim
