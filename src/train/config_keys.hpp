// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "mica/train/config.hpp"

namespace mica::train {

/// One key of the config: how to read, print and explain it.
struct ConfigKey {
  std::string name;  ///< "train.steps"
  std::string help;
  std::string expected;  ///< "a whole number from 1", "fp32, bf16 or fp16"
  /// @returns false when the text is not what is expected.
  std::function<bool(Config&, const std::string& text)> set;
  std::function<std::string(const Config&)> get;
  bool is_list =
      false;  ///< set and get quote the items one by one; other values are quoted as a whole by the code that reads and writes files
  std::string old_name = {};    ///< "model.hidden": still read; empty: it never had another name
  std::string since = "0.1.0";  ///< the first version of Mica that has the key, by either name
};

/// Every key, by section, in the order of --help.
[[nodiscard]] const std::vector<ConfigKey>& config_keys();

}  // namespace mica::train
