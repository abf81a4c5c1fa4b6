// SPDX-License-Identifier: Apache-2.0
// Against PyTorch's own FSDP: tests/reference/make_fsdp_reference.py.

#include "unit/optim/fsdp_reference.hpp"

#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/optim/clip_grad_norm.hpp"
#include "mica/optim/optimizer.hpp"

namespace mica::optim {
namespace {

using test::fsdp_reference;
using test::ReferenceRank;
using test::Values;

void expect_near(const Values& found, const Values& expected, double tolerance, const std::string& what) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], tolerance) << what << " element " << i;
}

// C1: nine elements over two ranks, 5 and 4.
TEST(FsdpReference, C1_UnevenLinearAfterOneSgdStep) {
  const nlohmann::json& reference = fsdp_reference()["uneven"];
  run_local_ranks(2, [&](auto world) {
    const auto pool = make_cpu_pool();
    const auto kernels = make_cpu_kernels(*pool);
    Mesh mesh(std::move(world), MeshGeometry{2, 2, 1});
    fsdp::DeviceMesh device_mesh(mesh, *pool, *kernels, fsdp::Streams::make(StreamMode::inlined));
    nn::Context context{.compute = device_mesh.compute(), .pool = *pool, .kernels = *kernels, .sequences = {}};
    nn::Linear linear(3, 3, {.bias = false});
    fsdp::fully_shard(linear, device_mesh, {});
    fsdp::Root& root = fsdp::root_of(linear);
    root.initialize(1);
    ASSERT_EQ(root.pieces().size(), 1U);
    const fsdp::Piece& piece = root.pieces()[0];
    EXPECT_EQ(piece.numel(), mesh.rank() == 0 ? 5 : 4);
    const Values weight = reference["weight"].get<Values>(), stepped = reference["stepped"].get<Values>();
    std::copy(weight.begin() + piece.begin, weight.begin() + piece.end, root.write_master(piece).as<float>());

    Values x = reference["inputs"][static_cast<std::size_t>(mesh.rank())].get<Values>(), ones(6, 1);
    nn::Record record;
    static_cast<void>(linear.forward(context, {Tensor(TensorView{x.data(), {2, 3}, DType::f32})}, &record));
    linear.backward(context, std::move(record), {Tensor(TensorView{ones.data(), {2, 3}, DType::f32})});
    make_sgd(root, {})->step({.lr = reference["lr"].get<double>()});
    context.compute.synchronize();
    for (std::int64_t i = piece.begin; i < piece.end; ++i) {
      EXPECT_NEAR(root.master(piece).as<float>()[i - piece.begin], stepped[static_cast<std::size_t>(i)], 1e-6) << i;
    }
  });
}

// D8: one unit full_shard, one no_shard, the rest full_shard.
TEST(FsdpReference, D8_ClippingWithMixedStrategies) {
  for (const nlohmann::json& reference : fsdp_reference()["clip"]) {
    const std::string p_text = reference["p"].get<std::string>();
    const double p = p_text == "inf" ? std::numeric_limits<double>::infinity() : std::stod(p_text);
    run_local_ranks(2, [&](auto world) {
      ReferenceRank rank(std::move(world), {.down = fsdp::Strategy::no_shard});
      rank.pass(0, rank.rank());
      const Tensor norm = clip_grad_norm(rank.model(), reference["max_norm"].get<double>(), p);
      rank.device_mesh().compute().synchronize();
      EXPECT_NEAR(*norm.view().as<float>(), reference["norm"].get<double>(), 2e-6 * reference["norm"].get<double>()) << p;
      for (const auto& [name, gradient] : reference["gradients"].items()) {
        expect_near(rank.gather_grad(name), Values(gradient), 5e-7, name);
      }
    });
  }
}

// D6: the losses of six SGD steps, each rank on its own inputs. Low precision rounds elsewhere here (PyTorch's logits are
// bf16 or fp16, Mica's fp32).
TEST(FsdpReference, D6_MixedPrecisionLosses) {
  for (const nlohmann::json& reference : fsdp_reference()["mixed"]) {
    const DType param = dtype_from_name(reference["param_dtype"].get<std::string>());
    const DType reduce = dtype_from_name(reference["reduce_dtype"].get<std::string>());
    const double tolerance = param == DType::f32 ? 2e-6 : param == DType::bf16 ? 1e-3 : 1e-4;
    run_local_ranks(2, [&](auto world) {
      ReferenceRank rank(std::move(world), {.options = {.mixed_precision = {param, reduce}}});
      const auto optimizer = make_sgd(rank.root(), {});
      const Values losses = reference["losses"][static_cast<std::size_t>(rank.rank())].get<Values>();
      for (std::size_t step = 0; step < losses.size(); ++step) {
        EXPECT_NEAR(rank.pass(step, rank.rank()), losses[step], tolerance) << dtype_name(param) << " step " << step;
        optimizer->step({.lr = 1});
        rank.root().zero_grad();
      }
    });
  }
}

}  // namespace
}  // namespace mica::optim
