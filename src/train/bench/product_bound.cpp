// SPDX-License-Identifier: Apache-2.0
#include "product_bound.hpp"

#include <map>

#include "mica/tensor/raw_product.hpp"

#include "host_buffer.hpp"
#include "timing.hpp"

namespace mica::train::bench {
namespace {

constexpr double kSecondsPerShape = 0.1;

double time_product(const mpi::Communicator& world, const ProductShape& shape) {
  const auto product = make_raw_product(shape);
  if (product == nullptr) {  // Mica's kernels then compute in fp32, too
    ProductShape in_fp32 = shape;
    in_fp32.dtype = DType::f32;
    return time_product(world, in_fp32);
  }
  const std::int64_t element = dtype_bytes(shape.dtype);
  const HostBuffer a(shape.m * shape.k * element);
  const HostBuffer b(shape.k * shape.n * element);
  const HostBuffer c(shape.m * shape.n * element);
  return median_call(world, kSecondsPerShape, [&] { product->run(a.data(), b.data(), c.data()); });
}

}  // namespace

double flops_of(const std::vector<ProductShape>& products) {
  double flops = 0;
  for (const ProductShape& p : products) {
    flops += 2.0 * static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k);
  }
  return flops;
}

double product_bound_s(const mpi::Communicator& world, const std::vector<ProductShape>& products) {
  std::map<decltype(key_of({})), std::pair<ProductShape, int>> shapes;
  for (const ProductShape& p : products) ++shapes.try_emplace(key_of(p), p, 0).first->second.second;
  double seconds = 0;
  for (const auto& [key, shape] : shapes) seconds += shape.second * time_product(world, shape.first);
  return seconds;
}

}  // namespace mica::train::bench
