// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "mica/core/dtype.hpp"
#include "mica/core/error.hpp"
#include "mica/core/unique_handle.hpp"

// [Note: HDF5 in Mica]
// hdf5.h is included in src/io only; identifiers travel as 64-bit integers. Every failing call throws Hdf5Error, whose one-line
// text names the file, the object, the call and HDF5's own messages; HDF5 itself prints nothing. Threads may use different
// files at the same time, whether or not the library is thread-safe: only one thread at a time is inside it. Datasets are
// contiguous, allocated when created and never filled, and those of 64 KiB and more start on a 4 KiB page, so that their bytes
// can also be written and read with RawFile at file_offset() (measured: as fast as the plain file system). HDF5 does not
// protect data: flipped bytes are read as wrong numbers without an error. Callers keep checksums (crc32c.hpp). Files are
// not locked: Mica's writers use names of their own and rename when done (atomic_file.hpp).

namespace mica::io {

/// Element types in files: those of DType, unsigned 32-bit integers (token ids), and `other` for types that Mica does not read.
enum class FileType : std::uint8_t { f32, bf16, f16, f64, i64, i32, u32, u16, u8, other };

[[nodiscard]] FileType file_type(DType dtype);
/// Bytes of one element; 0 for `other`.
[[nodiscard]] std::int64_t file_type_bytes(FileType type);
/// "fp32", "uint32", ...
[[nodiscard]] std::string_view file_type_name(FileType type);

struct Hdf5IdTraits {
  using type = std::int64_t;  // hid_t
  static type null() { return -1; }
  static void close(type id) noexcept;
};
using Hdf5Id = UniqueHandle<Hdf5IdTraits>;

/// An open dataset. It keeps the file open until it is destroyed.
class Hdf5Dataset {
 public:
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] const std::vector<std::int64_t>& dims() const { return dims_; }  ///< empty for a scalar
  [[nodiscard]] FileType type() const { return type_; }
  /// @throws Hdf5Error if the element type is not one of DType's.
  [[nodiscard]] DType dtype() const;
  [[nodiscard]] std::int64_t numel() const;
  [[nodiscard]] std::int64_t bytes() const { return numel() * file_type_bytes(type_); }
  /// Whether it is stored in this file as one contiguous range of bytes (not chunked, compact, virtual or external).
  [[nodiscard]] bool is_contiguous() const;
  /// Offset of the first byte in the file; -1 if nothing is allocated (numel 0) or it is not contiguous.
  [[nodiscard]] std::int64_t file_offset() const;

  /// The whole dataset, row-major, elements of type(). @param bytes  must equal bytes(). @throws Hdf5Error.
  void write(const void* data, std::int64_t bytes);
  void read(void* data, std::int64_t bytes) const;
  /// Elements [begin, begin + count) of a 1-D dataset. @throws Hdf5Error if the range is not inside the dataset.
  void write_range(std::int64_t begin, std::int64_t count, const void* data);

 private:
  friend class Hdf5File;
  Hdf5Dataset(Hdf5Id id, std::string path, std::string name);
  void check_bytes(std::int64_t bytes) const;

  Hdf5Id id_;
  std::string path_;
  std::string name_;
  std::vector<std::int64_t> dims_;
  FileType type_ = FileType::other;
};

/// A box of an N-D dataset: corner and extents, one of each per dimension.
struct Hdf5Box {
  std::vector<std::int64_t> start, count;
};

/// Where some elements of a virtual dataset come from: elements [begin, begin + n) of a 1-D dataset of another file fill
/// the n elements of the boxes, which do not overlap, in row-major order of the virtual dataset.
struct Hdf5VirtualSource {
  std::string file;     ///< a bare name: in the folder of the file with the virtual dataset, wherever that is moved
  std::string dataset;  ///< "/units/3/master"
  std::int64_t dataset_numel = 0;
  std::int64_t begin = 0;
  std::vector<Hdf5Box> boxes;
};

/// An open HDF5 file. Object names are absolute ("/tokens"); missing groups on the way are created.
/// Example:
///   auto file = Hdf5File::create("x.h5.tmp");
///   file.create_dataset("/w", DType::f32, {2, 3}).write(data, 24);
///   file.set_attribute("/w", "unit", "h.0");
///   file.close();                                   // the checked path; the destructor drops errors
class Hdf5File {
 public:
  /// An empty file for writing; an existing one is overwritten. @throws Hdf5Error.
  static Hdf5File create(const std::string& path);
  /// An existing file, read-only. @throws Hdf5Error.
  static Hdf5File open(const std::string& path);

  [[nodiscard]] const std::string& path() const { return path_; }

  /// @throws Hdf5Error if the name is taken or the space cannot be allocated.
  Hdf5Dataset create_dataset(const std::string& name, FileType type, const std::vector<std::int64_t>& dims);
  Hdf5Dataset create_dataset(const std::string& name, DType dtype, const std::vector<std::int64_t>& dims);
  [[nodiscard]] Hdf5Dataset open_dataset(const std::string& name) const;
  /// A dataset whose elements are stored in other files, in the same type. An element without a source, or whose file is missing,
  /// reads as NaN, or as the integer furthest from zero. The sources' files need not exist yet.
  /// @throws Hdf5Error.
  void create_virtual_dataset(const std::string& name, FileType type, const std::vector<std::int64_t>& dims,
                              const std::vector<Hdf5VirtualSource>& sources);

  [[nodiscard]] bool exists(const std::string& name) const;
  /// Names of a group's members, sorted; not recursive, without the group's own name.
  [[nodiscard]] std::vector<std::string> list(const std::string& group) const;

  /// A 1-D dataset of fixed-length UTF-8 strings (any number, any length, no NUL inside).
  void write_strings(const std::string& name, const std::vector<std::string>& strings);
  /// Reads fixed-length and variable-length strings.
  [[nodiscard]] std::vector<std::string> read_strings(const std::string& name) const;

  /// Attributes of the object `object` ("/" for the file as a whole); an existing one is replaced.
  void set_attribute(const std::string& object, const std::string& name, std::string_view text);
  void set_attribute(const std::string& object, const std::string& name, std::int64_t value);
  [[nodiscard]] bool has_attribute(const std::string& object, const std::string& name) const;
  [[nodiscard]] std::string string_attribute(const std::string& object, const std::string& name) const;
  [[nodiscard]] std::int64_t int_attribute(const std::string& object, const std::string& name) const;

  /// Closes and checks; no dataset of this file may still be open. Safe to call twice. @throws Hdf5Error.
  void close();

 private:
  Hdf5File(Hdf5Id id, std::string path);
  [[nodiscard]] Hdf5Id create_attribute(const std::string& object, const std::string& name, std::int64_t type) const;
  [[nodiscard]] Hdf5Id open_attribute(const std::string& object, const std::string& name) const;

  Hdf5Id id_;
  std::string path_;
};

/// Runs an action that writes a file and throws its Hdf5Error as an IoError, so that a full disk is the same kind of error
/// wherever it is noticed.
template <class Action>
auto writing_hdf5(Action&& action) {
  try {
    return action();
  } catch (const Hdf5Error& e) {
    throw IoError(e.what());
  }
}

/// Version of the library in use, e.g. "1.10.8".
[[nodiscard]] std::string hdf5_version();

}  // namespace mica::io
