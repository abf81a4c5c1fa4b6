// SPDX-License-Identifier: Apache-2.0
#include "command_line.hpp"

#include <charconv>
#include <sstream>

#include <fmt/ranges.h>

namespace mica::train::bench {

void read_flags(const App& app, const Arguments& arguments, const po::options_description& flags) {
  namespace style = po::command_line_style;
  app.comm.agree([&] {
    try {
      // No abbreviated flags: they are more likely typing mistakes.
      const po::parsed_options parsed =
          po::command_line_parser(arguments).options(flags).style(style::unix_style & ~style::allow_guessing).run();
      for (const po::option& option : parsed.options) {
        require<ConfigError>(option.position_key < 0, "unexpected argument '{}', expected --flags only; see mica-bench NAME --help",
                             fmt::join(option.value, " "));
      }
      po::variables_map values;
      po::store(parsed, values);
      po::notify(values);
    } catch (const po::error& error) {
      throw ConfigError(std::string(error.what()) + "; see mica-bench NAME --help");
    }
  });
}

std::string help_text(const char* introduction, const po::options_description& flags) {
  std::ostringstream text;
  text << introduction << '\n' << flags;
  return text.str();
}

std::vector<std::int64_t> parse_numbers(const std::string& flag, const std::string& text) {
  std::vector<std::int64_t> numbers;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    std::int64_t number = 0;
    const auto [rest, error] = std::from_chars(part.data(), part.data() + part.size(), number);
    require<ConfigError>(error == std::errc{} && rest == part.data() + part.size() && number >= 1,
                         "--{}: '{}' is not a whole number from "
                         "1",
                         flag, part);
    numbers.push_back(number);
  }
  require<ConfigError>(!numbers.empty(), "--{} is empty, expected whole numbers separated by commas", flag);
  return numbers;
}

}  // namespace mica::train::bench
