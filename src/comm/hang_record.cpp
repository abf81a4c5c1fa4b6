// SPDX-License-Identifier: Apache-2.0
#include "mica/comm/hang_record.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "mica/core/error.hpp"
#include "mica/io/json.hpp"

namespace mica {
namespace {

using detail::kRelaxed;
constexpr std::array<const char*, 5> kStates{"enqueued", "started", "done", "failed", "skipped"};
constexpr std::array<const char*, 4> kHealths{"alive", "stopped", "dead", "silent"};
constexpr std::array<const char*, 3> kPhases{"running", "closing", "ended"};
constexpr int kMostRanks = 1 << 24;

/// Another process may have died while it wrote the index.
template <class Names>
const char* name_in(const Names& names, std::uint8_t index) {
  return index < names.size() ? names[index] : "unknown";
}

template <class Enum, class Names>
Enum value_of(const io::JsonValue& value, const Names& names) {
  const auto found = std::ranges::find(names, value.text());
  if (found == names.end()) value.fail_expecting(names.front());
  return static_cast<Enum>(found - names.begin());
}

/// Seconds from `ns` to `now_ns`, rounded to milliseconds, at least 1 ms; 0 if `ns` is 0 (not yet).
double ago(std::int64_t ns, std::int64_t now_ns) {
  return ns == 0 ? 0 : std::max(0.001, std::round(static_cast<double>(now_ns - ns) * 1e-6) * 1e-3);
}

/// -1: none
int rank_in(std::string_view text) {
  int rank = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rank);
  return error == std::errc() && end == text.data() + text.size() && rank < kMostRanks ? rank : -1;
}

/// Calls range(first, last) for each part of "0-2,5". @returns whether the text is such a list, of at most kMostRanks ranks
template <class Range>
bool for_each_range(std::string_view text, const Range& range) {
  std::int64_t num_ranks = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    const std::string_view part = text.substr(at, end - at);
    const std::size_t dash = part.find('-');
    const int first = rank_in(part.substr(0, dash));
    const int last = dash == std::string_view::npos ? first : rank_in(part.substr(dash + 1));
    num_ranks += last - first + 1;
    if (first < 0 || last < first || num_ranks > kMostRanks) return false;
    range(first, last);
    at = end + 1;
  }
  return true;
}

std::string checked_ranges(const io::JsonValue& value) {
  std::string text = value.text();
  if (!for_each_range(text, [](int, int) {})) value.fail_expecting("ranks, as 0-2,5");
  return text;
}

HangRecord::Group group_of(const FlightLog& log, const FlightGroup& group, std::int64_t now_ns) {
  HangRecord::Group record{.name = group.name.get(),
                           .instance = group.instance.load(kRelaxed),
                           .members = to_ranges(log.members(group)),
                           .enqueued = group.enqueued.load(std::memory_order_acquire),
                           .entered = group.started.load(std::memory_order_acquire),
                           .ended = group.ended.load(std::memory_order_acquire)};
  if (group.starts_unseen.load(kRelaxed) != 0) record.entered = std::min(record.enqueued, record.ended + 1);
  if (record.is_waiting()) record.waits_s = ago(group.changed_ns.load(kRelaxed), now_ns);
  return record;
}

}  // namespace

std::string to_ranges(const std::vector<int>& ranks) {
  std::string text;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (!text.empty()) text += ',';
    text += last == i ? fmt::to_string(ranks[i]) : fmt::format("{}-{}", ranks[i], ranks[last]);
    i = last + 1;
  }
  return text;
}

std::vector<int> from_ranges(std::string_view text) {
  std::vector<int> ranks;
  const bool are_ranks = for_each_range(text, [&](int first, int last) {
    for (int rank = first; rank <= last; ++rank) ranks.push_back(rank);
  });
  invariant(are_ranks, "ranks are written as 0-2,5");
  return ranks;
}

HangRecord record_of(const FlightLog& log, std::int64_t now_ns) {
  const FlightHead& head = log.head();
  HangRecord record;
  record.rank = head.rank.load(kRelaxed);
  record.pid = head.pid.load(kRelaxed);
  record.phase = static_cast<RankPhase>(std::min<int>(head.phase.load(kRelaxed), static_cast<int>(RankPhase::ended)));
  record.sign_of_life_s = ago(head.heartbeat_ns.load(kRelaxed), now_ns);
  std::map<std::int32_t, std::size_t> places;  // from the group's index in the log to that in the record
  for (const FlightGroup& group : log.groups()) {
    if (group.use.load(std::memory_order_acquire) == 0 || group.enqueued.load(kRelaxed) == 0) continue;
    places[log.index_of(group)] = record.groups.size();
    record.groups.push_back(group_of(log, group, now_ns));
  }
  std::vector<std::pair<std::int64_t, HangRecord::Event>> by_ticket;
  for (const FlightEvent& e : log.events()) {
    const std::int64_t ticket = e.ticket.load(std::memory_order_acquire);
    const auto place = places.find(e.group.load(kRelaxed));
    if (ticket == 0 || place == places.end()) continue;
    const std::uint8_t kind = e.kind.load(kRelaxed);
    HangRecord::Event event{.group = place->second,
                            .sequence = e.sequence.load(kRelaxed),
                            .kind = kind < kNumCollectives ? collective_name(static_cast<Collective>(kind)) : "unknown",
                            .label = e.label.get(),
                            .bytes = e.bytes.load(kRelaxed),
                            .state = name_in(kStates, e.state.load(kRelaxed)),
                            .enqueued_s = ago(e.enqueued_ns.load(kRelaxed), now_ns),
                            .started_s = ago(e.started_ns.load(kRelaxed), now_ns),
                            .ended_s = ago(e.ended_ns.load(kRelaxed), now_ns)};
    std::atomic_thread_fence(std::memory_order_acquire);
    if (e.ticket.load(kRelaxed) == ticket) by_ticket.emplace_back(ticket, std::move(event));  // else it was overwritten while it was read
  }
  std::ranges::sort(by_ticket, {}, [](const auto& each) { return each.first; });
  for (auto& [ticket, event] : by_ticket) record.events.push_back(std::move(event));
  return record;
}

std::string to_json(const HangRecord& record) {
  using Json = nlohmann::ordered_json;
  Json json{{"format", 1},
            {"rank", record.rank},
            {"written_by", record.written_by},
            {"host", record.host},
            {"pid", record.pid},
            {"health", kHealths[static_cast<std::size_t>(record.health)]},
            {"phase", kPhases[static_cast<std::size_t>(record.phase)]},
            {"sign_of_life_s", record.sign_of_life_s},
            {"alarm", record.alarm},
            {"sightings", Json::array()},
            {"groups", Json::array()},
            {"events", Json::array()}};
  for (const HangRecord::Sighting& s : record.sightings) {
    json["sightings"].push_back({{"rank", s.rank}, {"health", kHealths[static_cast<std::size_t>(s.health)]}});
  }
  for (const HangRecord::Group& g : record.groups) {
    json["groups"].push_back({{"name", g.name},
                              {"instance", g.instance},
                              {"members", g.members},
                              {"enqueued", g.enqueued},
                              {"entered", g.entered},
                              {"ended", g.ended},
                              {"waits_s", g.waits_s}});
  }
  for (const HangRecord::Event& e : record.events) {
    json["events"].push_back({{"group", e.group},
                              {"sequence", e.sequence},
                              {"kind", e.kind},
                              {"label", e.label},
                              {"bytes", e.bytes},
                              {"state", e.state},
                              {"enqueued_s", e.enqueued_s},
                              {"started_s", e.started_s},
                              {"ended_s", e.ended_s}});
  }
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";  // a label may hold any bytes
}

HangRecord parse_hang_record(std::string_view text, const std::string& path) {
  const auto json = io::JsonValue::parse<ConfigError>(text, path);
  static_cast<void>(json["format"].integer(1, 1));
  HangRecord record;
  record.rank = static_cast<int>(json["rank"].integer(0, kMostRanks));
  record.written_by = static_cast<int>(json["written_by"].integer(0, kMostRanks));
  record.host = json["host"].text();
  record.pid = json["pid"].integer(0);
  record.health = value_of<RankHealth>(json["health"], kHealths);
  record.phase = value_of<RankPhase>(json["phase"], kPhases);
  record.sign_of_life_s = json["sign_of_life_s"].number();
  record.alarm = json["alarm"].text();
  json["sightings"].for_each([&](const io::JsonValue& s) {
    record.sightings.push_back({static_cast<int>(s["rank"].integer(0, kMostRanks)), value_of<RankHealth>(s["health"], kHealths)});
  });
  json["groups"].for_each([&](const io::JsonValue& g) {
    record.groups.push_back({.name = g["name"].text(),
                             .instance = static_cast<int>(g["instance"].integer(0, kMostRanks)),
                             .members = checked_ranges(g["members"]),
                             .enqueued = g["enqueued"].integer(0),
                             .entered = g["entered"].integer(0),
                             .ended = g["ended"].integer(0),
                             .waits_s = g["waits_s"].number()});
  });
  json["events"].for_each([&](const io::JsonValue& e) {
    record.events.push_back({.group = static_cast<std::size_t>(e["group"].integer(0, std::ssize(record.groups) - 1)),
                             .sequence = e["sequence"].integer(0),
                             .kind = e["kind"].text(),
                             .label = e["label"].text(),
                             .bytes = e["bytes"].integer(0),
                             .state = e["state"].text(),
                             .enqueued_s = e["enqueued_s"].number(),
                             .started_s = e["started_s"].number(),
                             .ended_s = e["ended_s"].number()});
  });
  return record;
}

}  // namespace mica
