// SPDX-License-Identifier: Apache-2.0
#pragma once

// Private to io: property lists, groups and dataspaces for new objects of a file.

#include <cstdint>
#include <string>
#include <vector>

#include "hdf5_call.hpp"

namespace mica::io::detail {

/// A property list without creation times: the same content gives the same bytes.
[[nodiscard]] Hdf5Id creation_list(hid_t list_class, const Hdf5Where& where);
/// Creates the parent groups of `name`.
void create_parents(hid_t file, const std::string& path, const std::string& name);
/// @param dims  empty: a scalar.
[[nodiscard]] Hdf5Id make_space(const std::vector<std::int64_t>& dims, const Hdf5Where& where);

}  // namespace mica::io::detail
