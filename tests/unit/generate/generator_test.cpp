// SPDX-License-Identifier: Apache-2.0
#include "mica/generate/generator.hpp"

#include <map>

#include <gmock/gmock.h>

#include "small_model.hpp"

namespace mica::generate {
namespace {

using ::testing::Each;
using testing::kContext;
using testing::kVocab;
using testing::row;
using testing::SmallModel;

using Ids = std::vector<std::int32_t>;

struct Texts {
  std::map<std::int64_t, Ids> ids;
  std::map<std::int64_t, int> ends;
};

Texts run(SmallModel& small, const GeneratorOptions& options, std::vector<NumberedPrompt> prompts, std::int64_t slots,
          std::int64_t capacity = kContext) {
  ModelPass pass(small.model, small.rig.context, slots, capacity);
  Generator generator(pass, options, std::move(prompts));
  Texts texts;
  generate_all(generator, *make_single_comm(), [&](const GeneratedToken& token) {
    texts.ids[token.prompt].push_back(token.id);
    texts.ends[token.prompt] += token.is_last ? 1 : 0;
  });
  EXPECT_FALSE(generator.has_work());
  return texts;
}

/// Token after token, the whole text again for each.
Ids recomputed(SmallModel& small, Ids ids, std::int64_t count, const SamplingOptions& sampling = {}, std::uint64_t number = 0) {
  Ids added;
  for (std::int64_t i = 0; i < count; ++i) {
    const double fraction = random_fraction({.seed = sampling.seed, .sequence = number, .position = ids.size()});
    added.push_back(choose_token(row(small.logits(ids), ids.size() - 1), ids, sampling, fraction));
    ids.push_back(added.back());
  }
  return added;
}

const std::vector<NumberedPrompt> kPrompts{{0, {3}}, {1, {1, 2, 3, 4, 5, 6, 7, 8}}, {2, {16, 0, 9}}, {3, {5, 5}}, {4, {11, 3, 7, 2, 0}}};

TEST(Generator, GreedyTextIsThatOfAWholeForwardForEachToken) {
  SmallModel small;
  const Texts texts = run(small, {.max_new_tokens = 7}, kPrompts, 2);
  ASSERT_EQ(texts.ids.size(), kPrompts.size());
  for (const NumberedPrompt& prompt : kPrompts) {
    EXPECT_EQ(texts.ids.at(prompt.number), recomputed(small, prompt.ids, 7)) << prompt.number;
    EXPECT_EQ(texts.ends.at(prompt.number), 1);
  }
}

TEST(Generator, DrawnTextDoesNotDependOnTheBatch) {
  SmallModel small;
  const SamplingOptions sampling{.temperature = 0.9, .top_k = 9, .top_p = 0.95, .repetition_penalty = 1.1, .seed = 6};
  const GeneratorOptions options{.max_new_tokens = 8, .sampling = sampling};
  const Texts one = run(small, options, kPrompts, 1);
  for (const std::int64_t slots : {2, 3, 5}) EXPECT_EQ(run(small, options, kPrompts, slots).ids, one.ids) << slots;
  for (const NumberedPrompt& prompt : kPrompts) {
    EXPECT_EQ(one.ids.at(prompt.number), recomputed(small, prompt.ids, 8, sampling, static_cast<std::uint64_t>(prompt.number)));
  }
  GeneratorOptions other = options;
  other.sampling.seed = 7;
  EXPECT_NE(run(small, other, kPrompts, 1).ids, one.ids);
}

/// The number of a prompt names its random numbers: another rank that has it draws the same.
TEST(Generator, APromptsNumberDecidesItsDraws) {
  SmallModel small;
  const GeneratorOptions options{.max_new_tokens = 8, .sampling = {.temperature = 1.5}};
  const Texts all = run(small, options, kPrompts, 5), own = run(small, options, {kPrompts[1], kPrompts[4]}, 1);
  EXPECT_EQ(own.ids.at(1), all.ids.at(1));
  EXPECT_EQ(own.ids.at(4), all.ids.at(4));
}

TEST(Generator, ATextEndsWithAStopTokenOrWithTheCache) {
  SmallModel small;
  const Ids plain = run(small, {.max_new_tokens = 6}, {{0, {3}}}, 1).ids.at(0);
  const Ids stopped = run(small, {.max_new_tokens = 6, .stop_ids = {plain[2]}}, {{0, {3}}}, 1).ids.at(0);
  const auto first = std::ranges::find(plain, plain[2]);
  EXPECT_EQ(stopped, Ids(plain.begin(), first + 1)) << "with the stop token";
  EXPECT_EQ(run(small, {.max_new_tokens = 6}, {{0, {3, 4}}}, 1, 5).ids.at(0).size(), 3U) << "five tokens fit";
  EXPECT_EQ(run(small, {.max_new_tokens = 1}, kPrompts, 2).ids.at(4).size(), 1U);
  ModelPass pass(small.model, small.rig.context, 1, 5);
  EXPECT_THROW(Generator(pass, {}, {{0, {1, 2, 3, 4, 5}}}), ConfigError);
}

TEST(Generator, FiguresCountTokens) {
  SmallModel small;
  ModelPass pass(small.model, small.rig.context, 2, kContext);
  Generator generator(pass, {.max_new_tokens = 3}, kPrompts);
  while (generator.has_work()) (void)generator.step();
  EXPECT_EQ(generator.figures().prompt_tokens, 1 + 8 + 3 + 2 + 5);
  EXPECT_EQ(generator.figures().new_tokens, 5 * 3);
  EXPECT_EQ(generator.figures().first_tokens, 5);
  EXPECT_TRUE(generator.step().empty()) << "idle";
}

}  // namespace
}  // namespace mica::generate
