// FEATURES F8: random models under random options against one plain rank on the same micro-batches.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <exception>
#include <optional>
#include <utility>

#include <gtest/gtest.h>

#include "mica/comm/local_group.hpp"
#include "mica/fsdp/deterministic.hpp"
#include "mica/nn/init.hpp"

#include "support/random_case.hpp"
#include "unit/fsdp/held_parameters.hpp"

namespace mica::testing {
namespace {

constexpr int kDefaultCases = 500;

/// What one rank saw in one step.
struct RankStep {
  std::vector<Part> parts;
  std::vector<Values> outputs;  // by round
};

/// x and dy of a micro-batch: any fixed function of its number.
Values numbers(std::int64_t numel, int step, int micro_batch, int salt) {
  Values values;
  for (std::int64_t i = 0; i < numel; ++i) {
    values.push_back(static_cast<float>(std::sin(0.7 * static_cast<double>(i) + 1.3 * micro_batch + 2.9 * step + salt)));
  }
  return values;
}

/// One rank's device without anything sharded.
struct Device {
  std::unique_ptr<Pool> pool = make_cpu_pool();
  std::unique_ptr<Kernels> kernels = make_reference_kernels(*pool);
  Device() { pool->poison(true); }
};

Tensor tensor_of(nn::Context& context, const Values& values, Shape shape, DType dtype) {
  Tensor tensor = context.make(shape, dtype);
  const Tensor wide = context.make(shape, DType::f32);
  context.compute.synchronize();
  std::ranges::copy(values, wide.view().as<float>());
  context.kernels.copy(context.compute, wide, tensor);
  return tensor;
}

nn::Tensors run_forward(const RandomCase& c, nn::Module& model, nn::Context& context, int step, int micro_batch, DType dtype, nn::Record* record) {
  const Shape shape{c.rows, c.blocks.front().in};
  return model.forward(context, nn::list_of(tensor_of(context, numbers(shape.numel(), step, micro_batch, 0), shape, dtype)), record);
}

/// dy of a micro-batch, divided by the rounds of a step.
Tensor output_gradient(const RandomCase& c, nn::Context& context, int step, int micro_batch, DType dtype) {
  const Shape shape{c.rows, c.blocks.back().out};
  Values dy = numbers(shape.numel(), step, micro_batch, 1);
  for (float& value : dy) value /= static_cast<float>(c.rounds.size());
  return tensor_of(context, dy, shape, dtype);
}

// --- the sharded run ------------------------------------------------------------------------------------------------

std::vector<Part> parts_of(fsdp::Root& root, nn::Module& model, bool gradients) {
  std::vector<const nn::Parameter*> order;
  model.for_each_parameter([&](const std::string&, nn::Parameter& p) { order.push_back(&p); });
  std::vector<Part> parts;
  for (const fsdp::ShardedParameter& p : root.parameters()) {
    for (std::int64_t i = 0; i < p.piece.num_runs(); ++i) {
      const fsdp::Piece::Run run = p.piece.run(i);
      Part part{static_cast<std::size_t>(std::ranges::find(order, p.parameter) - order.begin()), run.begin, {}, {}};
      const TensorView master = p.storage->master().slice(run.offset, run.numel());
      part.master.assign(master.as<float>(), master.as<float>() + run.numel());
      part.has_gradient = p.storage->has_grad(p.index);
      if (gradients && part.has_gradient) {
        const TensorView gradient = p.storage->sharded_grad().slice(run.offset, run.numel());
        part.gradient.assign(gradient.as<float>(), gradient.as<float>() + run.numel());
      }
      parts.push_back(std::move(part));
    }
  }
  return parts;
}

/// The rounds of one step. @returns their outputs.
std::vector<Values> run_rounds(const RandomCase& c, nn::Module& model, nn::Context& context, int step, int rank) {
  fsdp::Root& root = fsdp::root_of(model);
  const DType dtype = c.options.param_dtype();
  std::vector<Values> outputs;
  struct Open {
    nn::Record record;
    Tensor dy;
  };
  std::vector<Open> open;
  for (std::size_t round = 0; round < c.rounds.size(); ++round) {
    root.set_gradient_sync(c.rounds[round].reduces);
    const int micro_batch = static_cast<int>(round) * c.world_size + rank;
    Open& now = open.emplace_back();
    // The root casts the input; dy has the output's dtype.
    const nn::Tensors ys = run_forward(c, model, context, step, micro_batch, DType::f32, &now.record);
    outputs.push_back(values_of(context, ys[0]));
    now.dy = output_gradient(c, context, step, micro_batch, dtype);
    if (c.rounds[round].joins_next) continue;
    std::optional<fsdp::BackwardPass> pass;
    if (open.size() > 1) pass.emplace(root);
    while (!open.empty()) {
      model.backward(context, std::move(open.back().record), {open.back().dy});
      open.pop_back();
    }
    if (pass) pass->finish();
  }
  return outputs;
}

/// @returns what this rank saw in each step, and one more entry with the masters at the end.
std::vector<RankStep> run_sharded_rank(const RandomCase& c, std::unique_ptr<ProcessGroup> world) {
  Device device;
  const int rank = world->rank();
  Mesh mesh(std::move(world), MeshGeometry{c.world_size, c.shard_size, c.world_size / c.shard_size});
  fsdp::DeviceMesh device_mesh(mesh, *device.pool, *device.kernels,
                               fsdp::Streams::make(c.threaded ? StreamMode::threaded : StreamMode::inlined));
  nn::Context context{.compute = device_mesh.compute(), .pool = *device.pool, .kernels = *device.kernels};
  context.recompute = c.recompute;
  auto model = c.make_model();
  c.shard(*model, device_mesh);
  fsdp::Root& root = fsdp::root_of(*model);
  root.initialize(kSeed);
  IgnoredParameters ignored(c, root, *model, context);
  std::vector<RankStep> steps;
  for (int step = 0; step < c.num_steps; ++step) {
    model->leave_out(c.left_out_in(step));
    if (c.evaluates) {
      context.training = false;
      ignored.show(false);
      static_cast<void>(run_forward(c, *model, context, step, rank, DType::f32, nullptr));
      context.training = true;
      ignored.show(true);
    }
    RankStep& now = steps.emplace_back();
    now.outputs = run_rounds(c, *model, context, step, rank);
    if (c.options.reduction && c.options.reduction->is_deterministic()) {
      // Its gradients are sums over micro-batches; dy carries the division by the rounds already.
      fsdp::average_grads(root, c.world_size);
    }
    context.compute.synchronize();
    now.parts = parts_of(root, *model, true);
    ignored.reduce(device_mesh.metrics_group(), now.parts);
    root.reshard();
    for (const fsdp::ShardedParameter& p : root.parameters()) {
      if (p.grad()) device.kernels->sgd(context.compute, {.param = p.master(), .grad = p.grad(), .lr = kLr});
    }
    root.zero_grad();
    ignored.step();
  }
  context.compute.synchronize();
  steps.push_back({parts_of(root, *model, false), {}});
  ignored.add_masters(steps.back().parts);
  return steps;
}

// --- the plain run --------------------------------------------------------------------------------------------------

/// One step of the model on one rank, from given masters.
struct PlainStep {
  std::vector<std::vector<double>> gradients;  // by parameter: the mean over ranks, empty when frozen
  std::vector<double> largest;                 // by parameter: of any micro-batch's gradient
  std::vector<std::vector<std::vector<double>>> of_rank;  // by rank and parameter: the sum over rounds
  std::vector<Values> outputs;                 // by micro-batch
};

PlainStep run_plain_step(const RandomCase& c, const std::vector<Values>& masters, int step) {
  Device device;
  auto compute = make_cpu_stream("compute", StreamMode::inlined);
  nn::Context context{.compute = *compute, .pool = *device.pool, .kernels = *device.kernels};
  auto model = c.make_model();
  model->leave_out(c.left_out_in(step));
  const DType dtype = c.options.param_dtype();
  nn::PlainParameters storage(*model, context, dtype, DType::f32);
  std::vector<nn::Parameter*> parameters;
  model->for_each_parameter([&](const std::string&, nn::Parameter& p) { parameters.push_back(&p); });
  PlainStep result;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const std::size_t numel = parameters[i]->requires_grad ? masters[i].size() : 0;
    result.gradients.emplace_back(numel, 0.0);
    result.largest.push_back(0);
    device.kernels->copy(*compute, ConstTensorView(masters[i].data(), parameters[i]->shape, DType::f32), parameters[i]->data);
  }
  result.of_rank.assign(static_cast<std::size_t>(c.world_size), result.gradients);
  const int num_micro_batches = c.world_size * static_cast<int>(c.rounds.size());
  for (int m = 0; m < num_micro_batches; ++m) {
    storage.zero_grad();
    nn::Record record;
    const nn::Tensors ys = run_forward(c, *model, context, step, m, dtype, &record);
    result.outputs.push_back(values_of(context, ys[0]));
    if (ys[0].needs_grad) model->backward(context, std::move(record), {output_gradient(c, context, step, m, dtype)});
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      for (std::size_t j = 0; j < result.gradients[i].size(); ++j) {
        const double g = parameters[i]->grad_written ? static_cast<double>(parameters[i]->grad.as<float>()[j]) : 0;
        result.gradients[i][j] += g / c.world_size;
        result.of_rank[static_cast<std::size_t>(m % c.world_size)][i][j] += g;
        result.largest[i] = std::max(result.largest[i], std::abs(g));
      }
    }
  }
  return result;
}

// --- the comparison -------------------------------------------------------------------------------------------------

/// Whole masters at the beginning of a step; ranks that hold the same element must agree in bits.
std::vector<Values> whole_masters(const RandomCase& c, const std::vector<std::vector<RankStep>>& ranks, std::size_t step) {
  std::vector<Values> whole;
  c.make_model()->for_each_parameter([&](const std::string&, nn::Parameter& p) {
    whole.emplace_back(static_cast<std::size_t>(p.shape.numel()), std::nanf(""));
  });
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    for (const Part& part : ranks[rank][step].parts) {
      for (std::size_t j = 0; j < part.master.size(); ++j) {
        float& element = whole[part.parameter][static_cast<std::size_t>(part.begin) + j];
        if (std::isnan(element)) element = part.master[j];
        EXPECT_EQ(element, part.master[j]) << "step " << step + 1 << ": rank " << rank << " has another value of parameter " << part.parameter;
      }
    }
  }
  return whole;
}

// [Note: differential tolerance]
// Every step of the sharded run is compared with a plain step from the sharded run's own masters, so that differences do
// not grow from step to step. Forwards must agree in bits. A mean over R ranks of n rounds' gradients g_m (of a
// parameter used up to u times in one backward) is summed in another order and rounded at most once for each
// use, round, rank, and for the division in two halves and a compression: 2 (u n + R + 4) roundings of sums that are below
// n max |g_m|. eps: of the lowest dtype on the way. A product accumulates in f32: 100 covers the terms of a dot product
// that cancel, with (at most 4 rows) roundings each.
double gradient_tolerance(const RandomCase& c, double largest) {
  const bool is_low = c.options.reduce_dtype() != DType::f32 || (c.options.reduction && !c.options.reduction->is_deterministic());
  const auto rounds = static_cast<double>(c.rounds.size());
  const double roundings = 2 * (static_cast<double>(c.blocks.size()) * rounds + c.world_size + 4);
  const double sums = rounds * largest;
  return roundings * (is_low ? 0x1p-9 : 0) * sums + roundings * 100 * 0x1p-24 * (sums + 1e-3);
}

void compare(const RandomCase& c, const std::vector<std::vector<RankStep>>& ranks) {
  for (std::size_t step = 0; step < static_cast<std::size_t>(c.num_steps); ++step) {
    const std::vector<Values> masters = whole_masters(c, ranks, step);
    const std::vector<Values> next = whole_masters(c, ranks, step + 1);
    const PlainStep plain = run_plain_step(c, masters, static_cast<int>(step));
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      const RankStep& run = ranks[rank][step];
      for (std::size_t round = 0; round < run.outputs.size(); ++round) {
        ASSERT_EQ(run.outputs[round], plain.outputs[round * ranks.size() + rank]) << "step " << step + 1 << " round " << round << " rank " << rank;
      }
      for (const Part& part : run.parts) {
        const std::vector<double>& expected = plain.gradients[part.parameter];
        if (expected.empty()) {
          EXPECT_FALSE(part.has_gradient) << "frozen parameter " << part.parameter;
          continue;
        }
        const double tolerance = gradient_tolerance(c, plain.largest[part.parameter]);
        for (std::size_t j = 0; j < part.master.size(); ++j) {
          const std::size_t at = static_cast<std::size_t>(part.begin) + j;
          const float gradient = part.has_gradient ? part.gradient[j] : 0.0F;
          ASSERT_NEAR(gradient, expected[at], tolerance) << "step " << step + 1 << " rank " << rank << " parameter " << part.parameter << " element " << at;
          if (!part.own_gradient.empty()) {
            ASSERT_NEAR(part.own_gradient[j], plain.of_rank[rank][part.parameter][at], tolerance)
                << "reduced although it is ignored: step " << step + 1 << " rank " << rank << " parameter "
                << part.parameter << " element " << at;
          }
          const float updated = part.master[j] - static_cast<float>(kLr) * gradient;
          ASSERT_NEAR(next[part.parameter][at], updated, 0x1p-22 * (std::abs(updated) + std::abs(gradient)));
        }
      }
    }
    for (std::size_t i = 0; i < masters.size(); ++i) {
      for (const float value : masters[i]) ASSERT_FALSE(std::isnan(value)) << "nobody holds all of parameter " << i;
    }
  }
}

void run_case(std::uint64_t seed) {
  const RandomCase c(seed);
  SCOPED_TRACE(c.describe());
  std::vector<std::vector<RankStep>> ranks(static_cast<std::size_t>(c.world_size));
  try {
    run_local_ranks(c.world_size, [&](std::unique_ptr<ProcessGroup> world) {
      const auto rank = static_cast<std::size_t>(world->rank());
      ranks[rank] = run_sharded_rank(c, std::move(world));
    });
  } catch (const std::exception& error) {
    ADD_FAILURE() << error.what();
    return;
  }
  compare(c, ranks);
}

/// MICA_DIFFERENTIAL_CASE=n runs one case, MICA_DIFFERENTIAL_CASES=n so many, from MICA_DIFFERENTIAL_FIRST on.
std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

TEST(Differential, RandomModelsAndOptionsFollowOnePlainRank) {
  if (const std::uint64_t only = from_environment("MICA_DIFFERENTIAL_CASE", 0); only != 0) {
    run_case(only);
    return;
  }
  const std::uint64_t first = from_environment("MICA_DIFFERENTIAL_FIRST", 1);
  const std::uint64_t count = from_environment("MICA_DIFFERENTIAL_CASES", kDefaultCases);
  int num_failed = 0;
  for (std::uint64_t i = 0; i < count && num_failed < 5; ++i) {
    const auto failures = ::testing::UnitTest::GetInstance()->current_test_info()->result()->total_part_count();
    run_case(first + i);
    if (::testing::UnitTest::GetInstance()->current_test_info()->result()->total_part_count() > failures) ++num_failed;
  }
}

}  // namespace
}  // namespace mica::testing
