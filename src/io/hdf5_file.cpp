// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include "hdf5_call.hpp"
#include "hdf5_create.hpp"

namespace mica::io {
namespace {

using detail::check;
using detail::create_parents;
using detail::creation_list;
using detail::Hdf5Where;
using detail::make_space;
using detail::own;

bool link_exists(hid_t file, const std::string& path, const std::string& name) {
  return check(H5Lexists(file, name.c_str(), H5P_DEFAULT), "H5Lexists", {path, name}) > 0;
}

/// Datasets from this size on start at a page border, so that direct transfers can bypass the page cache.
constexpr hsize_t kAlignFromBytes = 65536;
constexpr hsize_t kAlignmentBytes = 4096;

Hdf5Id file_access_list(const std::string& path) {
  Hdf5Id fapl = own(H5Pcreate(H5P_FILE_ACCESS), "H5Pcreate", {path});
  check(H5Pset_libver_bounds(fapl.get(), H5F_LIBVER_V110, H5F_LIBVER_V110), "H5Pset_libver_bounds", {path});
  check(H5Pset_alignment(fapl.get(), kAlignFromBytes, kAlignmentBytes), "H5Pset_alignment", {path});
#if H5_VERSION_GE(1, 12, 1) || (H5_VERSION_GE(1, 10, 7) && H5_VERS_MINOR == 10)  // 1.12.0 has no such call
  check(H5Pset_file_locking(fapl.get(), 0, 1), "H5Pset_file_locking", {path});   // many cluster file systems have no locks
#endif
  return fapl;
}

Hdf5Id dataset_creation_list(const Hdf5Where& where) {
  Hdf5Id dcpl = creation_list(H5P_DATASET_CREATE, where);
  check(H5Pset_layout(dcpl.get(), H5D_CONTIGUOUS), "H5Pset_layout", where);
  check(H5Pset_alloc_time(dcpl.get(), H5D_ALLOC_TIME_EARLY), "H5Pset_alloc_time", where);
  check(H5Pset_fill_time(dcpl.get(), H5D_FILL_TIME_NEVER), "H5Pset_fill_time", where);
  return dcpl;
}

/// UTF-8 text: `length` bytes padded with NUL, or H5T_VARIABLE.
Hdf5Id string_type(std::size_t length, const Hdf5Where& where) {
  Hdf5Id type = own(H5Tcopy(H5T_C_S1), "H5Tcopy", where);
  check(H5Tset_size(type.get(), length), "H5Tset_size", where);
  check(H5Tset_cset(type.get(), H5T_CSET_UTF8), "H5Tset_cset", where);
  if (length != H5T_VARIABLE) check(H5Tset_strpad(type.get(), H5T_STR_NULLPAD), "H5Tset_strpad", where);
  return type;
}

/// How strings are stored in the file.
struct StringLayout {
  bool is_variable = false;
  std::size_t bytes = 0;  ///< of one string, if fixed
};

StringLayout string_layout(hid_t type, const Hdf5Where& where) {
  require<Hdf5Error>(H5Tget_class(type) == H5T_STRING, "{}: '{}' was expected to hold text", where.path, where.object);
  const bool is_variable = check(H5Tis_variable_str(type), "H5Tis_variable_str", where) > 0;
  return {is_variable, H5Tget_size(type)};
}

std::string up_to_nul(const char* text, std::size_t capacity) { return {text, strnlen(text, capacity)}; }

}  // namespace

namespace detail {

Hdf5Id creation_list(hid_t list_class, const Hdf5Where& where) {
  Hdf5Id plist = own(H5Pcreate(list_class), "H5Pcreate", where);
  check(H5Pset_obj_track_times(plist.get(), 0), "H5Pset_obj_track_times", where);
  return plist;
}

// HDF5 could create them with the object, but would store creation times.
void create_parents(hid_t file, const std::string& path, const std::string& name) {
  for (std::size_t end = name.find('/', 1); end != std::string::npos; end = name.find('/', end + 1)) {
    const std::string group = name.substr(0, end);
    if (link_exists(file, path, group)) continue;
    const Hdf5Where where{path, group};
    const Hdf5Id gcpl = creation_list(H5P_GROUP_CREATE, where);
    (void)own(H5Gcreate2(file, group.c_str(), H5P_DEFAULT, gcpl.get(), H5P_DEFAULT), "H5Gcreate2", where);
  }
}

Hdf5Id make_space(const std::vector<std::int64_t>& dims, const Hdf5Where& where) {
  for (const std::int64_t d : dims) {
    require<Hdf5Error>(d >= 0, "{}: '{}' would have a negative extent {}", where.path, where.object, d);
  }
  if (dims.empty()) return own(H5Screate(H5S_SCALAR), "H5Screate", where);
  const std::vector<hsize_t> extents = to_hsize(dims);
  return own(H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr), "H5Screate_simple", where);
}

}  // namespace detail

std::string hdf5_version() {
  const detail::Hdf5Section section;
  unsigned major = 0;
  unsigned minor = 0;
  unsigned release = 0;
  H5get_libversion(&major, &minor, &release);
  return fmt::format("{}.{}.{}", major, minor, release);
}

Hdf5File::Hdf5File(Hdf5Id id, std::string path) : id_(std::move(id)), path_(std::move(path)) {}

Hdf5File Hdf5File::create(const std::string& path) {
  const detail::Hdf5Section section;
  const Hdf5Id fapl = file_access_list(path);
  const Hdf5Id fcpl = creation_list(H5P_FILE_CREATE, {path});
  return {own(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, fcpl.get(), fapl.get()), "H5Fcreate", {path}), path};
}

Hdf5File Hdf5File::open(const std::string& path) {
  const detail::Hdf5Section section;
  const Hdf5Id fapl = file_access_list(path);
  return {own(H5Fopen(path.c_str(), H5F_ACC_RDONLY, fapl.get()), "H5Fopen", {path}), path};
}

Hdf5Dataset Hdf5File::create_dataset(const std::string& name, FileType type, const std::vector<std::int64_t>& dims) {
  const detail::Hdf5Section section;
  const Hdf5Where where{path_, name};
  const Hdf5Id type_id = detail::make_type(type, where);
  const Hdf5Id space = make_space(dims, where);
  create_parents(id_.get(), path_, name);
  const Hdf5Id dcpl = dataset_creation_list(where);
  return {own(H5Dcreate2(id_.get(), name.c_str(), type_id.get(), space.get(), H5P_DEFAULT, dcpl.get(), H5P_DEFAULT), "H5Dcreate2", where),
          path_, name};
}

Hdf5Dataset Hdf5File::create_dataset(const std::string& name, DType dtype, const std::vector<std::int64_t>& dims) {
  return create_dataset(name, file_type(dtype), dims);
}

Hdf5Dataset Hdf5File::open_dataset(const std::string& name) const {
  const detail::Hdf5Section section;
  return {own(H5Dopen2(id_.get(), name.c_str(), H5P_DEFAULT), "H5Dopen2", {path_, name}), path_, name};
}

bool Hdf5File::exists(const std::string& name) const {
  const detail::Hdf5Section section;
  // H5Lexists fails unless every group on the path exists, so check each.
  std::size_t end = name.find_first_not_of('/');
  while (end != std::string::npos) {
    end = name.find('/', end);
    const std::string prefix = name.substr(0, end);
    if (!link_exists(id_.get(), path_, prefix)) return false;
    if (end != std::string::npos) end = name.find_first_not_of('/', end);
  }
  return true;
}

std::vector<std::string> Hdf5File::list(const std::string& group) const {
  const detail::Hdf5Section section;
  const Hdf5Where where{path_, group};
  const Hdf5Id id = own(H5Gopen2(id_.get(), group.c_str(), H5P_DEFAULT), "H5Gopen2", where);
  std::vector<std::string> names;
  const auto append = [](hid_t, const char* name, const H5L_info_t*, void* out) -> herr_t {
    static_cast<std::vector<std::string>*>(out)->emplace_back(name);
    return 0;
  };
  check(H5Literate(id.get(), H5_INDEX_NAME, H5_ITER_NATIVE, nullptr, append, &names), "H5Literate", where);
  std::sort(names.begin(), names.end());
  return names;
}

void Hdf5File::write_strings(const std::string& name, const std::vector<std::string>& strings) {
  const detail::Hdf5Section section;
  const Hdf5Where where{path_, name};
  std::size_t length = 1;
  for (const std::string& s : strings) {
    require<Hdf5Error>(s.find('\0') == std::string::npos, "{}: a string of '{}' holds a NUL byte", path_, name);
    length = std::max(length, s.size());
  }
  std::vector<char> packed(strings.size() * length, '\0');
  for (std::size_t i = 0; i < strings.size(); ++i) std::memcpy(&packed[i * length], strings[i].data(), strings[i].size());

  const Hdf5Id type = string_type(length, where);
  const Hdf5Id space = make_space({static_cast<std::int64_t>(strings.size())}, where);
  create_parents(id_.get(), path_, name);
  const Hdf5Id dcpl = dataset_creation_list(where);
  const Hdf5Id id =
      own(H5Dcreate2(id_.get(), name.c_str(), type.get(), space.get(), H5P_DEFAULT, dcpl.get(), H5P_DEFAULT), "H5Dcreate2", where);
  if (strings.empty()) return;
  check(H5Dwrite(id.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, packed.data()), "H5Dwrite", where);
}

std::vector<std::string> Hdf5File::read_strings(const std::string& name) const {
  const detail::Hdf5Section section;
  const Hdf5Where where{path_, name};
  const Hdf5Dataset dataset = open_dataset(name);
  const Hdf5Id file_type = own(H5Dget_type(dataset.id_.get()), "H5Dget_type", where);
  const StringLayout layout = string_layout(file_type.get(), where);
  std::vector<std::string> strings(static_cast<std::size_t>(dataset.numel()));
  if (strings.empty()) return strings;
  if (!layout.is_variable) {
    std::vector<char> packed(strings.size() * layout.bytes);
    check(H5Dread(dataset.id_.get(), file_type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, packed.data()), "H5Dread", where);
    for (std::size_t i = 0; i < strings.size(); ++i) strings[i] = up_to_nul(&packed[i * layout.bytes], layout.bytes);
    return strings;
  }
  const Hdf5Id space = own(H5Dget_space(dataset.id_.get()), "H5Dget_space", where);
  std::vector<char*> pointers(strings.size(), nullptr);
  check(H5Dread(dataset.id_.get(), file_type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, pointers.data()), "H5Dread", where);
  for (std::size_t i = 0; i < strings.size(); ++i) strings[i] = pointers[i] != nullptr ? pointers[i] : "";
  check(H5Dvlen_reclaim(file_type.get(), space.get(), H5P_DEFAULT, pointers.data()), "H5Dvlen_reclaim", where);
  return strings;
}

Hdf5Id Hdf5File::create_attribute(const std::string& object, const std::string& name, std::int64_t type) const {
  const std::string full = object + "@" + name;
  const Hdf5Where where{path_, full};
  if (has_attribute(object, name)) {
    check(H5Adelete_by_name(id_.get(), object.c_str(), name.c_str(), H5P_DEFAULT), "H5Adelete_by_name", where);
  }
  const Hdf5Id space = make_space({}, where);
  return own(H5Acreate_by_name(id_.get(), object.c_str(), name.c_str(), type, space.get(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
             "H5Acreate_by_name", where);
}

Hdf5Id Hdf5File::open_attribute(const std::string& object, const std::string& name) const {
  const std::string full = object + "@" + name;
  const Hdf5Where where{path_, full};
  Hdf5Id id = own(H5Aopen_by_name(id_.get(), object.c_str(), name.c_str(), H5P_DEFAULT, H5P_DEFAULT), "H5Aopen_by_name", where);
  const Hdf5Id space = own(H5Aget_space(id.get()), "H5Aget_space", where);
  require<Hdf5Error>(H5Sget_simple_extent_npoints(space.get()) == 1, "{}: attribute '{}' was expected to hold one value", path_, full);
  return id;
}

void Hdf5File::set_attribute(const std::string& object, const std::string& name, std::string_view text) {
  const detail::Hdf5Section section;
  const std::string full = object + "@" + name;
  require<Hdf5Error>(text.find('\0') == std::string_view::npos, "{}: attribute '{}' would hold a NUL byte", path_, full);
  const Hdf5Id type = string_type(H5T_VARIABLE, {path_, full});  // h5py shows these as str
  const Hdf5Id id = create_attribute(object, name, type.get());
  const std::string terminated(text);
  const char* pointer = terminated.c_str();
  check(H5Awrite(id.get(), type.get(), &pointer), "H5Awrite", {path_, full});
}

void Hdf5File::set_attribute(const std::string& object, const std::string& name, std::int64_t value) {
  const detail::Hdf5Section section;
  const std::string full = object + "@" + name;
  const Hdf5Id id = create_attribute(object, name, H5T_STD_I64LE);
  check(H5Awrite(id.get(), H5T_NATIVE_INT64, &value), "H5Awrite", {path_, full});
}

bool Hdf5File::has_attribute(const std::string& object, const std::string& name) const {
  const detail::Hdf5Section section;
  const std::string full = object + "@" + name;
  return check(H5Aexists_by_name(id_.get(), object.c_str(), name.c_str(), H5P_DEFAULT), "H5Aexists_by_name", {path_, full}) > 0;
}

std::string Hdf5File::string_attribute(const std::string& object, const std::string& name) const {
  const detail::Hdf5Section section;
  const std::string full = object + "@" + name;
  const Hdf5Where where{path_, full};
  const Hdf5Id id = open_attribute(object, name);
  const Hdf5Id type = own(H5Aget_type(id.get()), "H5Aget_type", where);
  const StringLayout layout = string_layout(type.get(), where);
  if (!layout.is_variable) {
    std::vector<char> text(layout.bytes);
    check(H5Aread(id.get(), type.get(), text.data()), "H5Aread", where);
    return up_to_nul(text.data(), text.size());
  }
  char* pointer = nullptr;
  check(H5Aread(id.get(), type.get(), &pointer), "H5Aread", where);
  std::string text = pointer != nullptr ? pointer : "";
  H5free_memory(pointer);
  return text;
}

std::int64_t Hdf5File::int_attribute(const std::string& object, const std::string& name) const {
  const detail::Hdf5Section section;
  const std::string full = object + "@" + name;
  const Hdf5Where where{path_, full};
  const Hdf5Id id = open_attribute(object, name);
  const Hdf5Id type = own(H5Aget_type(id.get()), "H5Aget_type", where);
  require<Hdf5Error>(H5Tget_class(type.get()) == H5T_INTEGER, "{}: attribute '{}' was expected to hold an integer", path_, full);
  std::int64_t value = 0;
  check(H5Aread(id.get(), H5T_NATIVE_INT64, &value), "H5Aread", where);
  return value;
}

void Hdf5File::close() {
  if (!id_) return;
  const detail::Hdf5Section section;
  // HDF5 would delay the real close until the last object is closed, where its errors are lost.
  const auto num_open =
      check(H5Fget_obj_count(id_.get(), H5F_OBJ_LOCAL | H5F_OBJ_DATASET | H5F_OBJ_GROUP | H5F_OBJ_ATTR), "H5Fget_obj_count", {path_});
  require<Hdf5Error>(num_open == 0, "{}: close() while {} of its datasets are still open", path_, num_open);
  check(H5Fclose(id_.release()), "H5Fclose", {path_});
}

}  // namespace mica::io
