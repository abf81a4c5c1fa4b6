// SPDX-License-Identifier: Apache-2.0
// Checks that every rank sees and can write the run folder.
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <thread>
#include <utility>

#include <unistd.h>

#include "mica/core/error.hpp"
#include "mica/core/open_folder.hpp"
#include "mica/launch/checks.hpp"

namespace mica::launch {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kPatience{3};

std::string what_is_there(const std::string& folder, int error) {
  std::error_code none;
  const std::string from =
      folder.starts_with('/') ? "" : fmt::format(" (working directory {})", std::filesystem::current_path(none).string());
  return (error != 0 ? errno_text(error) : "another folder of that name, without rank 0's files") + from;
}

/// Empty if nothing is wrong.
std::string wrong_with(const std::string& folder, const std::function<bool()>& sees_it) {
  const Clock::time_point deadline = Clock::now() + kPatience;
  int error = 0;
  while ((error = open_folder(folder)) != 0 || !sees_it()) {
    if (Clock::now() > deadline) return what_is_there(folder, error);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return ::access(folder.c_str(), W_OK | X_OK) == 0 ? "" : "it cannot be written: " + errno_text(errno);
}

}  // namespace

Check shared_folder(std::string folder, std::function<bool()> sees_it) {
  const auto judge = [folder](const std::vector<RankWords>& all) -> std::vector<Finding> {
    int num_others = -1;
    const RankWords* first = nullptr;
    for (const RankWords& each : all) {
      if (each.words.empty()) continue;
      ++num_others;
      if (first == nullptr) first = &each;
    }
    if (first == nullptr) return {};
    return {{Finding::Kind::error,
             fmt::format("run folder {} is not one folder for all ranks: on {}{} {}; choose a folder on a file system that all nodes "
                         "share with --run.dir=FOLDER",
                         folder, name_of(*first), num_others > 0 ? fmt::format(" and {} more:", num_others) : ":", first->words)}};
  };
  return {.name = "run folder",
          .look = [folder = std::move(folder), sees_it = std::move(sees_it)] { return wrong_with(folder, sees_it); },
          .judge = judge};
}

}  // namespace mica::launch
