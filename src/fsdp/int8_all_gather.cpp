// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "mica/fsdp/all_gather_hooks.hpp"

namespace mica::fsdp {
namespace {

constexpr float kLargest = 127.0F;

void quantize(const float* x, std::int64_t n, std::uint8_t* bits, float* scale) {
  float largest = 0;
  bool is_finite = true;
  for (std::int64_t i = 0; i < n; ++i) {
    largest = std::max(largest, std::abs(x[i]));
    is_finite = is_finite && std::isfinite(x[i]);
  }
  *scale = is_finite ? largest / kLargest : std::numeric_limits<float>::quiet_NaN();
  if (!is_finite) {
    std::fill_n(bits, n, std::uint8_t{0});
    return;
  }
  const float inverse = largest > 0 ? kLargest / largest : 0.0F;
  for (std::int64_t i = 0; i < n; ++i) bits[i] = static_cast<std::uint8_t>(static_cast<std::int8_t>(std::lrint(x[i] * inverse)));
}

AllGatherHooks::Inputs send_bits(const AllGatherHooks::PreArgs& args) {
  require(args.stream.device() == DeviceKind::cpu, "int8_all_gather works on CPU tensors, the shard is elsewhere");
  const std::int64_t n = args.shard.numel();
  AllGatherHooks::Inputs inputs;
  inputs.tensors.emplace_back(args.pool.allocate(n, MemoryRole::communication, args.stream), Shape{n}, DType::u8);
  inputs.tensors.emplace_back(args.pool.allocate(4, MemoryRole::communication, args.stream), Shape{1}, DType::f32);
  const TensorView bits = inputs.tensors[0];
  const TensorView scale = inputs.tensors[1];
  args.stream.submit("quantize", {reads(args.shard), writes(bits), writes(scale)},
                     [=, shard = args.shard] { quantize(shard.as<float>(), n, bits.as<std::uint8_t>(), scale.as<float>()); });
  return inputs;
}

void receive_bits(const AllGatherHooks::PostArgs& args) {
  const ConstTensorView bits = args.gathered.at(0);
  const ConstTensorView scales = args.gathered.at(1);
  const std::int64_t n = args.parameter.numel();
  const std::int64_t shard_numel = n / args.shard_size;
  const Tensor wide(args.pool.allocate(n * dtype_bytes(DType::f32), MemoryRole::communication, args.stream), Shape{n}, DType::f32);
  const TensorView out = wide;
  args.stream.submit("dequantize", {reads(bits), reads(scales), writes(out)}, [=] {
    for (std::int64_t i = 0; i < n; ++i) {
      out.as<float>()[i] = scales.as<float>()[i / shard_numel] * static_cast<float>(static_cast<std::int8_t>(bits.as<std::uint8_t>()[i]));
    }
  });
  args.kernels.copy(args.stream, wide, args.parameter.reshaped({n}));
}

}  // namespace

AllGatherHooks int8_all_gather() { return {.pre = send_bits, .post = receive_bits}; }

}  // namespace mica::fsdp
