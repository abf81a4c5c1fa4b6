// SPDX-License-Identifier: Apache-2.0
#include "mica/launch/launch_checks.hpp"

#include <algorithm>
#include <chrono>
#include <set>

#include <fmt/ranges.h>

#include "mica/core/error.hpp"
#include "mica/core/host.hpp"
#include "mica/core/word_text.hpp"

namespace mica::launch {
namespace {

using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point begin) { return std::chrono::duration<double, std::milli>(Clock::now() - begin).count(); }

/// A marker and the result of `look`, or its error.
constexpr char kDone = '+', kFailed = '-';

std::string words_of(const Check& check) {
  try {
    return kDone + check.look();
  } catch (const std::exception& error) {
    return kFailed + std::string(error.what());
  }
}

/// The findings of one check. A `look` that threw is an error.
std::vector<Finding> judge(const Check& check, std::vector<RankWords> all) {
  for (RankWords& rank : all) {
    if (rank.words[0] == kFailed) return {{Finding::Kind::error, name_of(rank) + ": " + rank.words.substr(1)}};
    rank.words.erase(0, 1);
  }
  return check.judge(all);
}

}  // namespace

std::string name_of(const RankWords& rank) { return fmt::format("rank {} ({})", rank.rank, rank.host); }

std::vector<std::vector<RankWords>> LaunchChecks::exchange(const std::vector<Check>& checks) {
  WordWriter mine;
  mine.put(host_name());
  mine.put(host_name() + "/" + boot_id());
  for (const Check& check : checks) {
    const Clock::time_point begin = Clock::now();
    mine.put(words_of(check));
    costs_.push_back(fmt::format("{} {:.1f} ms", check.name, ms_since(begin)));
  }
  const Clock::time_point begin = Clock::now();
  const std::vector<std::string> messages = world_.gather_strings(std::move(mine).text());
  costs_.push_back(fmt::format("exchange {:.1f} ms", ms_since(begin)));
  std::vector<std::vector<RankWords>> by_check(checks.size());
  std::set<std::string> nodes;
  for (std::size_t rank = 0; rank < messages.size(); ++rank) {
    WordReader theirs(messages[rank]);
    const std::string host = theirs.word(), node = theirs.word();
    nodes.insert(node);
    for (std::vector<RankWords>& of_check : by_check) of_check.push_back({static_cast<int>(rank), host, node, theirs.word()});
  }
  num_nodes_ = static_cast<int>(nodes.size());
  return by_check;
}

void LaunchChecks::run(const std::vector<Check>& checks) {
  const std::vector<std::vector<RankWords>> words = exchange(checks);
  std::vector<Finding> findings;
  std::vector<Check> doubtful;
  for (std::size_t i = 0; i < checks.size(); ++i) {
    const std::vector<Finding> found = judge(checks[i], words[i]);
    if (checks[i].asks_twice && !found.empty()) {
      doubtful.push_back(checks[i]);
    } else {
      findings.insert(findings.end(), found.begin(), found.end());
    }
  }
  if (!doubtful.empty()) {  // on all ranks, since all have judged the same words
    const std::vector<std::vector<RankWords>> again = exchange(doubtful);
    for (std::size_t i = 0; i < doubtful.size(); ++i) {
      const std::vector<Finding> found = judge(doubtful[i], again[i]);
      findings.insert(findings.end(), found.begin(), found.end());
    }
  }
  for (const Finding& each : findings) {
    if (each.kind == Finding::Kind::warning) warnings_.push_back(each.text);
  }
  const auto error = std::ranges::find(findings, Finding::Kind::error, &Finding::kind);
  if (error == findings.end()) return;
  ConfigError shared(error->text);
  shared.set_num_sharers(world_.num_ranks());
  throw shared;
}

void LaunchChecks::tell(const Logger& logger) {
  if (world_.rank() == 0) {
    logger.debug("launch   {}", fmt::join(costs_, ", "));
    for (const std::string& text : warnings_) logger.warn("{}", text);
  }
  costs_.clear();
  warnings_.clear();
}

}  // namespace mica::launch
