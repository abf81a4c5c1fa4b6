// SPDX-License-Identifier: Apache-2.0
#include "mica/generate/likelihood.hpp"

#include <cmath>

#include <gmock/gmock.h>

#include "mica/generate/sampling.hpp"

#include "small_model.hpp"

namespace mica::generate {
namespace {

using testing::kContext;
using testing::kVocab;
using testing::row;
using testing::SmallModel;

using Ids = std::vector<std::int32_t>;

double log_softmax(const std::vector<float>& logits, std::int32_t id) {
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
  return static_cast<double>(logits[static_cast<std::size_t>(id)]) - std::log(sum);
}

/// Of the last `count` tokens of `ids`, by one plain forward.
Likelihood plain_likelihood(SmallModel& small, Ids ids, std::size_t count) {
  const Ids predicted(ids.end() - static_cast<std::ptrdiff_t>(count), ids.end());
  ids.pop_back();
  const std::vector<float> logits = small.logits(ids);
  Likelihood result;
  for (std::size_t i = 0; i < count; ++i) {
    const std::vector<float> before = row(logits, ids.size() - count + i);
    result.log_likelihood += log_softmax(before, predicted[i]);
    result.is_greedy = result.is_greedy && likeliest(before) == predicted[i];
  }
  return result;
}

Ids joined(Ids a, const Ids& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

void expect_near(const Likelihood& got, const Likelihood& want) {
  EXPECT_NEAR(got.log_likelihood, want.log_likelihood, 2e-4);
  EXPECT_EQ(got.is_greedy, want.is_greedy);
}

TEST(Likelihood, AContinuationsIsThatOfAPlainForward) {
  SmallModel small;
  // The likeliest continuation of {4, 2}, by hand.
  Ids greedy;
  for (int i = 0; i < 3; ++i) {
    const Ids so_far = joined({4, 2}, greedy);
    greedy.push_back(likeliest(row(small.logits(so_far), so_far.size() - 1)));
  }
  // Its first token is not the likeliest, its last one is.
  Ids late{static_cast<std::int32_t>((greedy[0] + 1) % 17)};
  late.push_back(likeliest(row(small.logits(joined({4, 2}, late)), 2)));
  const std::vector<Question> questions{
      {{4, 2}, {greedy, {1}, {5, 6, 7, 8}, late}}, {{9}, {{3}, {3, 3}}}, {{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, {{0, 1}}}};
  EXPECT_EQ(longest_input(questions), 11);
  ModelPass pass(small.model, small.rig.context, 1, longest_input(questions));
  const auto answers = answer(pass, questions, *make_single_comm());
  for (std::size_t q = 0; q < questions.size(); ++q) {
    ASSERT_EQ(answers[q].size(), questions[q].continuations.size());
    for (std::size_t i = 0; i < answers[q].size(); ++i) {
      const Ids& continuation = questions[q].continuations[i];
      expect_near(answers[q][i], plain_likelihood(small, joined(questions[q].context, continuation), continuation.size()));
    }
  }
  EXPECT_TRUE(answers[0][0].is_greedy);
  EXPECT_FALSE(answers[0][2].is_greedy);
  EXPECT_FALSE(answers[0][3].is_greedy);
}

/// The model sees as many tokens as its context has: the last ones; the very last is predicted only.
TEST(Likelihood, OfALongContextTheEndIsTaken) {
  SmallModel small;
  ModelPass pass(small.model, small.rig.context, 1, kContext);
  Ids context;
  for (int i = 0; i < 30; ++i) context.push_back(i * 5 % 17);
  const Ids longest(static_cast<std::size_t>(kContext), 2);
  const auto answers = answer(pass, {{context, {{1, 2}, {3}, longest}}}, *make_single_comm());
  const auto last = [&](std::size_t n) { return Ids(context.end() - static_cast<std::ptrdiff_t>(n), context.end()); };
  expect_near(answers[0][0], plain_likelihood(small, joined(last(kContext - 1), {1, 2}), 2));
  expect_near(answers[0][1], plain_likelihood(small, joined(last(kContext), {3}), 1));
  expect_near(answers[0][2], plain_likelihood(small, joined(last(1), longest), longest.size()));
}

/// Logits are most of a pass' memory: those of the context are not computed, whether it fits or not.
TEST(Likelihood, TakesMemoryForTheContinuationsLogitsOnly) {
  constexpr std::int64_t kLargeVocab = 20'011;
  for (const std::size_t context : {std::size_t{14}, std::size_t{30}}) {
    SmallModel small(kLargeVocab);
    ModelPass pass(small.model, small.rig.context, 1, kContext);
    small.rig.pool->reset_peak();
    const std::int64_t before = small.rig.pool->stats().current;
    (void)answer(pass, {{Ids(context, 3), {{1, 2}, {3}, {5, 6}}}}, *make_single_comm());
    EXPECT_LT(small.rig.pool->stats().peak - before, 4 * kLargeVocab * 4) << "context of " << context;  // four rows of logits
  }
}

double plain_nats(SmallModel& small, const Ids& text, std::size_t given, std::size_t begin, std::size_t end) {
  const Ids ids(text.begin() + static_cast<std::ptrdiff_t>(given), text.begin() + static_cast<std::ptrdiff_t>(end));
  return -plain_likelihood(small, ids, end - begin).log_likelihood;
}

/// 40 tokens in stretches of 16, with the token before each; the last 8 are seen with as many before them as fit.
TEST(Likelihood, ATextIsCutAsTheHarnessCutsIt) {
  SmallModel small;
  ModelPass pass(small.model, small.rig.context, 1, 1);
  Ids text;
  for (int i = 0; i < 40; ++i) text.push_back(i * i % 17);
  const TextLikelihood with_first = rate_text(pass, text, 3, kContext, *make_single_comm());
  EXPECT_EQ(with_first.num_tokens, 40);
  const Ids all = joined({3}, text);
  EXPECT_NEAR(with_first.nats, plain_nats(small, all, 0, 1, 17) + plain_nats(small, all, 16, 17, 33) + plain_nats(small, all, 24, 33, 41),
              2e-3);
  const TextLikelihood without = rate_text(pass, text, std::nullopt, kContext, *make_single_comm());
  EXPECT_EQ(without.num_tokens, 39);
  EXPECT_NEAR(without.nats, plain_nats(small, text, 0, 1, 17) + plain_nats(small, text, 16, 17, 33) + plain_nats(small, text, 23, 33, 40),
              2e-3);
  const TextLikelihood shortest = rate_text(pass, Ids{4, 7}, std::nullopt, kContext, *make_single_comm());
  EXPECT_EQ(shortest.num_tokens, 1);
  EXPECT_NEAR(shortest.nats, plain_nats(small, {4, 7}, 0, 1, 2), 1e-4);
}

TEST(Likelihood, OfABrokenModelIsRefused) {
  SmallModel small;
  small.model.for_each_parameter(
      [&](const std::string&, nn::Parameter& p) { small.rig.kernels->scale(*small.rig.stream, p.data, NAN, p.data, Write::overwrite); });
  ModelPass pass(small.model, small.rig.context, 1, kContext);
  EXPECT_THROW((void)rate_text(pass, Ids{4, 7, 2}, std::nullopt, kContext, *make_single_comm()), Error);
  EXPECT_THROW((void)answer(pass, {{{4, 2}, {{1}}}}, *make_single_comm()), Error);
}

}  // namespace
}  // namespace mica::generate
