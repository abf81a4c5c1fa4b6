// SPDX-License-Identifier: Apache-2.0
#include "token_writer.hpp"

#include <algorithm>
#include <cstring>
#include <filesystem>

#include <unistd.h>

#include "mica/core/error.hpp"
#include "mica/data/token_file.hpp"
#include "mica/io/crc32c.hpp"
#include "mica/io/hdf5.hpp"

namespace mica::data {
namespace {

constexpr std::size_t kBufferBytes = 4 << 20;

}  // namespace

TokenWriter::TokenWriter(const std::string& path, const Tokenizer& tokenizer)
    : spool_(path + ".spool.tmp"),
      file_(path),
      tokenizer_(tokenizer),
      vocab_size_(tokenizer.vocab_size()),
      token_bytes_(vocab_size_ <= kMaxVocabOfU16 ? 2 : 4) {
  buffer_.reserve(kBufferBytes);
}

TokenWriter::Spool::~Spool() { ::unlink(file.path().c_str()); }

void TokenWriter::append(std::span<const std::int32_t> ids) {
  for (const std::int32_t id : ids) {
    require(id >= 0 && id < vocab_size_, "the tokenizer '{}' gave id {}, outside its vocabulary of {}", tokenizer_.name(), id, vocab_size_);
  }
  num_tokens_ += static_cast<std::int64_t>(ids.size());
  if (const auto unknown = tokenizer_.unknown_id()) num_unknown_ += std::ranges::count(ids, *unknown);
  const auto width = static_cast<std::size_t>(token_bytes_);
  while (!ids.empty()) {
    const std::size_t count = std::min(ids.size(), (kBufferBytes - buffer_.size()) / width);
    const std::size_t before = buffer_.size();
    buffer_.resize(before + count * width);
    std::byte* out = buffer_.data() + before;
    for (std::size_t i = 0; i < count; ++i) std::memcpy(out + i * width, &ids[i], width);  // little-endian: low bytes first
    ids = ids.subspan(count);
    if (buffer_.size() == kBufferBytes) flush();
  }
}

void TokenWriter::flush() {
  checksum_ = io::crc32c(buffer_.data(), static_cast<std::int64_t>(buffer_.size()), checksum_);
  spool_.file.write_at(spooled_bytes_, buffer_.data(), static_cast<std::int64_t>(buffer_.size()));
  spooled_bytes_ += static_cast<std::int64_t>(buffer_.size());
  buffer_.clear();
}

void TokenWriter::finish(const std::function<void()>& between) {
  flush();
  auto file = io::Hdf5File::create(file_.temporary());
  {
    auto tokens = file.create_dataset(kTokensDataset, token_bytes_ == 2 ? io::FileType::u16 : io::FileType::u32, {num_tokens_});
    buffer_.resize(kBufferBytes);
    std::uint32_t checksum = 0;
    const std::int64_t tokens_at_once = static_cast<std::int64_t>(kBufferBytes) / token_bytes_;
    for (std::int64_t begin = 0; begin < num_tokens_; begin += tokens_at_once) {
      if (between) between();
      const std::int64_t count = std::min(tokens_at_once, num_tokens_ - begin);
      spool_.file.read_at(begin * token_bytes_, buffer_.data(), count * token_bytes_);
      checksum = io::crc32c(buffer_.data(), count * token_bytes_, checksum);
      tokens.write_range(begin, count, buffer_.data());
    }
    require<IoError>(checksum == checksum_,
                     "{}: does not hold what was written to it: another program changed it, or the disk is failing; start again",
                     spool_.file.path());
  }
  for (const std::string object : {"/", kTokensDataset}) {  // readers look at the file's attributes or at the dataset's
    file.set_attribute(object, kVocabSizeAttribute, vocab_size_);
    file.set_attribute(object, kTokenizerAttribute, tokenizer_.name());
    file.set_attribute(object, kTokenizerHashAttribute, tokenizer_.hash());
    file.set_attribute(object, kTokensChecksumAttribute, std::int64_t{checksum_});
  }
  file.close();
  std::error_code ignored;
  std::filesystem::resize_file(spool_.file.path(), 0, ignored);  // its room is free, its lock stays
}

}  // namespace mica::data
