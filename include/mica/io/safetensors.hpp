// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "mica/core/dtype.hpp"
#include "mica/io/atomic_file.hpp"
#include "mica/io/raw_file.hpp"

// [Note: safetensors]
// The file format in which models are shared: 8 bytes little-endian length of the header, the header (JSON, one object: tensor
// name -> {"dtype", "shape", "data_offsets": [begin, end)}, and optionally "__metadata__": texts by name), then the tensors'
// bytes, row-major and little-endian; data_offsets count from the first byte after the header. Files are untrusted, so
// everything in a header is checked: the tensors must cover the data from its first byte to the file's last, without gap or
// overlap, and byte counts must follow from dtype and shape, as in the format's own implementation. Errors name the file and
// the tensor.

namespace mica::io {

/// The format's limit for the header, in bytes.
inline constexpr std::int64_t kMaxSafetensorsHeader = 100'000'000;

/// A tensor of a file.
struct SafetensorsEntry {
  std::string name;
  std::string dtype;                   ///< as the file spells it: "F32", "BF16", "I64", ...
  std::vector<std::int64_t> dims;      ///< empty for a scalar
  std::int64_t numel = 0;              ///< product of dims
  std::int64_t offset = 0, bytes = 0;  ///< of its data in the file

  /// The element types that Mica reads: F32, BF16, F16. Nothing for the others.
  [[nodiscard]] std::optional<DType> mica_dtype() const;
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> tensors;  ///< in the order of their data
  std::map<std::string, std::string> metadata;
};

/// @param text  the JSON, without the 8 bytes of length.  @param file_bytes  of the whole file.  @param path  for errors.
/// @throws CheckpointError for anything that the format does not allow, such as a name that appears twice.
[[nodiscard]] SafetensorsHeader parse_safetensors_header(std::string_view text, std::int64_t file_bytes, const std::string& path);

/// A file to read from. One thread; holds no data.
class SafetensorsFile {
 public:
  /// Reads and checks the header. @throws IoError (missing, unreadable), CheckpointError.
  explicit SafetensorsFile(const std::string& path);
  /// With a header that was read elsewhere: the file is opened when data is first read.
  SafetensorsFile(std::string path, SafetensorsHeader header);

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] const std::vector<SafetensorsEntry>& tensors() const { return header_.tensors; }
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  /// Null if there is none of that name.
  [[nodiscard]] const SafetensorsEntry* find(std::string_view name) const;

  /// Elements [begin, begin + numel) of the flattened tensor as f32, exactly. @param tensor  one of tensors().
  /// @throws CheckpointError naming the dtype if it is not F32, BF16 or F16; IoError.
  void read(const SafetensorsEntry& tensor, std::int64_t begin, std::int64_t numel, float* data);

 private:
  void make_index();

  std::string path_;
  std::optional<RawFile> raw_;
  SafetensorsHeader header_;
  std::map<std::string, std::size_t, std::less<>> index_;
  std::vector<std::uint16_t> halves_;  // buffer of a read that is being converted
};

/// A tensor to be written.
struct SafetensorsSpec {
  std::string name;
  DType dtype = DType::f32;  ///< f32, bf16 or f16
  std::vector<std::int64_t> dims;
};

/// Writes a file piece by piece: the header first, then any range of any tensor. The file appears under its name when
/// finish() has returned, and not at all if it is never called. The same tensors give the same bytes, those of the
/// format's own implementation: wider dtypes first, then by name, header padded with spaces to 8 bytes.
/// Example:
///   SafetensorsWriter writer("x.safetensors", {{"w", DType::bf16, {2, 3}}}, {{"format", "pt"}});
///   writer.write("w", 0, 6, values);
///   writer.finish();
class SafetensorsWriter {
 public:
  /// Creates `path`.tmp at its full length. @throws Error if a name is given twice, IoError (a full disk).
  SafetensorsWriter(const std::string& path, std::vector<SafetensorsSpec> tensors, const std::map<std::string, std::string>& metadata);

  /// Elements [begin, begin + numel) of the flattened tensor, rounded to its dtype (to nearest, ties to even).
  /// Every element is to be written exactly once, in any order.
  void write(std::string_view tensor, std::int64_t begin, std::int64_t numel, const float* data);
  /// Completes the file: synced to disk and under its name. @throws Error if elements are missing; IoError.
  void finish();

 private:
  struct Place {
    DType dtype;
    std::int64_t numel, offset, num_written;
  };
  Publication file_;
  std::optional<RawFile> raw_;  // until it is finished
  std::map<std::string, Place, std::less<>> places_;
  std::vector<std::uint16_t> halves_;
};

}  // namespace mica::io
