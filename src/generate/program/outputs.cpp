// SPDX-License-Identifier: Apache-2.0
#include "outputs.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <numbers>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "mica/core/error.hpp"

namespace mica::generate {
namespace {

using Json = nlohmann::ordered_json;

/// Flushes, since a reader may wait for it.
void print(const std::string& text) {
  const bool is_written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  require<IoError>(is_written, "cannot write to standard output (disk full, or its reader is gone)");
}

void print_json(const Json& json) { print(json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n"); }

}  // namespace

TokenPrinter::TokenPrinter(const Command& command, const Inputs& inputs, const data::Tokenizer* tokenizer)
    : inputs_(inputs),
      tokenizer_(tokenizer),
      prints_ids_(command.prints_ids),
      streams_(command.task != Command::Task::prompts),
      answers_(inputs.prompts.size()) {
  if (streams_ && !prints_ids_) stream_.emplace(*tokenizer, inputs.prompts.at(0));
}

void TokenPrinter::take(const GeneratedToken& token) {
  if (streams_) return print_now(token);
  Answer& answer = answers_.at(static_cast<std::size_t>(token.prompt));
  answer.ids.push_back(token.id);
  answer.is_whole = token.is_last;
  for (; next_ < answers_.size() && answers_[next_].is_whole; ++next_) print_line(next_);
}

void TokenPrinter::print_now(const GeneratedToken& token) {
  Answer& answer = answers_.at(0);
  if (prints_ids_) {
    print(fmt::format("{}{}", answer.ids.empty() ? "" : ",", token.id));
  } else if (!inputs_.stop_ids.contains(token.id)) {
    print(stream_->push(token.id));
  }
  answer.ids.push_back(token.id);
  if (token.is_last) print((stream_ ? stream_->finish() : "") + "\n");
}

void TokenPrinter::print_line(std::size_t prompt) {
  const Answer& answer = answers_[prompt];
  if (prints_ids_) return print(fmt::format("{}\n", fmt::join(answer.ids, ",")));
  const bool stopped = inputs_.stop_ids.contains(answer.ids.back());
  TextStream stream(*tokenizer_, inputs_.prompts[prompt]);
  std::string text;
  for (std::size_t i = 0; i < answer.ids.size() - (stopped ? 1 : 0); ++i) text += stream.push(answer.ids[i]);
  text += stream.finish();
  print_json({{"index", prompt}, {"text", text}, {"ids", answer.ids}, {"end", stopped ? "stop" : "length"}});
}

void print_text_likelihood(const TextLikelihood& likelihood, std::int64_t text_bytes) {
  const double per_token = likelihood.nats / static_cast<double>(likelihood.num_tokens);
  Json json{{"tokens", likelihood.num_tokens}, {"nats_per_token", per_token}, {"perplexity", std::exp(per_token)}};
  if (text_bytes > 0) {
    json["bytes"] = text_bytes;
    json["bits_per_byte"] = likelihood.nats / std::numbers::ln2 / static_cast<double>(text_bytes);
  }
  print_json(json);
}

void print_answers(const std::vector<Question>& questions, const std::vector<std::vector<Likelihood>>& answers) {
  for (std::size_t q = 0; q < questions.size(); ++q) {
    Json sums = Json::array(), greedy = Json::array(), lengths = Json::array();
    for (const Likelihood& each : answers[q]) {
      sums.push_back(each.log_likelihood);
      greedy.push_back(each.is_greedy);
    }
    for (const auto& each : questions[q].continuations) lengths.push_back(each.size());
    const auto best = std::ranges::max_element(answers[q], {}, &Likelihood::log_likelihood) - answers[q].begin();
    print_json({{"index", q}, {"log_likelihoods", sums}, {"is_greedy", greedy}, {"num_tokens", lengths}, {"best", best}});
  }
}

}  // namespace mica::generate
