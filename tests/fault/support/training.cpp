// SPDX-License-Identifier: Apache-2.0
#include "fault/support/training.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>

#include <nlohmann/json.hpp>

#include "support/paths.hpp"

namespace mica::test {
namespace {
namespace fs = std::filesystem;
}

std::string program(const std::string& name) { return test::program_folder() + "/" + name; }

void write_tokens(const std::string& path, std::int64_t num_tokens) {
  std::vector<std::uint16_t> tokens(static_cast<std::size_t>(num_tokens));
  std::uint32_t state = 1;
  for (std::uint16_t& token : tokens) {
    state = state * 1664525u + 1013904223u;
    token = static_cast<std::uint16_t>(state >> 28);  // 16 different ones: something to learn
  }
  std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(tokens.data()), 2 * num_tokens);
}

void overwrite_token(const std::string& path, std::int64_t position, std::uint16_t id) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(2 * position);
  file.write(reinterpret_cast<const char*>(&id), 2);
}

void write_text(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<std::string> training(int num_ranks, const std::string& config, const std::vector<std::string>& flags) {
  std::vector<std::string> command{program("mica-train"), config};
  command.insert(command.end(), flags.begin(), flags.end());
  return under_mpirun(num_ranks, command);
}

std::map<std::string, std::string> contents_of(const std::string& folder) {
  std::map<std::string, std::string> contents;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
    contents[entry.path().string()] = entry.is_regular_file() ? read_text(entry.path().string()) : "";
  }
  return contents;
}

std::vector<std::string> checkpoints_of(const std::string& run_folder) {
  std::vector<std::string> names;
  std::error_code none;
  for (const fs::directory_entry& entry : fs::directory_iterator(run_folder + "/checkpoints", none)) {
    const std::string name = entry.path().filename().string();
    if (name.find(".tmp") == std::string::npos) names.push_back(name);
  }
  std::ranges::sort(names);
  return names;
}

void damage(const std::string& path) {
  std::string bytes = read_text(path);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 0x41);
  write_text(path, bytes);
}

std::vector<StepLine> step_lines(const std::string& run_folder) {
  std::vector<StepLine> found;
  std::ifstream file(run_folder + "/metrics.jsonl");
  for (std::string line; std::getline(file, line);) {
    const auto json = nlohmann::json::parse(line, nullptr, false);
    if (!json.is_object() || json["event"] != "step") continue;
    const auto& norm = json["grad_norm"];  // null: an optimizer in backward knows none
    found.push_back({json["step"], json["loss"], json["lr"], norm.is_null() ? 0.0 : norm.get<double>()});
  }
  return found;
}

std::int64_t first_progress_step(const std::string& output) {
  static const std::regex kStep("step +([0-9]+)/[0-9]+ +loss");
  std::smatch match;
  return std::regex_search(output, match, kStep) ? std::stoll(match[1]) : 0;
}

}  // namespace mica::test
