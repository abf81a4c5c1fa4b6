// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "mica/data/tokenizer.hpp"

namespace mica::data {

struct TokenizeOptions {
  std::vector<std::string> files;  ///< text files, one document each, in this order
  std::string out;                 ///< "x.h5" or "x": writes x.train.h5 and x.val.h5
  double val_fraction = 0.1;       ///< share of each file's bytes that is held out for validation; 0: no validation file
  std::function<void(std::int64_t done_bytes, std::int64_t total_bytes)> progress;  ///< may be empty
  bool overwrite = false;            ///< replaces existing token files; not a validation file if val_fraction is 0
  std::function<bool()> is_stopped;  ///< asked for every few MB; true: no file is written, and tokenize_files() throws; may be empty
};

struct TokenizeResult {
  std::string train_path;
  std::string val_path;  ///< "" if val_fraction is 0
  std::int64_t train_tokens = 0;
  std::int64_t val_tokens = 0;
  std::int64_t num_unknown = 0;  ///< of all tokens, those that stand for text that the vocabulary does not know
  std::int64_t input_bytes = 0;
  std::int64_t num_empty_files = 0;  ///< skipped
};

/// The two paths that tokenize_files() writes for an `out`.
[[nodiscard]] std::string train_path_of(const std::string& out);
[[nodiscard]] std::string val_path_of(const std::string& out);

/// Turns text files into token files for training and validation.
/// The last part of every file is held out, so both sides see all kinds of text; the cut is moved to the nearest end of a
/// paragraph, or else of a line, within half of the held-out part (at most 64 KiB). The same input gives the same bytes. Reads
/// in pieces and spools tokens to a file beside the output, so memory does not grow with the input; the disk briefly holds the
/// tokens twice. The outputs appear complete or not at all.
/// @throws ConfigError: no or unreadable input, nothing but empty files, an input that is a token file already, existing outputs
/// without `overwrite`, an old validation file if val_fraction is 0, val_fraction outside [0, 1), a split without tokens on one side, an
/// unwritable folder. IoError: a full disk.
TokenizeResult tokenize_files(const Tokenizer& tokenizer, const TokenizeOptions& options);

}  // namespace mica::data
