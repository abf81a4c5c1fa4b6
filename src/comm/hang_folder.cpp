// SPDX-License-Identifier: Apache-2.0
#include "mica/comm/hang_folder.hpp"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <string_view>

#include <nlohmann/json.hpp>

#include "mica/core/error.hpp"
#include "mica/core/open_folder.hpp"
#include "mica/io/atomic_file.hpp"
#include "mica/io/json.hpp"

namespace mica {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kRecord = "rank-", kReport = "report.txt", kHosts = "hosts.json", kSummary = "summary.json";

std::string_view unsaved_prefix(int attempt) { return attempt == 1 ? "unsaved-" : "given-up-"; }

/// None if the folder cannot be listed: whoever waits for files there looks again.
std::vector<std::string> names_in(const std::string& folder, std::string_view prefix) {
  return names_with(folder, prefix).value_or(std::vector<std::string>());
}

/// The ranks in file names "PREFIX00003..." of the folder.
std::set<int> ranks_in_names(const std::string& folder, std::string_view prefix) {
  std::set<int> ranks;
  for (const std::string& name : names_in(folder, prefix)) ranks.insert(std::atoi(name.c_str() + prefix.size()));
  return ranks;
}

/// nullopt if it cannot be read: a broken record counts as none.
std::optional<HangRecord> read_record(const std::string& folder, int rank) {
  const std::string path = fmt::format("{}/{}{:05}.json", folder, kRecord, rank);
  try {
    return parse_hang_record(io::read_file(path), path);
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

HangFolder HangFolder::of_launch(const std::string& run_folder, const std::string& launch) {
  return HangFolder(run_folder + "/hang/" + launch);
}

HangFolder HangFolder::newest(const std::string& run_folder) {
  std::string newest;
  std::error_code error;
  for (fs::directory_iterator it(run_folder + "/hang", error); !error && it != fs::directory_iterator(); it.increment(error)) {
    newest = std::max(newest, it->path().filename().string());  // names begin with the time
  }
  require<ConfigError>(!newest.empty(), "{} holds no records of a hang: there is no folder {}/hang; is it a run's folder?", run_folder,
                       run_folder);
  return of_launch(run_folder, newest);
}

bool HangFolder::exists() const {
  const std::string hang = io::parent_directory(path_);
  (void)open_folder(io::parent_directory(hang));  // "hang" may be new in it
  return is_there(path_);
}

void HangFolder::write(const HangRecord& record) const {
  io::make_folder(path_);
  io::write_file_atomically(fmt::format("{}/{}{:05}.json", path_, kRecord, record.rank), to_json(record));
}

void HangFolder::write_hosts(const std::vector<std::string>& hosts) const {
  io::make_folder(path_);
  io::write_file_atomically(fmt::format("{}/{}", path_, kHosts), nlohmann::ordered_json{{"hosts", hosts}}.dump() + "\n");
}

void HangFolder::write_summary(const HangSummary& summary) const {
  nlohmann::ordered_json lost = nlohmann::ordered_json::array();
  for (const auto& [rank, health] : summary.lost) lost.push_back({{"rank", rank}, {"is_silent", health == RankHealth::silent}});
  io::write_file_atomically(fmt::format("{}/{}", path_, kSummary),
                            nlohmann::ordered_json{{"lost", lost}, {"alive", summary.num_alive}}.dump() + "\n");
}

std::optional<HangSummary> HangFolder::read_summary() const {
  const std::string path = fmt::format("{}/{}", path_, kSummary);
  if (!is_there(path)) return std::nullopt;
  try {
    const auto json = io::JsonValue::parse<ConfigError>(io::read_file(path), path);
    HangSummary summary{.num_alive = static_cast<int>(json["alive"].integer(0, std::numeric_limits<int>::max()))};
    json["lost"].for_each([&](const io::JsonValue& lost) {
      summary.lost[static_cast<int>(lost["rank"].integer(0, std::numeric_limits<int>::max()))] =
          lost["is_silent"].boolean() ? RankHealth::silent : RankHealth::dead;
    });
    return summary;
  } catch (const Error&) {
    return std::nullopt;
  }
}

void HangFolder::write_report(const std::string& text) const { io::write_file_atomically(fmt::format("{}/{}", path_, kReport), text); }

bool HangFolder::has_report() const { return is_there(fmt::format("{}/{}", path_, kReport)); }

void HangFolder::write_unsaved(int rank, int attempt) const {
  io::write_file_atomically(fmt::format("{}/{}{:05}", path_, unsaved_prefix(attempt), rank), "");
}

int HangFolder::num_unsaved(int attempt) const { return static_cast<int>(names_in(path_, unsaved_prefix(attempt)).size()); }

std::set<int> HangFolder::ranks() const { return ranks_in_names(path_, kRecord); }

std::optional<int> HangFolder::lowest_writer() const {
  for (const int rank : ranks()) {
    const std::optional<HangRecord> record = read_record(path_, rank);
    if (record && record->written_by == rank) return rank;
  }
  return std::nullopt;
}

HangScene HangFolder::read() const {
  HangScene scene;
  const std::string hosts = fmt::format("{}/{}", path_, kHosts);
  try {
    if (is_there(hosts)) {
      const auto json = io::JsonValue::parse<ConfigError>(io::read_file(hosts), hosts);
      json["hosts"].for_each([&](const io::JsonValue& host) { scene.hosts.push_back(host.text()); });
    }
  } catch (const Error&) {  // the records also name their hosts
    scene.hosts.clear();
  }
  for (const int rank : ranks()) {
    if (std::optional<HangRecord> record = read_record(path_, rank)) scene.records.push_back(std::move(*record));
  }
  return scene;
}

}  // namespace mica
