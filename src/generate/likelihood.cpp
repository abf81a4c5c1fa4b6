// SPDX-License-Identifier: Apache-2.0
#include "mica/generate/likelihood.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "mica/core/error.hpp"
#include "mica/core/word_text.hpp"
#include "mica/generate/sampling.hpp"

namespace mica::generate {
namespace {

using Ids = std::vector<std::int32_t>;

void refuse_broken(double nats) {
  require<Error>(std::isfinite(nats), "the text's likelihood is {}: the model's parameters are NaN, or overflow in bf16", nats);
}

double log_probability(std::span<const float> logits, std::int32_t id) {
  const auto max = static_cast<double>(*std::ranges::max_element(logits));
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - max);
  const double result = static_cast<double>(logits[static_cast<std::size_t>(id)]) - max - std::log(sum);
  refuse_broken(result);
  return result;
}

/// One pass for a question.
struct Step {
  std::size_t continuation = 0;
  std::int64_t cached = 0;     ///< tokens of the context, without its last one, that the continuation finds in the cache
  bool reads_context = false;  ///< puts them there; otherwise rates the continuation
};

/// How many tokens at the context's end fit: context and continuation, without the last token, must fit the cache.
std::int64_t context_that_fits(const Question& question, const Ids& continuation, std::int64_t capacity) {
  const std::int64_t room = std::max<std::int64_t>(1, capacity + 1 - std::ssize(continuation));
  return std::min(std::ssize(question.context), room);
}

/// The context is read once for all continuations that follow one another and see as much of it.
std::vector<Step> steps_of(const Question& question, std::int64_t capacity) {
  std::vector<Step> steps;
  std::int64_t cached = 0;
  for (std::size_t i = 0; i < question.continuations.size(); ++i) {
    const std::int64_t needed = context_that_fits(question, question.continuations[i], capacity) - 1;
    if (needed != cached && needed > 0) steps.push_back({.continuation = i, .cached = needed, .reads_context = true});
    cached = needed;
    steps.push_back({.continuation = i, .cached = cached});
  }
  return steps;
}

/// Answers one question pass by pass, so that all ranks can run the same number of passes.
class QuestionPasses {
 public:
  QuestionPasses(ModelPass& pass, const Question& question)
      : pass_(pass), question_(question), steps_(steps_of(question, pass.capacity())) {}

  [[nodiscard]] std::size_t num_passes() const { return steps_.size(); }
  void run_pass(std::size_t i) {
    const Step& step = steps_[i];
    if (step.reads_context) {
      read_context(step.cached);
    } else {
      answers_.push_back(rate(question_.continuations[step.continuation], step.cached));
    }
  }
  [[nodiscard]] std::vector<Likelihood> answers() && { return std::move(answers_); }

 private:
  /// @param count  tokens that end before the context's last one
  void read_context(std::int64_t count) {
    (void)pass_.logits({{.slot = 0, .past = 0}}, Ids(question_.context.end() - 1 - count, question_.context.end() - 1),
                       nn::KeyValueCache::Logits::last);
  }

  Likelihood rate(const Ids& continuation, std::int64_t cached) {
    Ids ids{question_.context.back()};
    ids.insert(ids.end(), continuation.begin(), continuation.end() - 1);
    const std::span<const float> logits = pass_.logits({{.slot = 0, .past = cached}}, ids, nn::KeyValueCache::Logits::all);
    const std::size_t vocab = logits.size() / ids.size();
    Likelihood result;
    for (std::size_t i = 0; i < continuation.size(); ++i) {
      const std::span<const float> row = logits.subspan(i * vocab, vocab);
      result.log_likelihood += log_probability(row, continuation[i]);
      result.is_greedy = result.is_greedy && likeliest(row) == continuation[i];
    }
    return result;
  }

  ModelPass& pass_;
  const Question& question_;
  std::vector<Step> steps_;
  std::vector<Likelihood> answers_;
};

/// A stretch of a text: inputs, and targets for the last of them.
struct Stretch {
  std::int64_t begin = 0, end = 0;  ///< of the predicted tokens
  std::int64_t given = 0;           ///< where the inputs begin; they end before `end`
};

/// @param begin  the first token that is predicted; earlier tokens may be inputs
std::vector<Stretch> stretches_of(std::int64_t begin, std::int64_t size, std::int64_t context) {
  std::vector<Stretch> all;
  while (begin < size) {
    const std::int64_t end = std::min(size, begin + context);
    all.push_back({.begin = begin, .end = end, .given = all.empty() ? begin - 1 : std::max<std::int64_t>(0, end - 1 - context)});
    begin = end;
  }
  return all;
}

}  // namespace

std::int64_t longest_input(const std::vector<Question>& questions) {
  std::int64_t longest = 1;
  for (const Question& question : questions) {
    for (const Ids& continuation : question.continuations) {
      longest = std::max(longest, std::ssize(question.context) + std::ssize(continuation) - 1);
    }
  }
  return longest;
}

std::vector<std::vector<Likelihood>> answer(ModelPass& pass, const std::vector<Question>& questions, const HostComm& comm) {
  const auto ranks = static_cast<std::size_t>(comm.num_ranks()), rank = static_cast<std::size_t>(comm.rank());
  std::vector<std::vector<Likelihood>> answers(questions.size());
  for (std::size_t round = 0; round < questions.size(); round += ranks) {
    std::size_t num_passes = 0;
    for (std::size_t q = round; q < std::min(round + ranks, questions.size()); ++q) {
      num_passes = std::max(num_passes, steps_of(questions[q], pass.capacity()).size());
    }
    const std::size_t mine = round + rank;
    if (mine >= questions.size()) {
      for (std::size_t i = 0; i < num_passes; ++i) pass.idle();
      continue;
    }
    QuestionPasses passes(pass, questions[mine]);
    for (std::size_t i = 0; i < num_passes; ++i) {
      if (i < passes.num_passes()) {
        passes.run_pass(i);
      } else {
        pass.idle();
      }
    }
    answers[mine] = std::move(passes).answers();
  }
  WordWriter writer;
  for (std::size_t q = rank; q < questions.size(); q += ranks) {
    for (const Likelihood& each : answers[q]) {
      writer.put_number(each.log_likelihood);
      writer.put_count(each.is_greedy ? 1 : 0);
    }
  }
  const std::vector<std::string> texts = comm.gather_strings(std::move(writer).text());
  for (std::size_t r = 0; r < ranks; ++r) {
    WordReader reader(texts[r]);
    for (std::size_t q = r; q < questions.size(); q += ranks) {
      answers[q].clear();
      for (std::size_t i = 0; i < questions[q].continuations.size(); ++i) {
        const auto log_likelihood = reader.number<double>();
        answers[q].push_back({log_likelihood, reader.number<int>() != 0});
      }
    }
  }
  return answers;
}

TextLikelihood rate_text(ModelPass& pass, std::span<const std::int32_t> text, std::optional<std::int32_t> first, std::int64_t context,
                         const HostComm& comm) {
  Ids all;
  if (first) all.push_back(*first);
  all.insert(all.end(), text.begin(), text.end());
  const std::vector<Stretch> stretches = stretches_of(1, std::ssize(all), context);
  const auto ranks = static_cast<std::size_t>(comm.num_ranks()), rank = static_cast<std::size_t>(comm.rank());
  double nats = 0;
  for (std::size_t round = 0; round < stretches.size(); round += ranks) {
    if (round + rank >= stretches.size()) {
      pass.idle();
      continue;
    }
    const Stretch& s = stretches[round + rank];
    Ids ids(all.begin() + s.given, all.begin() + s.end - 1), targets(all.begin() + s.given + 1, all.begin() + s.end);
    std::fill(targets.begin(), targets.begin() + (s.begin - 1 - s.given), -1);
    nats += pass.loss(std::move(ids), std::move(targets));
  }
  WordWriter writer;
  writer.put_number(nats);
  TextLikelihood result{.nats = 0, .num_tokens = std::max<std::int64_t>(0, std::ssize(all) - 1)};
  for (const std::string& each : comm.gather_strings(std::move(writer).text())) result.nats += WordReader(each).number<double>();
  comm.agree([&] { refuse_broken(result.nats); });
  return result;
}

}  // namespace mica::generate
