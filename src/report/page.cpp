// SPDX-License-Identifier: Apache-2.0
#include "page.hpp"

#include <array>
#include <utility>

#include "mica/core/error.hpp"

namespace mica::report {
namespace {

/// JSON may hold any text, but a `</script>` in it would end the element. So each < is escaped.
std::string inside_script(const std::string& json) {
  std::string out;
  out.reserve(json.size());
  for (std::size_t i = 0; i < json.size(); ++i) {
    if (json[i] == '<') {
      out += "\\u003c";
    } else {
      out += json[i];
    }
  }
  return out;
}

}  // namespace

std::string page_with(const std::string& json) {
  const std::string data = inside_script(json);
  const std::array<std::pair<std::string_view, std::string_view>, 6> parts{{{"uplot_css", kPageFiles.uplot_css},
                                                                            {"css", kPageFiles.css},
                                                                            {"uplot_license", kPageFiles.uplot_license},
                                                                            {"data", data},
                                                                            {"uplot_js", kPageFiles.uplot_js},
                                                                            {"js", kPageFiles.js}}};
  std::string page;
  std::string_view rest = kPageFiles.html;
  while (true) {
    const std::size_t begin = rest.find("{{");
    page += rest.substr(0, begin);
    if (begin == std::string_view::npos) return page;
    const std::size_t end = rest.find("}}", begin);
    const std::string_view name = rest.substr(begin + 2, end - begin - 2);
    bool is_known = false;
    for (const auto& [part, text] : parts) {
      if (part != name) continue;
      page += text;
      is_known = true;
    }
    invariant(is_known, "each part of the page is there");
    rest.remove_prefix(end + 2);
  }
}

}  // namespace mica::report
