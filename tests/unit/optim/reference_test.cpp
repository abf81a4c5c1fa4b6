// SPDX-License-Identifier: Apache-2.0
// Every optimizer and clipping against PyTorch (tests/reference/make_optim_reference.py), on 1 to 4 ranks.
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>

#include <gtest/gtest.h>

#include "mica/optim/clip_grad_norm.hpp"
#include "mica/optim/optimizer.hpp"

#include "support/paths.hpp"
#include "unit/optim/sharded_weights.hpp"

namespace mica::optim {
namespace {

using test::ShardedWeights;
using test::Values;

using Settings = std::map<std::string, double>;

struct ReferenceCase {
  std::string kind;
  Settings settings;
  Values init;
  std::vector<Values> grads, params;
};

struct Reference {
  std::vector<ReferenceCase> cases;
  Values clip_grad;
  std::vector<Settings> clips;
};

Values numbers(std::istringstream& line) {
  Values values;
  for (std::string word; line >> word;) values.push_back(std::strtof(word.c_str(), nullptr));
  return values;
}

Settings settings_of(std::istringstream& line) {
  Settings settings;
  for (std::string word; line >> word;) {
    const auto equals = word.find('=');
    settings[word.substr(0, equals)] = std::strtod(word.c_str() + equals + 1, nullptr);
  }
  return settings;
}

Reference read_reference() {
  std::ifstream file(test::reference_path("optim.txt"));
  Reference reference;
  for (std::string text; std::getline(file, text);) {
    std::istringstream line(text);
    std::string what;
    line >> what;
    if (what == "case") {
      ReferenceCase& c = reference.cases.emplace_back();
      line >> c.kind;
      c.settings = settings_of(line);
    } else if (what == "init") {
      reference.cases.back().init = numbers(line);
    } else if (what == "grad") {
      reference.cases.back().grads.push_back(numbers(line));
    } else if (what == "param") {
      reference.cases.back().params.push_back(numbers(line));
    } else if (what == "clip_grad") {
      reference.clip_grad = numbers(line);
    } else if (what == "clip") {
      reference.clips.push_back(settings_of(line));
    }
  }
  return reference;
}

// A 5x3 matrix, which decays, and a vector of 4, which does not.
constexpr std::size_t kMatrixNumel = 15;
Values matrix_of(const Values& both) { return {both.begin(), both.begin() + kMatrixNumel}; }
Values vector_of(const Values& both) { return {both.begin() + kMatrixNumel, both.end()}; }
Values joined(Values a, const Values& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

std::unique_ptr<Optimizer> make_optimizer(fsdp::Root& root, const ReferenceCase& c) {
  const auto setting = [&](const char* name) { return c.settings.at(name); };
  if (c.kind == "sgd") {
    return make_sgd(root, {.momentum = setting("momentum"),
                           .dampening = setting("dampening"),
                           .weight_decay = setting("weight_decay"),
                           .nesterov = setting("nesterov") != 0});
  }
  return make_adamw(root, {.beta1 = setting("beta1"),
                           .beta2 = setting("beta2"),
                           .eps = setting("eps"),
                           .weight_decay = setting("weight_decay"),
                           .decoupled = c.kind == "adamw"});
}

/// 1e-6 relative, with the parameters' order of magnitude as the floor: a parameter that happens to pass zero keeps the
/// absolute error of the updates that brought it there.
void expect_close(const Values& found, const Values& expected, const std::string& what) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_NEAR(found[i], expected[i], 1e-6 * std::max(1.0F, std::abs(expected[i]))) << what << ", element " << i;
  }
}

class OptimizersOnRanks : public ::testing::TestWithParam<int> {};

TEST_P(OptimizersOnRanks, FollowPyTorch) {
  const Reference reference = read_reference();
  ASSERT_EQ(reference.cases.size(), 10U);
  run_local_ranks(GetParam(), [&](std::unique_ptr<ProcessGroup> world) {
    for (const ReferenceCase& c : reference.cases) {
      const auto own_world = world->duplicate("case");
      ShardedWeights model(own_world->duplicate("mesh"),
                           {{{"w", Shape{5, 3}, true, matrix_of(c.init)}, {"b", Shape{4}, false, vector_of(c.init)}}});
      const auto optimizer = make_optimizer(model.root(), c);
      EXPECT_EQ(optimizer->name(), c.kind);
      ASSERT_EQ(c.params.size(), 5U);
      for (std::size_t t = 0; t < c.params.size(); ++t) {
        model.weight(0, 0).grad = matrix_of(c.grads[t]);
        model.weight(0, 1).grad = vector_of(c.grads[t]);
        model.pass();
        optimizer->step({.lr = c.settings.at("lr")});
        model.root().zero_grad();
        expect_close(joined(model.gather("u0.w"), model.gather("u0.b")), c.params[t],
                     fmt::format("{} with weight_decay {}, step {}", c.kind, c.settings.at("weight_decay"), t + 1));
      }
      EXPECT_EQ(optimizer->num_steps(), 5);
    }
  });
}

TEST_P(OptimizersOnRanks, ClippingFollowsPyTorch) {
  const Reference reference = read_reference();
  ASSERT_EQ(reference.clips.size(), 8U);
  run_local_ranks(GetParam(), [&](std::unique_ptr<ProcessGroup> world) {
    ShardedWeights model(std::move(world), {{{"w", Shape{5, 3}, true}, {"b", Shape{4}, false}}});
    model.weight(0, 0).grad = matrix_of(reference.clip_grad);
    model.weight(0, 1).grad = vector_of(reference.clip_grad);
    for (const Settings& clip_case : reference.clips) {
      model.pass();
      const ClipCoefficient clip = clip_coefficient(model.root(), clip_case.at("max_norm"), clip_case.at("p"));
      expect_close(model.gather_grad("u0.w"), matrix_of(reference.clip_grad), "untouched");
      const Tensor norm = clip_grad_norm(model.root(), clip_case.at("max_norm"), clip_case.at("p"));
      Values expected = reference.clip_grad;
      for (float& e : expected) e = static_cast<float>(e * clip_case.at("coefficient"));
      expect_close(joined(model.gather_grad("u0.w"), model.gather_grad("u0.b")), expected, "clipped gradient");
      for (const Tensor* each : {&clip.norm, &norm}) {
        EXPECT_NEAR(*each->view().as<float>(), clip_case.at("norm"), 1e-6 * clip_case.at("norm"));
      }
      EXPECT_NEAR(*clip.coefficient.view().as<float>(), clip_case.at("coefficient"), 1e-6);
      model.root().zero_grad();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, OptimizersOnRanks, ::testing::Values(1, 2, 3, 4));

}  // namespace
}  // namespace mica::optim
