// SPDX-License-Identifier: Apache-2.0
#include "machine_bound.hpp"

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <utility>

#include "mica/tensor/raw_product.hpp"

#include "blas_library.hpp"
#include "host_buffer.hpp"
#include "product_bound.hpp"
#include "timing.hpp"

namespace mica::train::bench {
namespace {

constexpr double kSecondsPerContender = 0.15;
constexpr std::int64_t kChunks[] = {512, 256, 128};
constexpr std::int64_t kRowGap = 16;  // between rows of C, for oneDNN's other kernel

struct Sizes {
  std::int64_t a, b, c;  // bytes
};

std::int64_t bytes_of_c(const ProductShape& p, std::int64_t rows) { return rows * (p.n + kRowGap) * 4; }

/// C in f32, which is the larger one, and with gaps, whatever a library writes.
Sizes sizes_of(const ProductShape& p) {
  const std::int64_t element = dtype_bytes(p.dtype);
  return {p.m * p.k * element, p.k * p.n * element, bytes_of_c(p, p.m)};
}

/// Sets of operands side by side; next() is the one that has rested longest.
class Operands {
 public:
  struct Set {
    const std::byte *a, *b;
    std::byte* c;
  };

  Operands(const Sizes& sizes, std::int64_t total)
      : sizes_(sizes),
        count_(std::max<std::int64_t>(total / (sizes.a + sizes.b + sizes.c), 1)),
        a_(count_ * sizes.a),
        b_(count_ * sizes.b),
        c_(count_ * sizes.c) {}

  [[nodiscard]] Set next() {
    at_ = (at_ + 1) % count_;
    return {at(a_, sizes_.a), at(b_, sizes_.b), at(c_, sizes_.c)};
  }

 private:
  [[nodiscard]] std::byte* at(const HostBuffer& buffer, std::int64_t bytes) const {
    return static_cast<std::byte*>(buffer.data()) + at_ * bytes;
  }

  Sizes sizes_;
  std::int64_t count_, at_ = 0;
  HostBuffer a_, b_, c_;
};

using Run = std::function<void(const Operands::Set&)>;

/// Calls `run` for every chunk of `rows` rows of A and C; the last one may be smaller.
Run in_chunks(const ProductShape& shape, std::int64_t rows, const std::function<Run(const ProductShape&)>& make) {
  const auto part = [&](std::int64_t m) {
    ProductShape of_part = shape;
    of_part.m = m;
    return make(of_part);
  };
  const std::int64_t whole = shape.m / rows, rest = shape.m % rows, element = dtype_bytes(shape.dtype);
  const Run chunk = part(rows), last = rest > 0 ? part(rest) : Run();
  return [=](const Operands::Set& set) {
    const auto from = [&](std::int64_t row) {
      return Operands::Set{set.a + row * shape.k * element, set.b, set.c + bytes_of_c(shape, row)};
    };
    for (std::int64_t i = 0; i < whole; ++i) chunk(from(i * rows));
    if (last) last(from(whole * rows));
  };
}

}  // namespace

std::vector<ProductShape> model_products(const std::vector<ProductShape>& recorded, std::int64_t tokens) {
  // Weight gradients are never computed twice, so they tell the layers.
  std::map<std::tuple<std::int64_t, std::int64_t, DType>, std::int64_t> rows_of;
  for (const ProductShape& p : recorded) {
    if (p.transposed_a) rows_of[{p.m, p.n, p.dtype}] += p.k;
  }
  std::vector<ProductShape> products;
  for (const auto& [layer, rows] : rows_of) {
    const auto [out, in, dtype] = layer;
    for (std::int64_t i = 0; i < rows / tokens; ++i) {
      products.push_back({tokens, out, in, false, true, dtype});
      products.push_back({tokens, in, out, false, false, dtype});
      products.push_back({out, in, tokens, true, false, dtype});
    }
  }
  return products;
}

std::int64_t operand_bytes(std::int64_t step_bytes) {
  constexpr std::int64_t kBeyondCaches = 256 << 20;
  return std::min(step_bytes, kBeyondCaches);
}

namespace {

std::string name_of(const BlasLibrary& library, DType dtype) { return library.name() + "-" + std::string(dtype_name(dtype)); }

/// The libraries that every rank has, by name and dtype: all must make the same calls. @collective
std::set<std::string> on_all_ranks(const mpi::Communicator& world, const std::vector<BlasLibrary>& blas) {
  std::string mine;
  for (const BlasLibrary& library : blas) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      if (library.supports(dtype)) mine += name_of(library, dtype) + " ";
    }
  }
  std::map<std::string, int> ranks_with;
  for (const std::string& names : world.gather_strings(mine)) {
    std::istringstream words(names);
    for (std::string name; words >> name;) ++ranks_with[name];
  }
  std::set<std::string> common;
  for (const auto& [name, ranks] : ranks_with) {
    if (ranks == world.num_ranks()) common.insert(name);
  }
  return common;
}

}  // namespace

struct FastestLibrary::Impl {
  const mpi::Communicator& world;
  std::vector<BlasLibrary> blas;
  std::set<std::string> common;
  std::int64_t operand_bytes;
  std::map<decltype(key_of({})), double> known;  // least_seconds()

  [[nodiscard]] double measure(const ProductShape& shape) const {
    std::vector<std::function<Run(const ProductShape&)>> libraries;
    if (on_every_rank(world, make_raw_product(shape) != nullptr)) {
      for (const std::int64_t gap : {std::int64_t{0}, kRowGap}) {
        libraries.emplace_back([gap](const ProductShape& p) -> Run {
          return [product = std::shared_ptr<RawProduct>(make_raw_product(p, gap))](const Operands::Set& set) {
            product->run(set.a, set.b, set.c);
          };
        });
      }
    }
    for (const BlasLibrary& library : blas) {
      if (!common.contains(name_of(library, shape.dtype))) continue;
      libraries.emplace_back([&library](const ProductShape& p) -> Run {
        return [&library, p](const Operands::Set& set) { library.run(p, set.a, set.b, set.c); };
      });
    }
    if (libraries.empty()) {
      ProductShape in_f32 = shape;
      in_f32.dtype = DType::f32;
      return measure(in_f32);
    }
    Operands operands(sizes_of(shape), operand_bytes);
    double least = std::numeric_limits<double>::infinity();
    for (const auto& make : libraries) {
      std::vector<std::int64_t> all_rows{shape.m};
      // A weight gradient's sum over the tokens cannot be cut without adding up the parts.
      if (!shape.transposed_a)
        std::ranges::copy_if(kChunks, std::back_inserter(all_rows), [&](std::int64_t rows) { return rows < shape.m; });
      for (const std::int64_t rows : all_rows) {
        const Run run = in_chunks(shape, rows, make);
        least = std::min(least, median_call(world, kSecondsPerContender, [&] { run(operands.next()); }));
      }
    }
    return least;
  }
};

FastestLibrary::FastestLibrary(const mpi::Communicator& world, int num_threads, std::int64_t operand_bytes)
    : impl_(new Impl{world, BlasLibrary::find(num_threads), {}, operand_bytes, {}}) {
  impl_->common = on_all_ranks(world, impl_->blas);
}
FastestLibrary::~FastestLibrary() = default;

double FastestLibrary::least_seconds(const ProductShape& shape) {
  const auto known = impl_->known.find(key_of(shape));
  if (known != impl_->known.end()) return known->second;
  return impl_->known.emplace(key_of(shape), impl_->measure(shape)).first->second;
}

MachineBound machine_bound(FastestLibrary& libraries, const std::vector<ProductShape>& products, double attention_flops) {
  MachineBound bound{.flops = flops_of(products)};
  for (const ProductShape& p : products) bound.seconds += libraries.least_seconds(p);
  bound.seconds *= 1 + attention_flops / bound.flops;
  bound.flops += attention_flops;
  return bound;
}

}  // namespace mica::train::bench
