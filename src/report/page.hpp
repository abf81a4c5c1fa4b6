// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace mica::report {

/// The files of page/, built into the program.
struct PageFiles {
  std::string_view html, css, js, uplot_js, uplot_css, uplot_license;
};
extern const PageFiles kPageFiles;

/// The page with its styles, scripts and this data, as one self-contained file.
[[nodiscard]] std::string page_with(const std::string& json);

}  // namespace mica::report
