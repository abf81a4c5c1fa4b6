// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace mica::report {

/// The files of page/, as they were built in.
struct PageFiles {
  std::string_view html, css, js, uplot_js, uplot_css, uplot_license;
};
extern const PageFiles kPageFiles;

/// The page with its style, its programs and these data: one file that needs no other.
[[nodiscard]] std::string page_with(const std::string& json);

}  // namespace mica::report
