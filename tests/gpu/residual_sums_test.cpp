// SPDX-License-Identifier: Apache-2.0
// Which product makes the sum of a residual on a GPU: only the emulation can be asked what was enqueued and stay small.
#include <gtest/gtest.h>

#include "mica/device/gpu.hpp"
#include "mica/nn/init.hpp"
#include "mica/nn/models/gpt2.hpp"
#include "mica/nn/models/llama.hpp"
#include "mica/tensor/cuda_kernels.hpp"

#include "support/naming_stream.hpp"

namespace mica::testing {
namespace {

/// Tasks of a forward with this name.
std::int64_t count(nn::Module& model, const std::string& name, bool fuse_epilogues) {
  use_gpu(0);
  const auto pool = make_cuda_pool();
  const auto kernels = make_cuda_kernels(*pool, {.fuse_epilogues = fuse_epilogues});
  NamingStream stream(make_cuda_stream("test"));
  nn::Context context{.compute = stream, .pool = *pool, .kernels = *kernels};
  const nn::PlainParameters storage(model, context, DType::bf16);
  nn::Tensors xs{context.make({1, 5}, DType::i32), context.make({1, 5}, DType::i32)};
  for (const Tensor& x : xs) kernels->fill(stream, x, 3);
  stream.names.clear();
  { const nn::Tensors ys = model.forward(context, std::move(xs), nullptr); }
  stream.synchronize();
  return stream.count(name);
}

TEST(GpuResiduals, EverySumIsMadeByTheProductThatEndsItsBranch) {
  nn::Gpt2 gpt2({.layers = 2, .heads = 2, .width = 16, .context = 8, .vocab_size = 13});
  nn::Llama llama({.layers = 2, .heads = 2, .kv_heads = 1, .width = 16, .intermediate_size = 24, .context = 8, .vocab_size = 13});
  for (nn::Module* model : std::initializer_list<nn::Module*>{&gpt2, &llama}) {
    EXPECT_EQ(count(*model, "linear_add", true), 4) << model->type_name();
    EXPECT_EQ(count(*model, "linear_add", false), 0) << model->type_name();
  }
  EXPECT_EQ(count(gpt2, "add_layer_norm", true), 0);
  EXPECT_EQ(count(gpt2, "add_layer_norm", false), 2);
}

}  // namespace
}  // namespace mica::testing
