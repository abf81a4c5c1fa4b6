// SPDX-License-Identifier: Apache-2.0
#include "mica/nn/key_value_cache.hpp"

#include <gmock/gmock.h>

#include "mica/nn/models/gpt2.hpp"
#include "mica/nn/models/llama.hpp"

#include "nn_testing.hpp"

namespace mica::nn::testing {
namespace {

using ::testing::FloatNear;
using ::testing::Pointwise;

constexpr std::int64_t kVocab = 13, kContext = 23;

struct Model {
  std::string name;
  std::function<std::unique_ptr<LanguageModel>()> make;
};

const std::vector<Model>& models() {
  static const std::vector<Model> all{
      {"gpt2",
       [] { return std::make_unique<Gpt2>(Gpt2Config{.layers = 2, .heads = 3, .width = 9, .context = kContext, .vocab_size = kVocab}); }},
      {"llama", [] {
         return std::make_unique<Llama>(LlamaConfig{.layers = 2,
                                                    .heads = 6,
                                                    .kv_heads = 2,
                                                    .head_dim = 4,
                                                    .width = 10,
                                                    .intermediate_size = 14,
                                                    .context = kContext,
                                                    .vocab_size = kVocab});
       }}};
  return all;
}

/// A model with storage whose weights are large enough to make tokens differ.
struct CachedRun {
  explicit CachedRun(const Model& which, KernelsKind kind = KernelsKind::cpu)
      : rig(kind), model(which.make()), storage(*model, rig.context) {
    model->for_each_parameter([&](const std::string&, Parameter& parameter) {
      if (parameter.shape.num_dims() == 2) rig.kernels->scale(*rig.stream, parameter.data, 20, parameter.data, Write::overwrite);
    });
    rig.context.training = false;
  }

  /// Rows of logits of a forward as in training.
  std::vector<float> plain(const Tensor& ids) { return floats(rig, model->forward(rig.context, {ids}, nullptr).at(0)); }
  std::vector<float> cached(KeyValueCache& cache, std::vector<CachedRow> rows, const Tensor& ids, KeyValueCache::Logits which) {
    cache.begin(std::move(rows), ids.shape()[1], which);
    const ScopedValue continued(rig.context.cache, &cache);
    return floats(rig, model->forward(rig.context, {ids}, nullptr).at(0));
  }
  /// ids [begin, end) of row `row`, as [1, end - begin].
  Tensor part(const Tensor& ids, std::int64_t row, std::int64_t begin, std::int64_t end) {
    Tensor some = rig.context.make({1, end - begin}, DType::i32);
    rig.stream->synchronize();
    std::copy_n(ids.view().as<std::int32_t>() + row * ids.shape()[1] + begin, end - begin, some.view().as<std::int32_t>());
    return some;
  }

  Rig rig;
  std::unique_ptr<LanguageModel> model;
  PlainParameters storage;
};

std::vector<float> rows_of(const std::vector<float>& logits, std::int64_t begin, std::int64_t end) {
  return {logits.begin() + begin * kVocab, logits.begin() + end * kVocab};
}

class KeyValueCacheTest : public ::testing::TestWithParam<Model> {};

TEST_P(KeyValueCacheTest, ACachedForwardGivesTheLogitsOfAPlainOne) {
  for (const KernelsKind kind : {KernelsKind::cpu, KernelsKind::reference}) {
    CachedRun run(GetParam(), kind);
    const Tensor ids = run.rig.tokens({1, kContext}, kVocab);
    const std::vector<float> whole = run.plain(ids);
    for (const std::int64_t first : {1, 2, 17, 22}) {  // with and without tiles in attention
      KeyValueCache cache(2, kContext);
      const auto at = [&](std::int64_t past) { return std::vector<CachedRow>{{.slot = 1, .past = past}}; };
      EXPECT_THAT(run.cached(cache, at(0), run.part(ids, 0, 0, first), KeyValueCache::Logits::last),
                  Pointwise(FloatNear(2e-4F), rows_of(whole, first - 1, first)));
      std::int64_t past = first;
      if (past + 3 <= kContext) {
        EXPECT_THAT(run.cached(cache, at(past), run.part(ids, 0, past, past + 3), KeyValueCache::Logits::all),
                    Pointwise(FloatNear(2e-4F), rows_of(whole, past, past + 3)));
        past += 3;
      }
      for (; past < kContext; ++past) {
        ASSERT_THAT(run.cached(cache, at(past), run.part(ids, 0, past, past + 1), KeyValueCache::Logits::last),
                    Pointwise(FloatNear(2e-4F), rows_of(whole, past, past + 1)))
            << past;
      }
    }
  }
}

/// Rows of one batch are at different positions; each has the bits that it has alone.
TEST_P(KeyValueCacheTest, RowsOfUnequalLengthDoNotTouchEachOther) {
  CachedRun run(GetParam());
  const Tensor ids = run.rig.tokens({3, kContext}, kVocab);
  const std::vector<std::int64_t> lengths{1, 20, 6};
  KeyValueCache together(3, kContext), alone(3, kContext);
  std::vector<CachedRow> rows;
  Tensor next = run.rig.context.make({3, 1}, DType::i32);
  run.rig.stream->synchronize();
  for (std::int64_t r = 0; r < 3; ++r) {
    rows.push_back({.slot = 2 - r, .past = lengths[static_cast<std::size_t>(r)]});
    for (KeyValueCache* cache : {&together, &alone}) {
      (void)run.cached(*cache, {{.slot = 2 - r, .past = 0}}, run.part(ids, r, 0, rows.back().past), KeyValueCache::Logits::last);
    }
    next.view().as<std::int32_t>()[r] = ids.view().as<std::int32_t>()[r * kContext + rows.back().past];
  }
  const std::vector<float> all = run.cached(together, rows, next, KeyValueCache::Logits::last);
  for (std::int64_t r = 0; r < 3; ++r) {
    const std::int64_t past = lengths[static_cast<std::size_t>(r)];
    const std::vector<float> one =
        run.cached(alone, {rows[static_cast<std::size_t>(r)]}, run.part(ids, r, past, past + 1), KeyValueCache::Logits::last);
    EXPECT_EQ(rows_of(all, r, r + 1), one) << r;
  }
}

/// Fewer tokens than a slot has: what follows is forgotten.
TEST_P(KeyValueCacheTest, ASequenceCanBeTakenBack) {
  CachedRun run(GetParam());
  const Tensor ids = run.rig.tokens({1, kContext}, kVocab), others = run.rig.tokens({1, kContext}, kVocab, "others");
  KeyValueCache cache(1, kContext);
  (void)run.cached(cache, {{.slot = 0, .past = 0}}, run.part(ids, 0, 0, 5), KeyValueCache::Logits::last);
  (void)run.cached(cache, {{.slot = 0, .past = 5}}, run.part(others, 0, 0, 9), KeyValueCache::Logits::last);
  const std::vector<float> again = run.cached(cache, {{.slot = 0, .past = 5}}, run.part(ids, 0, 5, 9), KeyValueCache::Logits::all);
  EXPECT_THAT(again, Pointwise(FloatNear(2e-4F), rows_of(run.plain(ids), 5, 9)));
}

/// A unit of its own looks positions up alone.
TEST_P(KeyValueCacheTest, PositionsAreRightWhereNeighboursDoNotShareAKernel) {
  CachedRun run(GetParam());
  const Tensor ids = run.rig.tokens({1, 9}, kVocab);
  const std::vector<float> whole = run.plain(ids);
  run.model->for_each_module([](const std::string&, Module& module) { module.set_checkpointed(module.children().empty()); });
  KeyValueCache cache(1, kContext);
  (void)run.cached(cache, {{.slot = 0, .past = 0}}, run.part(ids, 0, 0, 4), KeyValueCache::Logits::last);
  EXPECT_THAT(run.cached(cache, {{.slot = 0, .past = 4}}, run.part(ids, 0, 4, 9), KeyValueCache::Logits::all),
              Pointwise(FloatNear(2e-4F), rows_of(whole, 4, 9)));
}

TEST_P(KeyValueCacheTest, WhatDoesNotFitIsRefused) {
  CachedRun run(GetParam());
  KeyValueCache cache(1, 5);
  EXPECT_THROW(cache.begin({{.slot = 0, .past = 3}}, 3, KeyValueCache::Logits::last), Error);
  cache.begin({{.slot = 0, .past = 0}}, 2, KeyValueCache::Logits::last);
  const ScopedValue continued(run.rig.context.cache, &cache);
  Record record;
  EXPECT_THROW((void)run.model->forward(run.rig.context, {run.rig.tokens({1, 2}, kVocab)}, &record), Error);
}

/// A cache may hold more than the model.
TEST_P(KeyValueCacheTest, SequencesBeyondTheModelsContextAreRefused) {
  CachedRun run(GetParam());
  KeyValueCache cache(1, 2 * kContext);
  const ScopedValue continued(run.rig.context.cache, &cache);
  const auto forward_behind = [&](std::int64_t past) {
    cache.begin({{.slot = 0, .past = past}}, 2, KeyValueCache::Logits::last);
    (void)run.model->forward(run.rig.context, {run.rig.tokens({1, 2}, kVocab)}, nullptr);
  };
  forward_behind(kContext - 2);
  try {
    forward_behind(kContext - 1);
    FAIL() << "expected a ConfigError";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr(fmt::format("does not fit the model's context of {}", kContext)));
  }
}

/// A rank without rows takes part in a sharded model's forward.
TEST_P(KeyValueCacheTest, NoRowsGiveNoLogits) {
  CachedRun run(GetParam());
  KeyValueCache cache(1, 5);
  const Tensor none(TensorView(nullptr, {0, 1}, DType::i32));
  EXPECT_TRUE(run.cached(cache, {}, none, KeyValueCache::Logits::last).empty());
}

INSTANTIATE_TEST_SUITE_P(Models, KeyValueCacheTest, ::testing::ValuesIn(models()), [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace mica::nn::testing
