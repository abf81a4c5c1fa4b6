// SPDX-License-Identifier: Apache-2.0
#include "mica/checkpoint/hf_tokenizer.hpp"

#include "mica/core/error.hpp"
#include "mica/core/word_text.hpp"

namespace mica::checkpoint {

std::optional<io::JsonValue> json_of(const HfTokenizer& tokenizer, const std::string& name) {
  constexpr int kMostLevels = 32;
  const auto file = tokenizer.files.find(name);
  if (file == tokenizer.files.end()) return std::nullopt;
  return io::JsonValue::parse<ConfigError>(file->second, fmt::format("{}/{}", tokenizer.source, name), kMostLevels);
}

std::shared_ptr<const HfTokenizer> copy_from_first_rank(const std::shared_ptr<const HfTokenizer>& tokenizer, const HostComm& comm) {
  const std::string sent = comm.from_first_rank([&] {
    if (!tokenizer) return std::string();
    WordWriter writer;
    writer.put(tokenizer->source);
    writer.put_count(tokenizer->token_ids.size());
    for (const auto& [name, ids] : tokenizer->token_ids) {
      writer.put(name);
      writer.put_count(ids.size());
      for (const std::int64_t id : ids) writer.put(std::to_string(id));
    }
    writer.put_count(tokenizer->files.size());
    for (const auto& [name, content] : tokenizer->files) {
      writer.put(name);
      writer.put(content);
    }
    return std::move(writer).text();
  });
  if (sent.empty() || comm.rank() == 0) return tokenizer;
  WordReader reader(sent);
  auto copy = std::make_shared<HfTokenizer>();
  copy->source = reader.word();
  reader.for_count([&] {
    std::vector<std::int64_t>& ids = copy->token_ids[reader.word()];
    reader.for_count([&] { ids.push_back(reader.number<std::int64_t>()); });
  });
  reader.for_count([&] {
    const std::string name = reader.word();
    copy->files[name] = reader.word();
  });
  return copy;
}

}  // namespace mica::checkpoint
