// SPDX-License-Identifier: Apache-2.0
#include "tokenizer_files.hpp"

#include "mica/comm/host_comm.hpp"
#include "mica/io/atomic_file.hpp"
#include "mica/io/crc32c.hpp"

#include "part_reader.hpp"

namespace mica::checkpoint {

TokenizerEntry write_tokenizer(const std::string& checkpoint_folder, const HfTokenizer& tokenizer) {
  TokenizerEntry entry{.source = tokenizer.source, .token_ids = tokenizer.token_ids, .files = {}};
  for (const auto& [name, content] : tokenizer.files) {
    io::write_file_atomically(checkpoint_folder + "/" + name, content);
    const std::int64_t bytes = std::ssize(content);
    entry.files.push_back({.name = name, .bytes = bytes, .rest_crc = io::crc32c(content.data(), bytes), .datasets = {}});
  }
  return entry;
}

HfTokenizer read_tokenizer(const std::string& checkpoint_folder, const TokenizerEntry& entry) {
  HfTokenizer tokenizer{.source = entry.source, .token_ids = entry.token_ids, .files = {}};
  PartReader reader(checkpoint_folder, /*max_open=*/1);
  for (const FileEntry& file : entry.files) {
    reader.check_rest(file);
    tokenizer.files[file.name] = io::read_file(checkpoint_folder + "/" + file.name);
  }
  return tokenizer;
}

std::shared_ptr<const HfTokenizer> share_tokenizer(const std::string& checkpoint_folder, const Manifest& manifest, const HostComm& comm) {
  std::shared_ptr<const HfTokenizer> tokenizer;
  if (manifest.tokenizer.source.empty()) return tokenizer;
  comm.agree([&] {
    if (comm.rank() == 0) tokenizer = std::make_shared<HfTokenizer>(read_tokenizer(checkpoint_folder, manifest.tokenizer));
  });
  return tokenizer;
}

}  // namespace mica::checkpoint
