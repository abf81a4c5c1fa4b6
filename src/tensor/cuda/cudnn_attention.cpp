// SPDX-License-Identifier: Apache-2.0
#include "cudnn_attention.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <unordered_map>
#include <vector>

#include <cudnn_frontend.h>

#include "mica/core/unique_handle.hpp"
#include "mica/device/cuda/check.hpp"
#include "mica/tensor/cuda_kernels.hpp"

#include "attention_parts.hpp"
#include "elements.hpp"

// [Note: cuDNN's attention] cuDNN supports 16-bit numbers and heads whose width is a multiple of 8, with any stride between rows. Its
// stats are Mica's lse: the natural logarithm of the sum of exp of a row's scaled scores, [B, H, T]. Its deterministic backward keeps the
// gradients of all scores of a call, T * T numbers per head. To stay within kMostScoreBytes, it is called for a part of the sequences, or
// of one sequence's heads, at a time; each part is large enough to fill the GPU.
namespace mica::cuda {

namespace {

namespace fe = cudnn_frontend;

/// As much as head_loss uses for logits: 64 sequences of 1024 tokens with 12 heads take two calls.
constexpr std::int64_t kMostScoreBytes = std::int64_t{1} << 30;
constexpr std::int64_t kMostColumns = 256;

void check(cudnnStatus_t status, const char* what) {
  require<CudaError>(status == CUDNN_STATUS_SUCCESS, "{}: {}", what, cudnnGetErrorString(status));
}

enum Tensor : std::int64_t { kQ = 1, kK, kV, kY, kLse, kDy, kDq, kDk, kDv };

/// Key of a graph: the sequences and heads of one call, and the strides of their rows.
struct Call {
  std::int64_t batch, seq_len, heads, kv_heads, head_dim;
  std::int64_t q_stride, kv_stride, y_stride;
  DType dtype;
  bool is_backward;

  friend auto operator<=>(const Call&, const Call&) = default;
};

struct Plan {
  fe::graph::Graph graph;
  std::int64_t workspace_bytes = 0;
  std::optional<std::string> why_not;  // set if cuDNN has no plan
};

using Pointers = std::unordered_map<std::int64_t, void*>;

using TensorPointer = std::shared_ptr<fe::graph::Tensor_attributes>;

fe::graph::Tensor_attributes heads_of(Tensor uid, const Call& call, std::int64_t heads, std::int64_t stride) {
  return fe::graph::Tensor_attributes()
      .set_uid(uid)
      .set_dim({call.batch, heads, call.seq_len, call.head_dim})
      .set_stride({call.seq_len * stride, call.head_dim, stride, 1});
}
void describe_heads(const TensorPointer& output, Tensor uid, const Call& call, std::int64_t heads, std::int64_t stride) {
  output->set_output(true)
      .set_uid(uid)
      .set_dim({call.batch, heads, call.seq_len, call.head_dim})
      .set_stride({call.seq_len * stride, call.head_dim, stride, 1});
}
fe::graph::Tensor_attributes lse_of(const Call& call) {
  return fe::graph::Tensor_attributes()
      .set_uid(kLse)
      .set_data_type(fe::DataType_t::FLOAT)
      .set_dim({call.batch, call.heads, call.seq_len, 1})
      .set_stride({call.heads * call.seq_len, call.seq_len, 1, 1});
}

float factor_of(const Call& call) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(call.head_dim))); }

void describe_forward(fe::graph::Graph& graph, const Call& call) {
  const TensorPointer q = graph.tensor(heads_of(kQ, call, call.heads, call.q_stride));
  const TensorPointer k = graph.tensor(heads_of(kK, call, call.kv_heads, call.kv_stride));
  const TensorPointer v = graph.tensor(heads_of(kV, call, call.kv_heads, call.kv_stride));
  const auto [y, lse] = graph.sdpa(q, k, v,
                                   fe::graph::SDPA_attributes()
                                       .set_name("attention")
                                       .set_generate_stats(true)
                                       .set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
                                       .set_diagonal_band_right_bound(0)
                                       .set_attn_scale(factor_of(call)));
  describe_heads(y, kY, call, call.heads, call.y_stride);
  lse->set_output(true)
      .set_uid(kLse)
      .set_data_type(fe::DataType_t::FLOAT)
      .set_dim({call.batch, call.heads, call.seq_len, 1})
      .set_stride({call.heads * call.seq_len, call.seq_len, 1, 1});
}

void describe_backward(fe::graph::Graph& graph, const Call& call, bool deterministic) {
  const TensorPointer q = graph.tensor(heads_of(kQ, call, call.heads, call.q_stride));
  const TensorPointer k = graph.tensor(heads_of(kK, call, call.kv_heads, call.kv_stride));
  const TensorPointer v = graph.tensor(heads_of(kV, call, call.kv_heads, call.kv_stride));
  const TensorPointer y = graph.tensor(heads_of(kY, call, call.heads, call.y_stride));
  const TensorPointer dy = graph.tensor(heads_of(kDy, call, call.heads, call.y_stride));
  const TensorPointer lse = graph.tensor(lse_of(call));
  const auto [dq, dk, dv] = graph.sdpa_backward(q, k, v, y, dy, lse,
                                                fe::graph::SDPA_backward_attributes()
                                                    .set_name("attention_backward")
                                                    .set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
                                                    .set_diagonal_band_right_bound(0)
                                                    .set_attn_scale(factor_of(call))
                                                    .set_deterministic_algorithm(deterministic));
  describe_heads(dq, kDq, call, call.heads, call.q_stride);
  describe_heads(dk, kDk, call, call.kv_heads, call.kv_stride);
  describe_heads(dv, kDv, call, call.kv_heads, call.kv_stride);
}

/// @param handle  null: for the device properties set in the graph
fe::error_t build(Plan& plan, const Call& call, bool deterministic, cudnnHandle_t handle) {
  fe::graph::Graph& graph = plan.graph;
  graph.set_io_data_type(call.dtype == DType::bf16 ? fe::DataType_t::BFLOAT16 : fe::DataType_t::HALF)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  if (call.is_backward) {
    describe_backward(graph, call, deterministic);
  } else {
    describe_forward(graph, call);
  }
  fe::error_t error = graph.validate();
  if (error.is_good()) error = handle != nullptr ? graph.build_operation_graph(handle) : graph.build_operation_graph();
  if (error.is_good()) error = graph.create_execution_plans({fe::HeurMode_t::A});
  if (error.is_good()) error = graph.check_support();
  if (error.is_good()) error = graph.build_plans();
  if (error.is_good()) error = graph.get_workspace_size(plan.workspace_bytes);
  return error;
}

template <bool kConst>
struct QkvAddresses {
  void *q, *k, *v;
  QkvAddresses(const AttentionShape& shape, const BasicQkv<kConst>& qkv) {
    const auto at = [](auto view, std::int64_t columns) {
      return const_cast<std::byte*>(static_cast<const std::byte*>(view.data)) + columns * dtype_bytes(view.dtype);
    };
    q = at(qkv.q, 0);
    k = qkv.is_packed() ? at(qkv.q, shape.q_width()) : at(qkv.k, 0);
    v = qkv.is_packed() ? at(qkv.q, shape.q_width() + shape.kv_width()) : at(qkv.v, 0);
  }
  [[nodiscard]] bool are_aligned() const { return is_aligned(q, 16) && is_aligned(k, 16) && is_aligned(v, 16); }
};

class CudnnAttention final : public FusedAttention {
 public:
  CudnnAttention(Pool& pool, bool deterministic) : pool_(pool), deterministic_(deterministic) {}

  [[nodiscard]] std::string description() const override { return fmt::format("cuDNN {}", cudnn_version_text()); }
  [[nodiscard]] std::optional<std::string> forward(Stream& s, const AttentionShape& shape, const ConstQkv& in, TensorView y,
                                                   TensorView lse) override;
  [[nodiscard]] std::optional<std::string> backward(Stream& s, const AttentionShape& shape, ConstTensorView dy, const ConstQkv& in,
                                                    ConstTensorView y, ConstTensorView lse, const Qkv& d_in) override;

 private:
  struct HandleTraits {
    using type = cudnnHandle_t;
    static type null() { return nullptr; }
    static void close(type handle) noexcept { static_cast<void>(cudnnDestroy(handle)); }
  };

  Plan& find(const Call& call);
  void run(Stream& s, const char* what, std::initializer_list<Access> accesses, Plan& plan, Pointers pointers);
  /// lse aligned to 16 bytes, as cuDNN requires: itself, or a copy in `space`.
  const float* aligned_lse(Stream& s, ConstTensorView lse, Buffer& space);

  Pool& pool_;
  bool deterministic_;
  UniqueHandle<HandleTraits> handle_;  // made when first needed, since it costs time and memory
  std::map<Call, Plan> plans_;
};

/// The reason if it is clear without asking cuDNN that it has no plan.
std::optional<std::string> why_unfit(const AttentionShape& shape, DType dtype) {
  if (dtype != DType::bf16 && dtype != DType::f16) {
    return fmt::format("cuDNN's attention is for bf16 and fp16, not for {}", dtype_name(dtype));
  }
  if (shape.head_dim % 8 != 0 || shape.head_dim > kMostColumns) {
    return fmt::format("cuDNN's attention needs a head size that is a multiple of 8 and at most {}; it is {}", kMostColumns,
                       shape.head_dim);
  }
  return std::nullopt;
}

constexpr const char* kUnaligned = "cuDNN needs tensors aligned to 16 bytes; not all of these are";

Call call_of(const AttentionShape& shape, DType dtype, bool packed, bool is_backward) {
  return {.batch = shape.batch,
          .seq_len = shape.seq_len,
          .heads = shape.heads,
          .kv_heads = shape.num_kv_heads(),
          .head_dim = shape.head_dim,
          .q_stride = packed ? shape.qkv_width() : shape.q_width(),
          .kv_stride = packed ? shape.qkv_width() : shape.kv_width(),
          .y_stride = shape.q_width(),
          .dtype = dtype,
          .is_backward = is_backward};
}

Plan& CudnnAttention::find(const Call& call) {
  if (!handle_) check(cudnnCreate(handle_.put()), "cudnnCreate");
  const auto [place, is_new] = plans_.try_emplace(call);
  Plan& plan = place->second;
  if (!is_new) return plan;
  const fe::error_t error = build(plan, call, deterministic_, handle_.get());
  if (error.is_bad()) plan.why_not = fmt::format("{} has no plan: {}", description(), error.err_msg);
  return plan;
}

void CudnnAttention::run(Stream& s, const char* what, std::initializer_list<Access> accesses, Plan& plan, Pointers pointers) {
  const Buffer space = pool_.allocate(plan.workspace_bytes, MemoryRole::workspace, s);
  std::vector<Access> all(accesses);
  all.push_back(writes(space.data(), space.bytes()));
  s.submit(what, all, [this, what, &plan, pointers, workspace = space.data(), stream = native(s)]() mutable {
    check(cudnnSetStream(handle_.get(), stream), "cudnnSetStream");
    const fe::error_t error = plan.graph.execute(handle_.get(), pointers, workspace);
    require<CudaError>(error.is_good(), "{}: {} could not run its plan: {}", what, description(), error.err_msg);
  });
}

const float* CudnnAttention::aligned_lse(Stream& s, ConstTensorView lse, Buffer& space) {
  if (is_aligned(lse.data, 16)) return lse.as<float>();
  space = pool_.allocate(lse.bytes(), MemoryRole::workspace, s);
  s.submit("attention_backward", {reads(lse), writes(space.data(), space.bytes())}, [lse, to = space.data(), stream = native(s)] {
    cuda::check(cudaMemcpyAsync(to, lse.data, static_cast<std::size_t>(lse.bytes()), cudaMemcpyDeviceToDevice, stream), "cudaMemcpyAsync");
  });
  return static_cast<const float*>(space.data());
}

std::optional<std::string> CudnnAttention::forward(Stream& s, const AttentionShape& shape, const ConstQkv& in, TensorView y,
                                                   TensorView lse) {
  const QkvAddresses from(shape, in);
  if (auto why_not = why_unfit(shape, in.q.dtype)) return why_not;
  if (!from.are_aligned() || !is_aligned(y.data, 16) || !is_aligned(lse.data, 16)) return kUnaligned;
  Plan& plan = find(call_of(shape, in.q.dtype, in.is_packed(), false));
  if (plan.why_not) return plan.why_not;
  Buffer unwanted;  // lse is always computed, so that y's bits do not depend on whether it is requested
  void* stats = lse.data;
  if (!lse) {
    unwanted = pool_.allocate(shape.batch * shape.heads * shape.seq_len * 4, MemoryRole::workspace, s);
    stats = unwanted.data();
  }
  run(s, "attention", {reads(in.q), reads(in.k), reads(in.v), writes(y), writes(lse), writes(unwanted.data(), unwanted.bytes())}, plan,
      {{kQ, from.q}, {kK, from.k}, {kV, from.v}, {kY, y.data}, {kLse, stats}});
  return std::nullopt;
}

std::optional<std::string> CudnnAttention::backward(Stream& s, const AttentionShape& shape, ConstTensorView dy, const ConstQkv& in,
                                                    ConstTensorView y, ConstTensorView lse, const Qkv& d_in) {
  const QkvAddresses from(shape, in);
  const QkvAddresses to(shape, d_in);
  if (auto why_not = why_unfit(shape, in.q.dtype)) return why_not;
  if (!from.are_aligned() || !to.are_aligned() || !is_aligned(y.data, 16) || !is_aligned(dy.data, 16)) return kUnaligned;

  const Call whole = call_of(shape, in.q.dtype, in.is_packed(), true);
  std::vector<AttentionPart> parts{{0, shape.batch, 0, whole.kv_heads}};
  if (deterministic_) {
    const std::int64_t padded = (shape.seq_len + 127) / 128 * 128;
    parts = attention_parts(shape, padded * padded * 2, kMostScoreBytes);
  }
  std::vector<Plan*> plans;  // all are found before the first is run, so that nothing is enqueued if one is missing
  for (const AttentionPart& part : parts) {
    Call call = whole;
    call.batch = part.sequences;
    call.kv_heads = part.kv_heads;
    call.heads = part.kv_heads * shape.group();
    plans.push_back(&find(call));
    if (plans.back()->why_not) return plans.back()->why_not;
  }
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const AttentionPart& part = parts[i];
    const std::int64_t head = part.first_kv_head * shape.group();
    const auto at = [&](const void* data, std::int64_t stride, std::int64_t first_head) -> void* {
      const std::int64_t offset = part.first_sequence * shape.seq_len * stride + first_head * shape.head_dim;
      return const_cast<std::byte*>(static_cast<const std::byte*>(data)) + offset * dtype_bytes(whole.dtype);
    };
    const std::int64_t rows = part.sequences * part.kv_heads * shape.group() * shape.seq_len;
    const ConstTensorView part_lse = lse.slice((part.first_sequence * shape.heads + head) * shape.seq_len, rows);
    Buffer copy;  // for a part that starts after an odd number of rows
    const float* stats = aligned_lse(s, part_lse, copy);
    run(s, "attention_backward",
        {reads(in.q), reads(in.k), reads(in.v), reads(y), reads(dy), reads(lse), reads(copy.data(), copy.bytes()), writes(d_in.q),
         writes(d_in.k), writes(d_in.v)},
        *plans[i],
        {{kQ, at(from.q, whole.q_stride, head)},
         {kK, at(from.k, whole.kv_stride, part.first_kv_head)},
         {kV, at(from.v, whole.kv_stride, part.first_kv_head)},
         {kY, at(y.data, whole.y_stride, head)},
         {kDy, at(dy.data, whole.y_stride, head)},
         {kLse, const_cast<float*>(stats)},
         {kDq, at(to.q, whole.q_stride, head)},
         {kDk, at(to.k, whole.kv_stride, part.first_kv_head)},
         {kDv, at(to.v, whole.kv_stride, part.first_kv_head)}});
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::int64_t> plan_cudnn_attention(const std::string& device, const CudnnPlanRequest& request, std::string& why_not) {
  const auto properties = std::make_shared<fe::DeviceProperties>();
  fe::error_t error = properties->deserialize({device.begin(), device.end()});
  Plan plan;
  if (error.is_good()) {
    plan.graph.set_device_properties(properties);
    plan.graph.set_sm_version(nlohmann::json::parse(device).at("deviceVer").get<int>() / 10);
    const Call call = call_of(request.shape, request.dtype, request.is_packed, request.is_backward);
    error = build(plan, call, request.deterministic, nullptr);
  }
  if (error.is_good()) return plan.workspace_bytes;
  why_not = error.err_msg;
  return std::nullopt;
}

std::unique_ptr<FusedAttention> make_cudnn_attention(Pool& pool, bool deterministic) {
  return std::make_unique<CudnnAttention>(pool, deterministic);
}

}  // namespace mica::cuda
