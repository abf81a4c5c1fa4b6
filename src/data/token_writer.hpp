// SPDX-License-Identifier: Apache-2.0
#pragma once

// Private to data: writes one token file whose length is known only at the end.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "mica/data/tokenizer.hpp"
#include "mica/io/atomic_file.hpp"
#include "mica/io/raw_file.hpp"

namespace mica::data {

/// Spools ids beside the output and makes the HDF5 file from them at the end, since a contiguous dataset needs its
/// length at creation. Leaves nothing behind unless publish() was called; a program that is killed at once (SIGKILL) leaves the spool,
/// which the next writer for that path takes over. While it exists, another writer for the same path is refused, in any process: the spool
/// is locked, where the file system has flock.
class TokenWriter {
 public:
  /// @throws ConfigError if another writer has this path.
  TokenWriter(const std::string& path, const Tokenizer& tokenizer);

  void append(std::span<const std::int32_t> ids);
  [[nodiscard]] std::int64_t num_tokens() const { return num_tokens_; }
  [[nodiscard]] std::int64_t num_unknown() const { return num_unknown_; }  ///< of Tokenizer::unknown_id()
  /// Writes the token file under a temporary name. @throws IoError also if the spool does not hold what was written.
  /// @param between  called between pieces of a few MB; may throw, and may be empty
  void finish(const std::function<void()>& between = {});
  /// Gives the finished file its name.
  void publish() { file_.publish(); }

 private:
  struct Spool {
    explicit Spool(const std::string& path) : file(io::RawFile::create_locked(path)) {}
    ~Spool();  // deletes the file, then unlocks it
    Spool(const Spool&) = delete;
    Spool& operator=(const Spool&) = delete;
    io::RawFile file;
  };
  void flush();

  Spool spool_;  // first: whatever is deleted is deleted under its lock
  io::Publication file_;
  const Tokenizer& tokenizer_;
  std::int64_t vocab_size_;
  std::int64_t token_bytes_;
  std::vector<std::byte> buffer_;
  std::int64_t num_tokens_ = 0;
  std::int64_t num_unknown_ = 0;
  std::int64_t spooled_bytes_ = 0;
  std::uint32_t checksum_ = 0;  // CRC-32C of what is spooled
};

}  // namespace mica::data
