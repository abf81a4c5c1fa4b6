// SPDX-License-Identifier: Apache-2.0
// docs/config.md holds the table of keys as the code has it, and the other names are those of keys.
#include <algorithm>
#include <cstdlib>
#include <fstream>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../../../src/train/config_keys.hpp"
#include "../../../src/train/config_other_names.hpp"
#include "support/document.hpp"

namespace mica::train {
namespace {

using ::testing::HasSubstr;

constexpr const char* kBegin = "<!-- keys: begin (written by unit_train, ConfigDoc) -->";
constexpr const char* kEnd = "<!-- keys: end -->";
constexpr const char* kHowToWrite = "write it anew with: MICA_WRITE_DOCS=1 build/release/tests/unit_train --gtest_filter='ConfigDoc.*'";

/// Text in a cell of a table: what Markdown would take for its own is escaped.
std::string cell(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '|' || c == '*') escaped += '\\';
    escaped += c == '<' ? "&lt;" : std::string(1, c);
  }
  return escaped;
}

std::vector<std::string> rendered_keys() {
  static const Config defaults;
  std::vector<std::string> lines;
  std::string section;
  for (const ConfigKey& key : config_keys()) {
    const std::string of = key.name.substr(0, key.name.find('.'));
    if (of != section) {
      section = of;
      lines.insert(lines.end(), {"", fmt::format("## [{}]", section), "",
                                 "| key | default | values | meaning | PyTorch | Hugging Face | since |", "|---|---|---|---|---|---|---|"});
    }
    const auto found = std::ranges::find(other_names(), key.name, &OtherNames::key);
    const OtherNames other = found == other_names().end() ? OtherNames{} : *found;
    const std::string value = key.get(defaults);
    const std::string old_name = key.old_name.empty() ? "" : fmt::format("; formerly {}, which is still read", key.old_name);
    lines.push_back(fmt::format("| `{}` | {} | {} | {} | {} | {} | {} |", key.name, value.empty() ? "(empty)" : fmt::format("`{}`", value),
                                cell(key.expected), cell(key.help + old_name), cell(without_marks(other.pytorch)),
                                cell(without_marks(other.hugging_face)), key.since));
  }
  lines.push_back("");
  return lines;
}

struct Document {
  std::vector<std::string> before, keys, after;  ///< kBegin ends the first, kEnd begins the last
};

Document read_document() {
  const std::vector<std::string> lines = test::document_lines("config.md");
  const auto begin = std::ranges::find(lines, kBegin);
  const auto end = std::ranges::find(lines, kEnd);
  if (begin == lines.end() || end == lines.end() || end < begin) {
    ADD_FAILURE() << "docs/config.md lacks the lines " << kBegin << " and " << kEnd;
    return {};
  }
  return {{lines.begin(), begin + 1}, {begin + 1, end}, {end, lines.end()}};
}

void write_document(const Document& document) {
  std::ofstream file(test::source_folder() + "/docs/config.md");
  for (const auto& part : {document.before, document.keys, document.after}) {
    for (const std::string& line : part) file << line << '\n';
  }
}

TEST(ConfigDoc, TheDocumentHasTheKeysOfTheCode) {
  Document document = read_document();
  ASSERT_FALSE(document.after.empty());
  const std::vector<std::string> keys = rendered_keys();
  if (std::getenv("MICA_WRITE_DOCS") != nullptr) {
    document.keys = keys;
    write_document(document);
  }
  const std::size_t common = std::min(keys.size(), document.keys.size());
  for (std::size_t i = 0; i < common; ++i) {
    EXPECT_EQ(document.keys[i], keys[i]) << "docs/config.md:" << document.before.size() + i + 1 << ": " << kHowToWrite;
  }
  EXPECT_EQ(document.keys.size(), keys.size()) << "rows; " << kHowToWrite;
}

TEST(ConfigDoc, OtherNamesAreOfKeysInTheirOrder) {
  auto next = config_keys().begin();
  std::string_view last;
  for (const OtherNames& other : other_names()) {
    if (other.key.empty()) continue;
    const auto found = std::find_if(next, config_keys().end(), [&](const ConfigKey& key) { return key.name == other.key; });
    ASSERT_NE(found, config_keys().end()) << other.key << " is no key, or stands in another order than the table of keys";
    EXPECT_TRUE(other.key != last || (other.pytorch.empty() && other.hugging_face.empty())) << other.key << ": names in its second row";
    next = found;
    last = other.key;
  }
}

TEST(ConfigDoc, HelpTellsTheOtherNames) {
  const std::string help = config_help();
  EXPECT_THAT(help, HasSubstr("      PyTorch: lr; Hugging Face: learning_rate\n"));
  EXPECT_THAT(help, HasSubstr("      Hugging Face: max_steps\n"));
  EXPECT_THAT(help, HasSubstr("      PyTorch: SGD(momentum)\n"));
}

}  // namespace
}  // namespace mica::train
