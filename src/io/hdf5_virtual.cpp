// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include "hdf5_call.hpp"
#include "hdf5_create.hpp"

namespace mica::io {
namespace {

using detail::check;
using detail::Hdf5Where;
using detail::own;
using detail::to_hsize;

/// The source's elements selected in a space of the virtual dataset's extents.
Hdf5Id select_boxes(const std::vector<std::int64_t>& dims, const Hdf5VirtualSource& source, const Hdf5Where& where) {
  Hdf5Id space = detail::make_space(dims, where);
  H5S_seloper_t how = H5S_SELECT_SET;
  for (const Hdf5Box& box : source.boxes) {
    const std::vector<hsize_t> start = to_hsize(box.start);
    const std::vector<hsize_t> count = to_hsize(box.count);
    check(H5Sselect_hyperslab(space.get(), how, start.data(), nullptr, count.data(), nullptr), "H5Sselect_hyperslab", where);
    how = H5S_SELECT_OR;
  }
  return space;
}

/// Missing elements read as this value, which training never produces.
void set_missing_value(hid_t dcpl, FileType type, const Hdf5Where& where) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::int64_t furthest = std::numeric_limits<std::int64_t>::min();
  if (type == FileType::i32) furthest = std::numeric_limits<std::int32_t>::min();
  if (type == FileType::u32) furthest = std::numeric_limits<std::uint32_t>::max();
  if (type == FileType::u16) furthest = std::numeric_limits<std::uint16_t>::max();
  if (type == FileType::u8) furthest = std::numeric_limits<std::uint8_t>::max();
  const bool is_float = type == FileType::f32 || type == FileType::bf16 || type == FileType::f16 || type == FileType::f64;
  if (is_float) {
    check(H5Pset_fill_value(dcpl, H5T_NATIVE_FLOAT, &nan), "H5Pset_fill_value", where);
  } else {
    check(H5Pset_fill_value(dcpl, H5T_NATIVE_INT64, &furthest), "H5Pset_fill_value", where);
  }
}

}  // namespace

void Hdf5File::create_virtual_dataset(const std::string& name, FileType type, const std::vector<std::int64_t>& dims,
                                      const std::vector<Hdf5VirtualSource>& sources) {
  const detail::Hdf5Section section;
  const Hdf5Where where{path_, name};
  const Hdf5Id space = detail::make_space(dims, where);
  const Hdf5Id dcpl = detail::creation_list(H5P_DATASET_CREATE, where);
  set_missing_value(dcpl.get(), type, where);
  for (const Hdf5VirtualSource& source : sources) {
    const Hdf5Id virtual_space = select_boxes(dims, source, where);
    const hssize_t numel = check(H5Sget_select_npoints(virtual_space.get()), "H5Sget_select_npoints", where);
    const Hdf5Id source_space = detail::make_space({source.dataset_numel}, where);
    const auto begin = static_cast<hsize_t>(source.begin);
    const auto count = static_cast<hsize_t>(numel);
    check(H5Sselect_hyperslab(source_space.get(), H5S_SELECT_SET, &begin, nullptr, &count, nullptr), "H5Sselect_hyperslab", where);
    check(H5Pset_virtual(dcpl.get(), virtual_space.get(), source.file.c_str(), source.dataset.c_str(), source_space.get()),
          "H5Pset_virtual", where);
  }
  detail::create_parents(id_.get(), path_, name);
  const Hdf5Id element = detail::make_type(type, where);
  (void)own(H5Dcreate2(id_.get(), name.c_str(), element.get(), space.get(), H5P_DEFAULT, dcpl.get(), H5P_DEFAULT), "H5Dcreate2", where);
}

}  // namespace mica::io
