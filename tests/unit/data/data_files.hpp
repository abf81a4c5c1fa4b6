// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "mica/data/token_file.hpp"
#include "mica/io/hdf5.hpp"

namespace mica::test {

inline void write_text(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

/// first, first + 1, ... modulo `modulus`.
template <class Id>
std::vector<Id> counting_tokens(std::int64_t n, std::int64_t first = 0, std::int64_t modulus = 65536) {
  std::vector<Id> ids(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<Id>((first + static_cast<std::int64_t>(i)) % modulus);
  return ids;
}

template <class Id>
std::string bytes_of(const std::vector<Id>& ids) {
  return {reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(Id)};
}

/// An llm.c file with any header.
template <class Id>
void write_llmc(const std::string& path, std::int32_t magic, std::int32_t version, std::int32_t promised, const std::vector<Id>& ids) {
  std::vector<std::int32_t> header(256, 0);
  header[0] = magic;
  header[1] = version;
  header[2] = promised;
  write_text(path, bytes_of(header) + bytes_of(ids));
}

struct Hdf5TokensOptions {
  std::int64_t vocab_size = 0;  ///< 0: no attribute
  std::string tokenizer;        ///< "": no attributes
  io::FileType type = io::FileType::u16;
};

inline void write_hdf5_tokens(const std::string& path, const std::vector<std::uint32_t>& ids, const Hdf5TokensOptions& options = {}) {
  auto file = io::Hdf5File::create(path);
  {
    const auto n = static_cast<std::int64_t>(ids.size());
    auto dataset = file.create_dataset(data::kTokensDataset, options.type, {n});
    const std::vector<std::uint16_t> narrow(ids.begin(), ids.end());
    dataset.write(options.type == io::FileType::u16 ? static_cast<const void*>(narrow.data()) : ids.data(), dataset.bytes());
  }
  if (options.vocab_size != 0) file.set_attribute("/", data::kVocabSizeAttribute, options.vocab_size);
  if (!options.tokenizer.empty()) {
    file.set_attribute("/", data::kTokenizerAttribute, options.tokenizer);
    file.set_attribute("/", data::kTokenizerHashAttribute, "hash of " + options.tokenizer);
  }
  file.close();
}

}  // namespace mica::test
