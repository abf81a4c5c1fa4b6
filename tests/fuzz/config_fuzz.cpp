// SPDX-License-Identifier: Apache-2.0
// A config file: any text is read or refused; what is read is written as text that reads back.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "mica/core/error.hpp"
#include "mica/train/config.hpp"
#include "mica/train/model_config.hpp"

namespace mica::train {

/// In place of the checks of values that need all of nn: this is about text.
void check_model(const Config& /*config*/) {}

}  // namespace mica::train

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    const auto config = mica::train::parse_config({"x.cfg", text}, {});
    const std::string written = mica::train::to_ini(config);
    mica::invariant(mica::train::to_ini(mica::train::parse_config({"y.cfg", written}, {})) == written, "a written config reads back");
    mica::train::check_config(config);
  } catch (const mica::ConfigError&) {
  }
  return 0;
}
