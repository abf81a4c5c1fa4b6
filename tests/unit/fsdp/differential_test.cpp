// SPDX-License-Identifier: Apache-2.0
// docs/parity.md F8: random models under random options against one plain rank on the same micro-batches.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <exception>
#include <map>

#include <gtest/gtest.h>

#include "mica/nn/init.hpp"

#include "support/environment_number.hpp"
#include "testing/local_group.hpp"
#include "unit/fsdp/sharded_rank.hpp"

namespace mica::testing {
namespace {

constexpr int kDefaultCases = 500;

// --- the plain run --------------------------------------------------------------------------------------------------

/// One step of the model on one rank, from given masters.
struct PlainStep {
  std::vector<std::vector<double>> gradients;             // by parameter: the mean over ranks, empty when frozen
  std::vector<double> largest;                            // by parameter: of any micro-batch's gradient
  std::vector<std::vector<std::vector<double>>> of_rank;  // by rank and parameter: the sum over rounds
  std::vector<Values> outputs;                            // by micro-batch
};

Tensor cast(nn::Context& context, const Tensor& x, DType dtype) {
  Tensor y = context.make(x.shape(), dtype);
  context.kernels.copy(context.compute, x, y);
  return y;
}

PlainStep run_plain_step(const RandomCase& c, const std::vector<Values>& masters, int step) {
  Device device;
  auto compute = make_cpu_stream("compute", StreamMode::inlined);
  nn::Context context{.compute = *compute, .pool = *device.pool, .kernels = *device.kernels};
  auto model = c.make_model();
  model->leave_out(c.left_out_in(step));
  const DType dtype = c.options.param_dtype();
  context.seed = kSeed;  // buffers keep their initial values
  nn::PlainParameters storage(*model, context, dtype, DType::f32);
  std::vector<Tensor> low_buffers;
  model->for_each_buffer([&](const std::string&, nn::ModuleBuffer& buffer) {
    const Tensor& low = low_buffers.emplace_back(context.make(buffer.shape, c.options.mixed_precision.buffer_dtype.value_or(buffer.dtype)));
    device.kernels->copy(*compute, buffer.data, low);
    buffer.data = low;
  });
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
    result.outputs.push_back(values_of(context, cast(context, ys[0], c.dtype_of_output())));
    if (ys[0].needs_grad) model->backward(context, std::move(record), {cast(context, output_gradient(c, context, step, m), dtype)});
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

/// Whole parameters of a step: masters or gradients, by parameter. NaN where no rank has any. Ranks that hold the same
/// element must agree in bits.
std::vector<Values> whole_of(const RandomCase& c, const std::vector<std::vector<RankStep>>& ranks, std::size_t step, Values Part::*member) {
  std::vector<Values> whole;
  c.make_model()->for_each_parameter(
      [&](const std::string&, nn::Parameter& p) { whole.emplace_back(static_cast<std::size_t>(p.shape.numel()), std::nanf("")); });
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    for (const Part& part : ranks[rank][step].parts) {
      const Values& values = part.*member;
      for (std::size_t j = 0; j < values.size(); ++j) {
        float& element = whole[part.parameter][static_cast<std::size_t>(part.begin) + j];
        if (std::isnan(element)) element = values[j];
        EXPECT_TRUE(element == values[j] || (std::isnan(values[j]) && (member == &Part::gradient || std::isnan(element))))
            << "step " << step + 1 << ": rank " << rank << " has " << values[j] << " in parameter " << part.parameter
            << ", where another has " << element;
      }
    }
  }
  return whole;
}

/// Whether gradients are in fp16 on their way.
bool has_f16(const RandomCase& c) {
  return c.options.reduce_dtype() == DType::f16 || (c.options.reduction && c.options.reduction->wire_dtype() == DType::f16);
}

// [Note: differential tolerance]
// Every step of the sharded run is compared with a plain step from the sharded run's own masters, so that differences do
// not grow from step to step. Forwards must agree in bits. A mean over R ranks of n rounds' gradients g_m (of a
// parameter used up to u times in one backward) is summed in another order and rounded at most once for each
// use, round, rank, and for the division in two halves and a compression: 2 (u n + R + 4) roundings of sums that are below
// n max |g_m|. eps: of the lowest dtype on the way. A product accumulates in f32: 100 covers the terms of a dot product
// that cancel, with (at most 4 rows) roundings each.
double gradient_tolerance(const RandomCase& c, double largest) {
  const bool is_low = c.options.reduce_dtype() != DType::f32 || c.options.reduction;
  const auto rounds = static_cast<double>(c.rounds.size());
  const double roundings = 2 * (static_cast<double>(c.blocks.size()) * rounds + c.world_size + 4);
  const double sums = rounds * largest;
  return roundings * (is_low ? 0x1p-9 : 0) * sums + roundings * 100 * 0x1p-24 * (sums + 1e-3) + roundings * (has_f16(c) ? 0x1p-24 : 0);
}

/// What the optimizer does, element by element, in double.
class ExpectedUpdates {
 public:
  explicit ExpectedUpdates(double momentum) : momentum_(momentum) {}

  struct Change {
    double value = 0;
    double terms = 0;  // the sum of the magnitudes that were added up: what rounding is relative to
  };
  /// A step's change of a parameter. @param coefficient  of clipping.
  [[nodiscard]] std::vector<Change> step(std::size_t parameter, const std::vector<double>& gradient, double coefficient) {
    std::vector<Change>& velocity = velocity_[parameter];
    velocity.resize(gradient.size());
    std::vector<Change> changes;
    for (std::size_t j = 0; j < gradient.size(); ++j) {
      velocity[j] = {momentum_ * velocity[j].value + coefficient * gradient[j],
                     momentum_ * velocity[j].terms + std::abs(coefficient * gradient[j])};
      changes.push_back({-kLr * velocity[j].value, kLr * velocity[j].terms});
    }
    return changes;
  }

 private:
  double momentum_;
  std::map<std::size_t, std::vector<Change>> velocity_;
};

bool has_gradient(const std::vector<std::vector<RankStep>>& ranks, std::size_t step, std::size_t parameter) {
  return std::ranges::any_of(ranks, [&](const std::vector<RankStep>& steps) {
    return std::ranges::any_of(steps[step].parts, [&](const Part& p) { return p.parameter == parameter && p.has_gradient; });
  });
}

/// The p-norm of all gradients.
double norm_of(const std::vector<Values>& gradients, double p) {
  double sum = 0, largest = 0;
  for (const Values& gradient : gradients) {
    for (const float g : gradient) {
      if (std::isnan(g)) continue;  // nobody has one
      sum += std::pow(std::abs(static_cast<double>(g)), p);
      largest = std::max(largest, std::abs(static_cast<double>(g)));
    }
  }
  return std::isinf(p) ? largest : std::pow(sum, 1 / p);
}

/// What clipping multiplies with; each rank's norm must be that of the whole gradient.
double clip_coefficient_of(const RandomCase& c, const std::vector<std::vector<RankStep>>& ranks, std::size_t step,
                           const std::vector<Values>& gradients) {
  if (!c.clipping) return 1;
  const double norm = norm_of(gradients, c.clipping->p);
  for (const std::vector<RankStep>& steps : ranks) EXPECT_NEAR(*steps[step].norm, norm, 1e-5 * norm + 1e-7) << "norm of step " << step + 1;
  return std::min(1.0, c.clipping->max_norm / (norm + 1e-6));
}

/// Whether any rank has a gradient that is no number.
bool has_overflow(const std::vector<std::vector<RankStep>>& ranks, std::size_t step) {
  return std::ranges::any_of(ranks, [&](const std::vector<RankStep>& steps) {
    return std::ranges::any_of(
        steps[step].parts, [](const Part& part) { return std::ranges::any_of(part.gradient, [](float g) { return !std::isfinite(g); }); });
  });
}

void compare_rank(const RandomCase& c, const std::vector<RankStep>& steps, std::size_t step, std::size_t rank, const PlainStep& plain) {
  const RankStep& run = steps[step];
  for (std::size_t round = 0; round < run.outputs.size(); ++round) {
    ASSERT_EQ(run.outputs[round], plain.outputs[round * static_cast<std::size_t>(c.world_size) + rank])
        << "step " << step + 1 << " round " << round << " rank " << rank;
  }
  for (const Part& part : run.parts) {
    const bool is_frozen = plain.gradients[part.parameter].empty();
    EXPECT_FALSE(is_frozen && part.has_gradient) << "frozen parameter " << part.parameter;
    for (std::size_t j = 0; j < part.own_gradient.size(); ++j) {
      const std::size_t at = static_cast<std::size_t>(part.begin) + j;
      ASSERT_NEAR(part.own_gradient[j], plain.of_rank[rank][part.parameter][at], gradient_tolerance(c, plain.largest[part.parameter]))
          << "reduced although it is ignored: step " << step + 1 << " rank " << rank << " parameter " << part.parameter << " element "
          << at;
    }
  }
}

void compare(const RandomCase& c, const std::vector<std::vector<RankStep>>& ranks) {
  ExpectedUpdates updates(c.momentum);
  const bool in_backward = c.stepping == RandomCase::Stepping::in_backward;
  for (std::size_t step = 0; step < static_cast<std::size_t>(c.num_steps); ++step) {
    const std::vector<Values> masters = whole_of(c, ranks, step, &Part::master);
    const std::vector<Values> next = whole_of(c, ranks, step + 1, &Part::master);
    const std::vector<Values> gradients = whole_of(c, ranks, step, &Part::gradient);
    const PlainStep plain = run_plain_step(c, masters, static_cast<int>(step));
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) compare_rank(c, ranks[rank], step, rank, plain);
    const bool overflows = has_overflow(ranks, step);
    if (overflows && c.loss_scale == 0 && has_f16(c)) return;  // past fp16's range, and no scaler to skip the step
    for (const auto& steps : ranks) EXPECT_EQ(steps[step].is_skipped, overflows) << "step " << step + 1;
    const double coefficient = overflows ? 1 : clip_coefficient_of(c, ranks, step, gradients);
    for (std::size_t i = 0; i < masters.size(); ++i) {
      for (const float value : masters[i]) ASSERT_FALSE(std::isnan(value)) << "nobody holds all of parameter " << i;
      if (overflows || plain.gradients[i].empty()) {
        ASSERT_EQ(next[i], masters[i]) << "parameter " << i << " was not to change in step " << step + 1;
        continue;
      }
      const std::vector<double>& expected = plain.gradients[i];
      const double tolerance = gradient_tolerance(c, plain.largest[i]);
      const bool has = has_gradient(ranks, step, i);
      std::vector<double> gradient = expected;  // an optimizer in backward has freed its own
      for (std::size_t j = 0; j < expected.size() && !in_backward; ++j) {
        gradient[j] = has ? static_cast<double>(gradients[i][j]) : 0;
        ASSERT_NEAR(gradient[j], expected[j], tolerance) << "step " << step + 1 << " parameter " << i << " element " << j;
      }
      if (!in_backward && !has) {
        ASSERT_EQ(next[i], masters[i]) << "parameter " << i << " has no gradient in step " << step + 1;
        continue;
      }
      const std::vector<ExpectedUpdates::Change> changes = updates.step(i, gradient, coefficient);
      // Clipping in place rounds to the gradient's dtype.
      const double rounding = c.clipping && c.clipping->in_place && c.options.grad_dtype() != DType::f32 ? 0x1p-8 : 0x1p-16;
      for (std::size_t j = 0; j < expected.size(); ++j) {
        const double updated = static_cast<double>(masters[i][j]) + changes[j].value;
        ASSERT_NEAR(next[i][j], updated, 0x1p-22 * std::abs(updated) + rounding * changes[j].terms + (in_backward ? kLr * tolerance : 1e-8))
            << "step " << step + 1 << " parameter " << i << " element " << j << ", gradient " << gradient[j] << " times " << coefficient;
      }
    }
  }
}

void run_case(std::uint64_t seed) {
  const RandomCase c(seed);
  SCOPED_TRACE(c.describe());
  std::vector<std::vector<RankStep>> ranks(static_cast<std::size_t>(c.world_size));
  try {
    run_local_ranks(c.world_size,
                    [&](std::unique_ptr<ProcessGroup> world) {
                      const auto rank = static_cast<std::size_t>(world->rank());
                      ranks[rank] = ShardedRank(c, std::move(world)).run();
                    },
                    {.shares_memory = c.shares_memory});
  } catch (const std::exception& error) {
    ADD_FAILURE() << error.what();
    return;
  }
  compare(c, ranks);
}

/// MICA_DIFFERENTIAL_CASE=n runs one case, MICA_DIFFERENTIAL_CASES=n so many, from MICA_DIFFERENTIAL_FIRST on.
std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
  return static_cast<std::uint64_t>(test::environment_number(name, static_cast<std::int64_t>(otherwise)));
}

TEST(Differential, F8_RandomModelsAndOptionsFollowOnePlainRank) {
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
