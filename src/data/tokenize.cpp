// SPDX-License-Identifier: Apache-2.0
#include "mica/data/tokenize.hpp"

#include <array>
#include <cstring>
#include <filesystem>
#include <memory>

#include "mica/core/error.hpp"
#include "mica/io/atomic_file.hpp"
#include "mica/io/path_check.hpp"
#include "mica/io/raw_file.hpp"

#include "text_split.hpp"
#include "token_writer.hpp"

namespace mica::data {
namespace {

constexpr std::int64_t kPieceBytes = 1 << 20;

std::string stem_of(const std::string& out) {
  constexpr std::string_view kSuffix = ".h5";
  const bool has_suffix = out.size() > kSuffix.size() && out.compare(out.size() - kSuffix.size(), kSuffix.size(), kSuffix) == 0;
  return has_suffix ? out.substr(0, out.size() - kSuffix.size()) : out;
}

/// Opens an input and refuses files that are certainly not text. A file that cannot be read is a user's mistake: ConfigError.
io::RawFile open_text(const std::string& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  require<ConfigError>(std::filesystem::exists(status), "{}: cannot read the text: {}", path,
                       error ? error.message() : "No such file or directory");
  require<ConfigError>(!std::filesystem::is_directory(status), "{}: is a folder, expected a text file; name its files, e.g. {}/*.txt", path,
                       path);
  require<ConfigError>(std::filesystem::is_regular_file(status), "{}: is a device or pipe, expected a text file", path);
  try {
    io::RawFile file = io::RawFile::open_for_reading(path);
    std::array<char, 8> start{};
    if (file.file_bytes() >= 8) file.read_at(0, start.data(), 8);
    require<ConfigError>(std::memcmp(start.data(), "\x89HDF\r\n\x1a\n", 8) != 0,
                         "{}: is an HDF5 file, perhaps tokens already; expected a text file", path);
    return file;
  } catch (const IoError& io_error) {
    throw ConfigError(fmt::format("{}: cannot read the text", io_error.what()));
  }
}

void check_not_replaced(const TokenizeOptions& options) {
  std::error_code none;
  const std::string val_path = val_path_of(options.out);
  // Without a validation file nothing would replace an old one, whose text may be in the new training file.
  require<ConfigError>(options.val_fraction > 0 || !std::filesystem::exists(val_path, none),
                       "delete {}: --val-fraction=0 writes no validation file, and its text may be in the new training file; or choose "
                       "another --out",
                       val_path);
  for (const std::string& path : {train_path_of(options.out), val_path}) {
    require<ConfigError>(options.overwrite || !std::filesystem::exists(path, none),
                         "{}: exists already, and runs may depend on it: choose another --out, or replace it with --overwrite", path);
  }
}

/// Sums the sizes and finds every unreadable file before any work is done.
std::vector<std::int64_t> check_inputs(const TokenizeOptions& options) {
  require<ConfigError>(!options.files.empty(), "no input: name at least one text file");
  require<ConfigError>(options.val_fraction >= 0 && options.val_fraction < 1,
                       "--val-fraction={} was given, expected 0 (no validation file) or a number below 1, e.g. 0.1", options.val_fraction);
  check_not_replaced(options);
  std::vector<std::int64_t> sizes;
  std::int64_t total = 0;
  for (const std::string& path : options.files) total += sizes.emplace_back(open_text(path).file_bytes());
  require<ConfigError>(total > 0, "{}: {} empty (0 bytes): there is nothing to tokenize", options.files.front(),
                       options.files.size() == 1 ? "the input is" : fmt::format("and all {} inputs are", options.files.size()));
  return sizes;
}

void check_output_folder(const std::string& out) {
  require<ConfigError>(!stem_of(out).empty() && out.back() != '/', "--out={} was given, expected a file name such as corpus.h5", out);
  const std::string folder = io::parent_directory(out);
  const std::string why = io::why_no_folder(folder);
  require<ConfigError>(why.empty(), "--out={}: {}: {}; make the folder first, or choose another", out, folder, why);
}

/// Encodes bytes [begin, end) of one file as a document. `report` gets the number of bytes read.
template <class Report>
void encode_range(const Tokenizer& tokenizer, io::RawFile& file, std::int64_t begin, std::int64_t end, TokenWriter& out,
                  const Report& report) {
  if (const auto first = tokenizer.start_of_document()) out.append({&*first, 1});
  std::string text;  // read and not yet encoded
  std::vector<std::int32_t> ids;
  DocumentPart part;
  while (begin < end || !text.empty()) {
    // If nothing of a long text can be encoded yet, reading twice as much each time keeps the work linear.
    const std::int64_t count = std::min(std::max(kPieceBytes, static_cast<std::int64_t>(text.size())), end - begin);
    const std::size_t carried = text.size();
    text.resize(carried + static_cast<std::size_t>(count));
    file.read_at(begin, text.data() + carried, count);
    begin += count;
    part.is_last = begin == end;
    ids.clear();
    const std::size_t encoded = tokenizer.encode_part(text, part, ids);
    out.append(ids);
    text.erase(0, encoded);
    part.is_first = part.is_first && encoded == 0;
    report(count);
  }
  if (const auto last = tokenizer.end_of_document()) out.append({&*last, 1});
}

}  // namespace

std::string train_path_of(const std::string& out) { return stem_of(out) + ".train.h5"; }

std::string val_path_of(const std::string& out) { return stem_of(out) + ".val.h5"; }

TokenizeResult tokenize_files(const Tokenizer& tokenizer, const TokenizeOptions& options) {
  const std::vector<std::int64_t> sizes = check_inputs(options);
  check_output_folder(options.out);
  TokenizeResult result;
  for (const std::int64_t bytes : sizes) {
    result.input_bytes += bytes;
    result.num_empty_files += bytes == 0 ? 1 : 0;
  }
  result.train_path = train_path_of(options.out);
  if (options.val_fraction > 0) result.val_path = val_path_of(options.out);

  std::unique_ptr<TokenWriter> train;
  std::unique_ptr<TokenWriter> val;
  try {
    train = std::make_unique<TokenWriter>(result.train_path, tokenizer);
    if (!result.val_path.empty()) val = std::make_unique<TokenWriter>(result.val_path, tokenizer);
  } catch (const IoError& error) {  // the folder is not writable: nothing was lost, and the user can choose another
    throw ConfigError(fmt::format("cannot write to the folder of --out={}: {}", options.out, error.what()));
  }
  check_not_replaced(options);  // again: another program may have finished these files before the writers locked them

  const auto check_stopped = [&] {
    require(!options.is_stopped || !options.is_stopped(), "stopped before the end: no token file was written");
  };
  std::int64_t done = 0;
  const auto report = [&](std::int64_t bytes) {
    done += bytes;
    if (options.progress) options.progress(done, result.input_bytes);
    check_stopped();
  };
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 0) continue;
    io::RawFile file = open_text(options.files[i]);
    const std::int64_t split = find_split(file, sizes[i], options.val_fraction);
    if (split > 0) encode_range(tokenizer, file, 0, split, *train, report);
    if (split < sizes[i]) encode_range(tokenizer, file, split, sizes[i], *val, report);
  }

  result.train_tokens = train->num_tokens();
  result.val_tokens = val ? val->num_tokens() : 0;
  result.num_unknown = train->num_unknown() + (val ? val->num_unknown() : 0);
  require<ConfigError>(result.train_tokens > 0 && (!val || result.val_tokens > 0),
                       "the input has {} bytes, of which --val-fraction={} leaves {} tokens for training and {} for validation; "
                       "give more text or another fraction",
                       result.input_bytes, options.val_fraction, result.train_tokens, result.val_tokens);
  train->finish(check_stopped);
  if (val) val->finish(check_stopped);
  if (val) val->publish();
  train->publish();
  return result;
}

}  // namespace mica::data
