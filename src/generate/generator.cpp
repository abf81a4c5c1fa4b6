// SPDX-License-Identifier: Apache-2.0
#include "mica/generate/generator.hpp"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

#include "mica/core/word_text.hpp"

namespace mica::generate {
namespace {

using Clock = std::chrono::steady_clock;
double ms_since(Clock::time_point begin) { return std::chrono::duration<double, std::milli>(Clock::now() - begin).count(); }

}  // namespace

Generator::Generator(ModelPass& pass, GeneratorOptions options, std::vector<NumberedPrompt> prompts)
    : pass_(pass), options_(std::move(options)) {
  for (NumberedPrompt& prompt : prompts) {
    require<ConfigError>(std::ssize(prompt.ids) < pass_.capacity(), "prompt {} has {} tokens, expected fewer than {}", prompt.number,
                         prompt.ids.size(), pass_.capacity());
    waiting_.push_back(std::move(prompt));
  }
  for (std::int64_t slot = pass_.slots(); slot-- > 0;) free_slots_.push_back(slot);
}

std::vector<GeneratedToken> Generator::step() {
  if (!waiting_.empty() && !free_slots_.empty()) return {read_prompt()};
  if (!active_.empty()) return continue_sequences();
  pass_.idle();
  return {};
}

GeneratedToken Generator::read_prompt() {
  const auto begin = Clock::now();
  Sequence sequence{.number = waiting_.front().number, .slot = free_slots_.back(), .ids = std::move(waiting_.front().ids)};
  waiting_.pop_front();
  free_slots_.pop_back();
  figures_.prompt_tokens += std::ssize(sequence.ids);
  const std::span<const float> logits = pass_.logits({{.slot = sequence.slot, .past = 0}}, sequence.ids, nn::KeyValueCache::Logits::last);
  const GeneratedToken token = extend(sequence, logits);
  if (token.is_last) {
    release(sequence);
  } else {
    active_.push_back(std::move(sequence));
  }
  ++figures_.new_tokens;
  ++figures_.first_tokens;
  figures_.prompt_ms += ms_since(begin);
  return token;
}

std::vector<GeneratedToken> Generator::continue_sequences() {
  const auto begin = Clock::now();
  std::vector<CachedRow> rows;
  std::vector<std::int32_t> last;
  for (const Sequence& sequence : active_) {
    rows.push_back({.slot = sequence.slot, .past = std::ssize(sequence.ids) - 1});
    last.push_back(sequence.ids.back());
  }
  const std::span<const float> logits = pass_.logits(std::move(rows), std::move(last), nn::KeyValueCache::Logits::last);
  const std::size_t vocab = logits.size() / active_.size();
  std::vector<GeneratedToken> tokens;
  std::vector<Sequence> left;
  for (std::size_t i = 0; i < active_.size(); ++i) {
    tokens.push_back(extend(active_[i], logits.subspan(i * vocab, vocab)));
    if (tokens.back().is_last) {
      release(active_[i]);
    } else {
      left.push_back(std::move(active_[i]));
    }
  }
  active_ = std::move(left);
  figures_.new_tokens += std::ssize(tokens);
  figures_.new_ms += ms_since(begin);
  return tokens;
}

GeneratedToken Generator::extend(Sequence& sequence, std::span<const float> logits) const {
  const DrawPoint point{.seed = options_.sampling.seed,
                        .sequence = static_cast<std::uint64_t>(sequence.number),
                        .position = static_cast<std::uint64_t>(sequence.ids.size())};
  const std::int32_t id = choose_token(logits, sequence.ids, options_.sampling, random_fraction(point));
  sequence.ids.push_back(id);
  ++sequence.num_new;
  const bool is_last =
      sequence.num_new == options_.max_new_tokens || options_.stop_ids.contains(id) || std::ssize(sequence.ids) == pass_.capacity();
  return {.prompt = sequence.number, .id = id, .is_last = is_last};
}

void generate_all(Generator& mine, const HostComm& comm, const std::function<void(const GeneratedToken&)>& deliver) {
  if (comm.num_ranks() == 1) {
    while (mine.has_work()) std::ranges::for_each(mine.step(), deliver);
    return;
  }
  for (bool any = true; any;) {
    WordWriter writer;
    const std::vector<GeneratedToken> tokens = mine.step();
    writer.put_count(mine.has_work() ? 1 : 0);
    writer.put_count(tokens.size());
    for (const GeneratedToken& token : tokens) {
      writer.put(std::to_string(token.prompt));
      writer.put(std::to_string(token.id));
      writer.put_count(token.is_last ? 1 : 0);
    }
    any = false;
    for (const std::string& text : comm.gather_strings(std::move(writer).text())) {
      WordReader reader(text);
      any = reader.number<int>() != 0 || any;
      reader.for_count([&] {
        const auto prompt = reader.number<std::int64_t>();
        const auto id = reader.number<std::int32_t>();
        const bool is_last = reader.number<int>() != 0;
        if (comm.rank() == 0) deliver({prompt, id, is_last});
      });
    }
  }
}

}  // namespace mica::generate
