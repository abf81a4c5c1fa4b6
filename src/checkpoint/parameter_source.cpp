// SPDX-License-Identifier: Apache-2.0
#include "parameter_source.hpp"

#include <cstring>
#include <vector>

#include "mica/core/half.hpp"
#include "mica/tensor/host_math.hpp"

namespace mica::checkpoint {
namespace {

template <class T>
T load(const std::byte* data, std::int64_t i) {
  T value;
  std::memcpy(&value, data + i * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return value;
}

}  // namespace

void ParameterSource::read_f32(const std::string& parameter, const std::string& kind, std::int64_t begin, std::int64_t numel, float* data) {
  const DType from = dtype(parameter, kind);
  if (from == DType::f32) return read(parameter, kind, begin, numel, data);
  std::vector<std::byte> elements(static_cast<std::size_t>(numel * dtype_bytes(from)));
  read(parameter, kind, begin, numel, elements.data());
  for (std::int64_t i = 0; i < numel; ++i) data[i] = static_cast<float>(element_value(from, elements.data(), i));
}

double element_value(DType dtype, const std::byte* data, std::int64_t i) {
  switch (dtype) {
    case DType::f32:
      return static_cast<double>(load<float>(data, i));
    case DType::bf16:
      return static_cast<double>(static_cast<float>(load<bf16>(data, i)));
    case DType::f16:
      return static_cast<double>(static_cast<float>(load<f16>(data, i)));
    case DType::f64:
      return load<double>(data, i);
    case DType::i64:
      return static_cast<double>(load<std::int64_t>(data, i));
    case DType::i32:
      return load<std::int32_t>(data, i);
    case DType::u16:
      return load<std::uint16_t>(data, i);
    case DType::u8:
      return load<std::uint8_t>(data, i);
    case DType::moment8:
    case DType::square8: {
      float value = 0;
      convert(data + i, dtype, &value, DType::f32, 1);
      return static_cast<double>(value);
    }
  }
  return 0;
}

}  // namespace mica::checkpoint
