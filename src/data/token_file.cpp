// SPDX-License-Identifier: Apache-2.0
#include "mica/data/token_file.hpp"

#include <array>
#include <bit>
#include <cstring>

#include <fmt/ranges.h>
#include <unistd.h>

#include "mica/core/error.hpp"
#include "mica/core/steady_ns.hpp"
#include "mica/io/file_checksum.hpp"
#include "mica/io/hdf5.hpp"

namespace mica::data {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are little-endian and are read as they are");

constexpr std::array<unsigned char, 8> kHdf5Signature{0x89, 'H', 'D', 'F', '\r', '\n', 0x1a, '\n'};
constexpr std::int64_t kNsBetweenChecks = 1'000'000'000;
constexpr std::int64_t kLlmcHeaderBytes = 256 * 4;
constexpr std::int32_t kLlmcMagicU16 = 20240520;
constexpr std::int32_t kLlmcMagicU32 = 20240801;
constexpr std::int32_t kLlmcMagicEvaluation = 20240522;
constexpr std::string_view kMakeOne = "make one with: mica-tokenize --out=corpus.h5 TEXT_FILE...";

bool has_suffix(std::string_view path, std::string_view suffix) {
  return path.size() >= suffix.size() && path.substr(path.size() - suffix.size()) == suffix;
}

std::int32_t load_int32(std::span<const std::byte> bytes, std::size_t index) {
  std::int32_t value = 0;
  std::memcpy(&value, bytes.data() + 4 * index, 4);
  return value;
}

std::int64_t size_of(const io::MappedFile& file) { return static_cast<std::int64_t>(file.bytes().size()); }

/// The first bytes in readable form, for errors.
std::string describe_start(std::span<const std::byte> bytes) {
  std::string hex;
  std::string text;
  for (const std::byte b : bytes.first(std::min<std::size_t>(bytes.size(), 8))) {
    const auto c = std::to_integer<unsigned char>(b);
    hex += fmt::format("{}{:02x}", hex.empty() ? "" : " ", c);
    text += c >= 32 && c < 127 ? static_cast<char>(c) : '.';
  }
  return fmt::format("{} ('{}')", hex, text);
}

TokenFile::Layout read_hdf5_layout(const io::MappedFile& file) {
  const std::string& path = file.path();
  const auto hdf5 = io::Hdf5File::open(path);
  require<ConfigError>(hdf5.exists(kTokensDataset), "{}: an HDF5 file, but without the dataset {} (it has: {}); it is no token file: {}",
                       path, kTokensDataset, fmt::join(hdf5.list("/"), ", "), kMakeOne);
  const io::Hdf5Dataset tokens = hdf5.open_dataset(kTokensDataset);
  const bool is_u16 = tokens.type() == io::FileType::u16;
  require<ConfigError>(tokens.dims().size() == 1 && (is_u16 || tokens.type() == io::FileType::u32),
                       "{}: {} has {} dimensions and element type {}, expected 1 dimension of uint16 or uint32 (little-endian)", path,
                       kTokensDataset, tokens.dims().size(), io::file_type_name(tokens.type()));
  require<ConfigError>(tokens.numel() > 0, "{}: {} is empty; {}", path, kTokensDataset, kMakeOne);
  require<ConfigError>(tokens.is_contiguous(),
                       "{}: {} is chunked, compressed or stored elsewhere, but tokens are mapped into memory as they are; "
                       "rewrite it with: h5repack -l CONTI -f NONE {} out.h5",
                       path, kTokensDataset, path);
  TokenFile::Layout layout{TokenFormat::hdf5, tokens.file_offset(), tokens.numel(), is_u16 ? 2 : 4, {}, {}, {}, {}};
  require<ConfigError>(layout.offset_bytes >= 0 && tokens.bytes() <= size_of(file) - layout.offset_bytes,
                       "{}: truncated: {} takes {} bytes from byte {} on, but the file has {}; copy or make it again", path, kTokensDataset,
                       tokens.bytes(), layout.offset_bytes, size_of(file));
  const auto attribute_holder = [&](const char* name) -> std::string {  // on the dataset, or on the file
    if (hdf5.has_attribute(kTokensDataset, name)) return kTokensDataset;
    return hdf5.has_attribute("/", name) ? "/" : "";
  };
  if (const std::string at = attribute_holder(kVocabSizeAttribute); !at.empty()) {
    layout.vocab_size = hdf5.int_attribute(at, kVocabSizeAttribute);
    require<ConfigError>(*layout.vocab_size > 0 && *layout.vocab_size <= (std::int64_t{1} << 31),
                         "{}: attribute {} is {}, expected 1 to 2^31", path, kVocabSizeAttribute, *layout.vocab_size);
  }
  if (const std::string at = attribute_holder(kTokenizerAttribute); !at.empty()) {
    layout.tokenizer = hdf5.string_attribute(at, kTokenizerAttribute);
  }
  if (const std::string at = attribute_holder(kTokenizerHashAttribute); !at.empty()) {
    layout.tokenizer_hash = hdf5.string_attribute(at, kTokenizerHashAttribute);
  }
  if (const std::string at = attribute_holder(kTokensChecksumAttribute); !at.empty()) {
    layout.checksum = static_cast<std::uint32_t>(hdf5.int_attribute(at, kTokensChecksumAttribute));
  }
  return layout;
}

TokenFile::Layout read_llmc_layout(const io::MappedFile& file, std::int32_t magic) {
  const std::string& path = file.path();
  require<ConfigError>(size_of(file) >= kLlmcHeaderBytes,
                       "{}: truncated: an llm.c token file starts with {} bytes of header, but the file has {} bytes in all", path,
                       kLlmcHeaderBytes, size_of(file));
  const bool is_u32 = magic == kLlmcMagicU32;
  const std::int32_t expected_version = is_u32 ? 7 : 1;
  const std::int32_t version = load_int32(file.bytes(), 1);
  require<ConfigError>(version == expected_version,
                       "{}: an llm.c token file (magic {}) of version {}, expected version {}; write it again with llm.c's "
                       "current scripts, or tokenize with mica-tokenize",
                       path, magic, version, expected_version);
  const std::int64_t num_tokens = load_int32(file.bytes(), 2);
  const std::int64_t token_bytes = is_u32 ? 4 : 2;
  const std::int64_t wanted = kLlmcHeaderBytes + num_tokens * token_bytes;
  require<ConfigError>(num_tokens > 0, "{}: the header of this llm.c token file promises {} tokens; expected at least 1", path, num_tokens);
  require<ConfigError>(size_of(file) == wanted,
                       "{}: {}: its header promises {} tokens, {} bytes in all, but the file has {} bytes; copy or make it again", path,
                       size_of(file) < wanted ? "truncated" : "too long", num_tokens, wanted, size_of(file));
  return {is_u32 ? TokenFormat::llmc_u32 : TokenFormat::llmc_u16, kLlmcHeaderBytes, num_tokens, token_bytes, {}, {}, {}};
}

/// Whether raw values look like the halves of 32-bit ids: every second one is 0, as the high halves of ids below 65,536 are (larger
/// vocabularies take no raw file), and many of the others are not small. In text, either place has all kinds of ids. Looks at some thousand
/// values, in blocks spread over the file.
bool looks_like_u32(std::span<const std::byte> bytes) {
  constexpr std::size_t kBlocks = 16;
  constexpr std::size_t kPairs = 128;  // of values, in a block
  constexpr std::uint16_t kSmall = 16;
  constexpr int kEnough = 32;  // small vocabularies, runs of zeros and short files do not have so many that are not small
  const std::size_t num_pairs = bytes.size() / 4;
  const std::size_t in_block = std::min(num_pairs, kPairs);
  int num_large = 0;
  for (std::size_t b = 0; b < kBlocks; ++b) {
    const std::size_t begin = (num_pairs - in_block) / (kBlocks - 1) * b;
    for (std::size_t i = begin; i < begin + in_block; ++i) {
      std::array<std::uint16_t, 2> pair{};
      std::memcpy(pair.data(), bytes.data() + 4 * i, 4);
      if (pair[1] != 0) return false;
      num_large += pair[0] >= kSmall ? 1 : 0;
    }
    if (num_pairs <= kPairs) break;
  }
  return num_large >= kEnough;
}

TokenFile::Layout read_layout(const io::MappedFile& file) {
  const std::string& path = file.path();
  const std::span<const std::byte> bytes = file.bytes();
  require<ConfigError>(!bytes.empty(), "{}: the token file is empty (0 bytes); {}", path, kMakeOne);
  if (bytes.size() >= kHdf5Signature.size() && std::memcmp(bytes.data(), kHdf5Signature.data(), kHdf5Signature.size()) == 0) {
    return read_hdf5_layout(file);
  }
  const std::int32_t magic = bytes.size() >= 4 ? load_int32(bytes, 0) : 0;
  if (magic == kLlmcMagicU16 || magic == kLlmcMagicU32) return read_llmc_layout(file, magic);
  require<ConfigError>(magic != kLlmcMagicEvaluation,
                       "{}: an evaluation file of llm.c (magic {}), which holds multiple-choice questions; expected tokens "
                       "(magic {} or {})",
                       path, magic, kLlmcMagicU16, kLlmcMagicU32);
  // Raw files have no magic number. The name must tell, or a text file would be trained on as if it were tokens.
  require<ConfigError>(has_suffix(path, ".bin"),
                       "{}: not a token file: it starts with {}, expected an HDF5 file, llm.c's magic {} or {}, or raw uint16 "
                       "in a file named *.bin; from text, {}",
                       path, describe_start(bytes), kLlmcMagicU16, kLlmcMagicU32, kMakeOne);
  require<ConfigError>(bytes.size() % 2 == 0,
                       "{}: truncated: raw uint16 tokens need an even number of bytes, but the file has {}; copy or make it again", path,
                       bytes.size());
  require<ConfigError>(!looks_like_u32(bytes),
                       "{0}: looks like 32-bit ids: every second 16-bit value is 0, but a raw *.bin file holds uint16; make an HDF5 "
                       "file of it: python3 -c \"import h5py, numpy; h5py.File('tokens.h5', 'w')['tokens'] = numpy.fromfile('{0}', "
                       "'uint32')\" ('uint16' if they are 16-bit ids after all)",
                       path);
  return {TokenFormat::raw, 0, size_of(file) / 2, 2, {}, {}, {}};
}

}  // namespace

TokenFile::TokenFile(io::MappedFile mapping, Layout layout) : mapping_(std::move(mapping)), layout_(std::move(layout)) {}

TokenFile TokenFile::open(const std::string& path) {
  try {
    io::MappedFile mapping = io::MappedFile::open(path);
    mapping.set_access(io::MappedFile::Access::alone);  // a few looks here and there
    Layout layout = read_layout(mapping);
    mapping.set_access(io::MappedFile::Access::with_neighbours);
    return {std::move(mapping), std::move(layout)};
  } catch (const IoError& error) {  // a wrong path is the user's mistake, not a failure of the machine
    if (::access(path.c_str(), R_OK) == 0) throw ConfigError(fmt::format("token file {}", error.what()));
    throw ConfigError(fmt::format("token file {}; check the path in data.train and data.val, or {}", error.what(), kMakeOne));
  } catch (const Hdf5Error& error) {
    throw ConfigError(fmt::format("token file {}; the file is damaged or not one of Mica's: copy or make it again", error.what()));
  }
}

void TokenFile::read(std::int64_t begin, std::span<std::int32_t> out) const {
  const auto count = static_cast<std::int64_t>(out.size());
  invariant(begin >= 0 && count <= num_tokens() && begin <= num_tokens() - count, "a range of tokens lies in its file");
  if (out.empty()) return;
  if (const std::int64_t now = steady_ns(); now >= shared_->next_check_ns.load(std::memory_order_relaxed)) {
    mapping_.check_unchanged();
    shared_->next_check_ns.store(now + kNsBetweenChecks, std::memory_order_relaxed);
  }
  const auto offset = static_cast<std::size_t>(layout_.offset_bytes + begin * layout_.token_bytes);
  const auto num_bytes = static_cast<std::size_t>(count * layout_.token_bytes);
  if (shared_->is_scattered.load(std::memory_order_relaxed)) mapping_.prefetch(mapping_.bytes().subspan(offset, num_bytes));
  const std::span<std::byte> copied = std::as_writable_bytes(out).last(num_bytes);  // 16-bit ids lie behind what is made of them
  mapping_.read(offset, copied);
  if (layout_.token_bytes == 4) return;
  for (std::size_t i = 0; i < out.size(); ++i) {
    std::uint16_t id = 0;
    std::memcpy(&id, copied.data() + 2 * i, 2);
    out[i] = id;
  }
}

void TokenFile::set_scattered(bool is_scattered) const {
  shared_->is_scattered.store(is_scattered, std::memory_order_relaxed);
  mapping_.set_access(is_scattered ? io::MappedFile::Access::alone : io::MappedFile::Access::with_neighbours);
}

std::uint32_t TokenFile::compute_checksum(const std::function<void(std::int64_t)>& done) const {
  mapping_.check_unchanged();
  io::RawFile file = io::RawFile::open_for_reading(path());  // not the mapping: a page that cannot be read would end the process
  return io::file_crc32c(file, layout_.offset_bytes, num_tokens() * token_bytes(), done);
}

std::int64_t TokenFile::token(std::int64_t position) const {
  std::int32_t id = 0;
  read(position, {&id, 1});
  return static_cast<std::uint32_t>(id);
}

std::int64_t TokenFile::find_past_vocab(std::int64_t vocab_size, std::int64_t begin, std::int64_t end) const {
  constexpr std::int64_t kBlock = 1 << 14;
  std::array<std::int32_t, kBlock> block;
  for (std::int64_t at = begin; at < end; at += kBlock) {
    const auto ids = std::span(block).first(static_cast<std::size_t>(std::min(kBlock, end - at)));
    read(at, ids);
    std::uint32_t largest = 0;  // branch-free first, since nearly every block is good
    for (const std::int32_t id : ids) largest = std::max(largest, static_cast<std::uint32_t>(id));
    if (largest < vocab_size) continue;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (static_cast<std::uint32_t>(ids[i]) >= vocab_size) return at + static_cast<std::int64_t>(i);
    }
  }
  return end;
}

}  // namespace mica::data
