// SPDX-License-Identifier: Apache-2.0
#include "mica/comm/hang_folder.hpp"

#include <algorithm>
#include <filesystem>
#include <string_view>

#include <nlohmann/json.hpp>

#include "mica/core/error.hpp"
#include "mica/io/atomic_file.hpp"
#include "mica/io/json.hpp"

namespace mica {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kRecord = "rank-", kUnsaved = "unsaved-", kReport = "report.txt", kHosts = "hosts.json";

/// The ranks that names "PREFIX00003..." of the folder's files tell. The folder is read anew each time: NFS then asks the server.
std::set<int> ranks_in_names(const std::string& folder, std::string_view prefix) {
  std::set<int> ranks;
  std::error_code error;
  for (fs::directory_iterator it(folder, error); !error && it != fs::directory_iterator(); it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name.starts_with(prefix) && !name.ends_with(".tmp")) ranks.insert(std::atoi(name.c_str() + prefix.size()));
  }
  return ranks;
}

bool is_there(const std::string& path) {
  std::error_code none;
  return fs::exists(path, none);
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

bool HangFolder::exists() const { return is_there(path_); }

void HangFolder::write(const HangRecord& record) const {
  io::make_folder(path_);
  io::write_file_atomically(fmt::format("{}/{}{:05}.json", path_, kRecord, record.rank), to_json(record));
}

void HangFolder::write_hosts(const std::vector<std::string>& hosts) const {
  io::make_folder(path_);
  io::write_file_atomically(fmt::format("{}/{}", path_, kHosts), nlohmann::ordered_json{{"hosts", hosts}}.dump() + "\n");
}

void HangFolder::write_report(const std::string& text) const { io::write_file_atomically(fmt::format("{}/{}", path_, kReport), text); }

bool HangFolder::has_report() const { return is_there(fmt::format("{}/{}", path_, kReport)); }

void HangFolder::write_unsaved(int rank) const { io::write_file_atomically(fmt::format("{}/{}{:05}", path_, kUnsaved, rank), ""); }

int HangFolder::num_unsaved() const { return static_cast<int>(ranks_in_names(path_, kUnsaved).size()); }

std::set<int> HangFolder::ranks() const { return ranks_in_names(path_, kRecord); }

HangScene HangFolder::read() const {
  HangScene scene;
  const std::string hosts = fmt::format("{}/{}", path_, kHosts);
  if (is_there(hosts)) {
    const auto json = io::JsonValue::parse<ConfigError>(io::read_file(hosts), hosts);
    json["hosts"].for_each([&](const io::JsonValue& host) { scene.hosts.push_back(host.text()); });
  }
  for (const int rank : ranks()) {
    const std::string path = fmt::format("{}/{}{:05}.json", path_, kRecord, rank);
    try {
      scene.records.push_back(parse_hang_record(io::read_file(path), path));
    } catch (const Error&) {  // a rank that left a bad record counts as one that left none
    }
  }
  return scene;
}

}  // namespace mica
