// SPDX-License-Identifier: Apache-2.0
#include "onednn_product.hpp"

#include <array>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "mica/core/error.hpp"

namespace mica::cpu {

namespace {

using Desc = dnnl::memory::desc;

/// AMD's processors of family 26.
bool is_zen5() {
#if defined(__x86_64__)
  constexpr unsigned kAmd = 0x68747541;  // "Auth" of "AuthenticAMD"
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid(0, &eax, &ebx, &ecx, &edx) == 0 || ebx != kAmd) return false;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0) return false;
  const unsigned family = (eax >> 8U & 0xFU) + (eax >> 20U & 0xFFU);
  return family == 26;
#else
  return false;
#endif
}

dnnl::memory::data_type data_type(DType dtype) {
  invariant(dtype == DType::f32 || dtype == DType::bf16, "products are of f32 or bf16");
  return dtype == DType::f32 ? dnnl::memory::data_type::f32 : dnnl::memory::data_type::bf16;
}

Desc matrix(std::int64_t rows, std::int64_t cols, DType dtype, std::int64_t ld, bool transposed) {
  const dnnl::memory::dims strides = transposed ? dnnl::memory::dims{1, ld} : dnnl::memory::dims{ld, 1};
  return {{rows, cols}, data_type(dtype), strides};
}

/// @param bias  null: none.
dnnl::matmul::primitive_desc describe_matmul(const dnnl::engine& engine, const Desc& a, const Desc& b, const Desc* bias, const Desc& c,
                                             const dnnl::primitive_attr& attributes) {
#if DNNL_VERSION_MAJOR >= 3  // which dropped operation descriptors
  if (bias == nullptr) return {engine, a, b, c, attributes};
  return {engine, a, b, *bias, c, attributes};
#else
  if (bias == nullptr) return {dnnl::matmul::desc(a, b, c), attributes, engine};
  return {dnnl::matmul::desc(a, b, *bias, c), attributes, engine};
#endif
}

dnnl::matmul::primitive_desc describe(const dnnl::engine& engine, const ProductSpec& s) {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (s.accumulate) {
    dnnl::post_ops sum;
    sum.append_sum(1.0F);
    attributes.set_post_ops(sum);
  }
  const auto a = matrix(s.m, s.k, s.a, s.lda, s.transposed_a);
  const auto b = matrix(s.k, s.n, s.b, s.ldb, s.transposed_b);
  const auto c = matrix(s.m, s.n, s.c, s.ldc, false);
  try {
    if (!s.bias) return describe_matmul(engine, a, b, nullptr, c, attributes);
    const Desc bias({1, s.n}, data_type(*s.bias), dnnl::memory::dims{s.n, 1});
    return describe_matmul(engine, a, b, &bias, c, attributes);
  } catch (const dnnl::error& e) {
    throw Error(fmt::format("oneDNN cannot make the product {}: {} (status {})", s.to_string(), e.message, static_cast<int>(e.status)));
  }
}

}  // namespace

bool onednn_uses(dnnl::cpu_isa isa) {
  const auto features = static_cast<unsigned>(isa);  // bit sets of features
  return (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & features) == features;
}

bool onednn_reads_in_place(const ProductSpec& spec) {
#if DNNL_VERSION_MAJOR >= 3
  static_cast<void>(spec);
  return false;  // not measured
#else
  constexpr double kMostInverse = 0.0038;
  return onednn_uses(dnnl::cpu_isa::avx2) && !onednn_uses(dnnl::cpu_isa::avx512_core) &&
         1.0 / static_cast<double>(spec.m) + 1.0 / static_cast<double>(spec.n) >= kMostInverse;
#endif
}

bool onednn_prefers_parts() {
#if DNNL_VERSION_MAJOR >= 3
  return false;  // not measured
#else
  static const bool prefers = is_zen5() && onednn_uses(dnnl::cpu_isa::avx512_core) && !onednn_uses(dnnl::cpu_isa::avx512_core_amx);
  return prefers;
#endif
}

bool onednn_supports(const ProductSpec& spec, bool native_bf16) {
  if (spec.a != spec.b) return false;
  if (spec.a == DType::f32) return spec.c == DType::f32 && spec.bias.value_or(DType::f32) == DType::f32;
  const auto is_half = [](DType dtype) { return dtype == DType::f16; };  // oneDNN 2 has no f16 on CPUs, 3 only on some
  if (is_half(spec.a) || is_half(spec.c) || is_half(spec.bias.value_or(DType::f32))) return false;
  return native_bf16;  // c and bias may be f32 or bf16
}

OnednnProduct::OnednnProduct(const dnnl::engine& engine, const dnnl::stream& stream, const ProductSpec& spec) : stream_(stream) {
  const dnnl::matmul::primitive_desc pd = describe(engine, spec);
  primitive_ = dnnl::matmul(pd);
  scratch_bytes_ = static_cast<std::int64_t>(pd.scratchpad_desc().get_size());
  a_ = dnnl::memory(pd.src_desc(), engine, nullptr);
  b_ = dnnl::memory(pd.weights_desc(), engine, nullptr);
  c_ = dnnl::memory(pd.dst_desc(), engine, nullptr);
  if (spec.bias) bias_ = dnnl::memory(pd.bias_desc(), engine, nullptr);
  if (scratch_bytes_ > 0) scratch_ = dnnl::memory(pd.scratchpad_desc(), engine, nullptr);
}

void OnednnProduct::run(const void* a, const void* b, const void* bias, void* c, void* scratch) const {
  const std::scoped_lock lock(mutex_);
  std::array<dnnl_exec_arg_t, 5> args{};
  int num_args = 0;
  // The C API: the C++ one builds a hash map for every call.
  const auto pass = [&](int name, const dnnl::memory& memory, const void* data) {
    dnnl_memory_set_data_handle(memory.get(), const_cast<void*>(data));
    args[static_cast<std::size_t>(num_args++)] = {name, memory.get()};
  };
  pass(DNNL_ARG_SRC, a_, a);
  pass(DNNL_ARG_WEIGHTS, b_, b);
  pass(DNNL_ARG_DST, c_, c);
  if (bias_) pass(DNNL_ARG_BIAS, bias_, bias);
  if (scratch_) pass(DNNL_ARG_SCRATCHPAD, scratch_, scratch);
  const dnnl_status_t status = dnnl_primitive_execute(primitive_.get(), stream_.get(), num_args, args.data());
  require(status == dnnl_success, "oneDNN failed to run a product: status {}", static_cast<int>(status));
  dnnl_stream_wait(stream_.get());
}

}  // namespace mica::cpu
