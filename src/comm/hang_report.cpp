// SPDX-License-Identifier: Apache-2.0
#include "mica/comm/hang_report.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace mica {
namespace {

using CallGroup = HangRecord::Group;
using CallEvent = HangRecord::Event;

constexpr std::size_t kMostCauses = 8, kMostPlaces = 10;

/// Identifies a group in the records of all its members.
using GroupKey = std::tuple<std::string, int, std::string>;  // name, instance, members
struct GroupMember {
  const HangRecord* record;
  std::size_t group;  ///< in the record
  [[nodiscard]] const CallGroup& position() const { return record->groups[group]; }
};
using GroupsByKey = std::map<GroupKey, std::map<int, GroupMember>>;  // members by world rank

/// One collective, as a member enqueued it.
struct Content {
  std::string kind, label;
  std::int64_t bytes = 0;
  auto operator<=>(const Content&) const = default;
};

std::string collective_text(const std::string& kind, std::int64_t sequence, const std::string& label, bool is_of_host) {
  std::string name = kind;
  std::ranges::replace(name, '_', '-');
  return fmt::format("{} #{}{}", name, sequence, is_of_host ? " outside the steps" : label.empty() ? "" : " of " + label);
}

class Analysis {
 public:
  explicit Analysis(const HangScene& scene) : hosts_(scene.hosts), is_of_one_node_(scene.is_of_one_node) {
    for (const HangRecord& record : scene.records) {
      const HangRecord*& known = by_rank_[record.rank];
      if (known == nullptr || record.written_by == record.rank) known = &record;
      for (const HangRecord::Sighting& s : record.sightings) {
        RankHealth& health = seen_.try_emplace(s.rank, s.health).first->second;
        if (s.health != RankHealth::silent) health = s.health;  // ranks of its own node know more than "silent"
        if (s.health == RankHealth::silent) missed_.emplace(record.rank, s.rank);
      }
    }
    for (const auto& [rank, record] : by_rank_) {
      if (record->written_by != rank && record->health != RankHealth::alive) seen_[rank] = record->health;
      if (record->written_by == rank) seen_.erase(rank);  // it is alive, whatever others saw
      for (std::size_t g = 0; g < record->groups.size(); ++g) {
        const CallGroup& group = record->groups[g];
        groups_[{group.name, group.instance, group.members}][rank] = {record, g};
      }
    }
  }

  std::vector<std::string> causes() {
    add_cut_hosts();
    add_lost_hosts(/*were_missed=*/true);
    add_lost_ranks();
    for (const auto& [key, members] : groups_) add_mismatch(members);
    add_missing(/*are_waiting=*/false);
    add_lost_hosts(/*were_missed=*/false);
    if (causes_.empty()) add_missing(/*are_waiting=*/true);
    if (causes_.empty()) add_stuck();
    if (causes_.empty()) add_unknown_ranks();
    return causes_;
  }

  /// Ranks by what they are doing.
  [[nodiscard]] std::map<std::string, std::vector<int>> places() const {
    std::map<std::string, std::vector<int>> places;
    for (const auto& [rank, record] : by_rank_) places[place_of(*record)].push_back(rank);
    std::vector<int> unknown;
    for (int rank = 0; rank < std::ssize(hosts_); ++rank) {
      if (!by_rank_.contains(rank)) unknown.push_back(rank);
    }
    if (!unknown.empty()) places["left no record"] = unknown;
    return places;
  }

  /// "rank 3 (node2)", "ranks 0-2 (node1)", "ranks 0-5".
  [[nodiscard]] std::string names(const std::vector<int>& ranks) const {
    std::set<std::string> hosts;
    for (const int rank : ranks) hosts.insert(host_of(rank));
    const std::string where = hosts.size() == 1 && !hosts.begin()->empty() ? fmt::format(" ({})", *hosts.begin()) : "";
    return with_word(to_ranges(ranks)) + where;
  }

 private:
  [[nodiscard]] std::string host_of(int rank) const {
    if (rank >= 0 && rank < std::ssize(hosts_)) return hosts_[static_cast<std::size_t>(rank)];
    const auto found = by_rank_.find(rank);
    return found == by_rank_.end() ? "" : found->second->host;
  }

  /// "all-gather #811 of block.6": the member's collective of that number.
  static std::string text_of(const GroupMember& member, std::int64_t sequence) {
    const CallGroup& group = member.position();
    const std::optional<Content> content = content_of(member, sequence);
    return collective_text(content ? content->kind : "collective", sequence, content ? content->label : "", group.is_of_host());
  }

  static std::optional<Content> content_of(const GroupMember& member, std::int64_t sequence) {
    for (const CallEvent& e : member.record->events) {
      if (e.group == member.group && e.sequence == sequence) return Content{e.kind, e.label, e.bytes};
    }
    return std::nullopt;
  }

  /// The rank's last collective: "its last was all-gather #811 of block.6, done 31 s before".
  static std::string last_of(const HangRecord& record) {
    const CallEvent* last = nullptr;
    for (const CallEvent& e : record.events) {
      if (e.started_s > 0 && (last == nullptr || e.started_s <= last->started_s)) last = &e;
    }
    if (last == nullptr) return "it has entered none yet";
    const std::string text = collective_text(last->kind, last->sequence, last->label, record.groups[last->group].is_of_host());
    if (last->state == "started") return fmt::format("it entered {} {:.0f} s before", text, last->started_s);
    return fmt::format("its last was {}, {} {:.0f} s before", text, last->state, last->ended_s);
  }

  static const CallGroup* waiting_group(const HangRecord& record) {
    const CallGroup* longest = nullptr;
    for (const CallGroup& group : record.groups) {
      if (group.is_waiting() && (longest == nullptr || group.waits_s > longest->waits_s)) longest = &group;
    }
    return longest;
  }

  [[nodiscard]] std::string place_of(const HangRecord& record) const {
    const auto seen = seen_.find(record.rank);
    const RankHealth health = seen == seen_.end() ? RankHealth::alive : seen->second;
    const std::string state = health == RankHealth::dead      ? "dead; "
                              : health == RankHealth::stopped ? "stopped; "
                              : health == RankHealth::silent  ? "silent; "
                                                              : "";
    if (const CallGroup* group = waiting_group(record)) {
      const GroupMember member{&record, static_cast<std::size_t>(group - record.groups.data())};
      const std::optional<Content> content = content_of(member, group->entered);
      const std::string where =
          group->is_of_host() ? "" : fmt::format(", group '{}'{}", group->name, content ? fmt::format(", {} bytes", content->bytes) : "");
      return fmt::format("{}{} in {}{}", state, health == RankHealth::alive ? "waiting" : "was", text_of(member, group->entered), where);
    }
    if (record.phase == RankPhase::closing) return state + "at the end of its program";
    return state + "in no collective; " + last_of(record);
  }

  [[nodiscard]] std::map<std::string, std::vector<int>> ranks_by_host() const {
    std::map<std::string, std::vector<int>> by_host;
    for (int rank = 0; rank < std::ssize(hosts_); ++rank) by_host[host_of(rank)].push_back(rank);
    for (const auto& [rank, record] : by_rank_) {
      if (rank >= std::ssize(hosts_)) by_host[record->host].push_back(rank);
    }
    return by_host;
  }

  /// Hosts that have heard nothing of each other, though ranks of both have left records.
  void add_cut_hosts() {
    const std::map<std::string, std::vector<int>> by_host = ranks_by_host();
    std::map<std::string, std::set<std::string>> cut_off;  // by host, from where
    for (const auto& [by, rank] : missed_) {
      if (missed_.contains({rank, by})) cut_off[host_of(by)].insert(host_of(rank));
    }
    for (const auto& [host, others] : cut_off) {
      // The end whose link it is, if that can be told: the other ends still reach somebody. Of two hosts, the first.
      const bool is_to_blame = std::ranges::all_of(others, [&](const std::string& other) {
        const std::size_t num = cut_off.at(other).size();
        return num < others.size() || (num == 1 && host < other);
      });
      if (!is_to_blame) continue;
      causes_.push_back(fmt::format("host {} ({}) is cut off from {}, though its ranks are running: check its network link", host,
                                    with_word(to_ranges(by_host.at(host))), fmt::join(others, ", ")));
    }
  }

  /// Hosts whose ranks have all left no record. @param were_missed  by another rank; if not, they may be only slow, and what records show
  /// comes first
  void add_lost_hosts(bool were_missed) {
    const std::map<std::string, std::vector<int>> by_host = ranks_by_host();
    // After a death there is little time for records.
    const bool had_time = !is_of_one_node_ && std::ranges::none_of(seen_, [](const auto& rank) { return rank.second == RankHealth::dead; });
    for (const auto& [host, ranks] : by_host) {
      const bool left_nothing = std::ranges::none_of(ranks, [&](int rank) { return by_rank_.contains(rank); });
      const bool was_missed = std::ranges::any_of(ranks, [&](int rank) { return seen_.contains(rank); });
      if (!left_nothing || by_host.size() == 1 || was_missed != were_missed || !(was_missed || had_time)) continue;
      causes_.push_back(fmt::format("host {} ({}) {}", host, with_word(to_ranges(ranks)),
                                    was_missed ? "does not answer: it is down, or cut off from the others"
                                               : "has left no record so far: it is down, cut off, or does not see the run's folder"));
      explained_.insert(ranks.begin(), ranks.end());
    }
  }

  static std::string with_word(const std::string& ranges) {
    return fmt::format("rank{} {}", ranges.find_first_of("-,") == std::string::npos ? "" : "s", ranges);
  }

  void add_lost_ranks() {
    for (const auto& [rank, health] : seen_) {
      if (health == RankHealth::alive || explained_.contains(rank)) continue;
      const auto found = by_rank_.find(rank);
      const std::string process = found == by_rank_.end() ? "its process" : fmt::format("its process {}", found->second->pid);
      const std::string last = found == by_rank_.end() ? "" : "; " + last_of(*found->second);
      const std::string what = health == RankHealth::dead      ? fmt::format("is dead: {} is gone", process)
                               : health == RankHealth::stopped ? fmt::format("is stopped: {} is held by SIGSTOP or a debugger", process)
                                                               : "gives no sign of life";
      causes_.push_back(fmt::format("{} {}{}{}", names({rank}), what, waiters_for(rank), last));
      explained_.insert(rank);
    }
  }

  /// "; it has not entered all-gather #812 of block.7, for which ranks 0-2 have waited for 31 s"
  [[nodiscard]] std::string waiters_for(int rank) const {
    for (const auto& [key, members] : groups_) {
      const auto own = members.find(rank);
      const std::optional<Waited> waited = waited_for(members);
      if (own == members.end() || !waited || own->second.position().entered >= waited->sequence) continue;
      return fmt::format("; it has not entered {}, for which {} {} waited for {:.0f} s", waited->text, names(waited->by),
                         waited->by.size() == 1 ? "has" : "have", waited->seconds);
    }
    return "";
  }

  /// The first collective of a group in which a rank waits.
  struct Waited {
    std::int64_t sequence = 0;
    std::string text;
    std::vector<int> by;
    double seconds = 0;  ///< the longest
  };
  [[nodiscard]] std::optional<Waited> waited_for(const std::map<int, GroupMember>& members) const {
    std::optional<Waited> waited;
    for (const auto& [rank, member] : members) {
      const CallGroup& position = member.position();
      const bool waits = position.is_waiting() && !is_lost(rank);
      if (!waits || (waited && waited->sequence < position.entered)) continue;
      if (!waited || position.entered < waited->sequence) waited = Waited{position.entered, text_of(member, position.entered), {}, 0};
      waited->by.push_back(rank);
      waited->seconds = std::max(waited->seconds, position.waits_s);
    }
    return waited;
  }
  [[nodiscard]] bool is_lost(int rank) const { return seen_.contains(rank); }

  /// The first collective of a group that is not the same on all its members.
  void add_mismatch(const std::map<int, GroupMember>& members) {
    if (members.begin()->second.position().is_of_host()) return;  // bytes may differ between ranks
    std::map<std::int64_t, std::map<int, Content>> by_sequence;
    for (const auto& [rank, member] : members) {
      for (const CallEvent& e : member.record->events) {
        if (e.group == member.group) by_sequence[e.sequence][rank] = {e.kind, e.label, e.bytes};
      }
    }
    for (const auto& [sequence, contents] : by_sequence) {
      std::map<Content, std::vector<int>> parties;
      for (const auto& [rank, content] : contents) parties[content].push_back(rank);
      if (parties.size() < 2) continue;
      const auto most = std::ranges::max_element(parties, [](const auto& a, const auto& b) {
        return std::pair(a.second.size(), -a.second.front()) < std::pair(b.second.size(), -b.second.front());
      });
      for (const auto& [content, ranks] : parties) {
        if (content == most->first) continue;
        causes_.push_back(mismatch_text(members, by_sequence, sequence, {content, ranks}, {most->first, most->second}));
      }
      return;
    }
  }

  struct Party {
    Content content;
    std::vector<int> ranks;
  };
  [[nodiscard]] std::string mismatch_text(const std::map<int, GroupMember>& members,
                                          const std::map<std::int64_t, std::map<int, Content>>& by_sequence, std::int64_t sequence,
                                          const Party& few, const Party& most) const {
    const std::string group = members.begin()->second.position().name;
    if (few.content.kind == most.content.kind && few.content.label == most.content.label) {
      return fmt::format("{} gives {} bytes in {} (group '{}'), where {} {} {}", names(few.ranks), few.content.bytes,
                         collective_text(few.content.kind, sequence, few.content.label, false), group, names(most.ranks),
                         most.ranks.size() == 1 ? "gives" : "give", most.content.bytes);
    }
    const auto next_of = [&](const std::vector<int>& ranks) -> std::optional<Content> {
      const auto next = by_sequence.find(sequence + 1);
      if (next == by_sequence.end() || !next->second.contains(ranks.front())) return std::nullopt;
      return next->second.at(ranks.front());
    };
    const auto has_skipped = [&](const Party& who, const Party& others) {
      return fmt::format("{} {} skipped {} (group '{}') that {} {} enqueued: its #{} is {}, the others' #{}", names(who.ranks),
                         who.ranks.size() == 1 ? "has" : "have",
                         collective_text(others.content.kind, sequence, others.content.label, false), group, names(others.ranks),
                         others.ranks.size() == 1 ? "has" : "have", sequence,
                         collective_text(who.content.kind, sequence, who.content.label, false), sequence + 1);
    };
    const std::optional<Content> after_few = next_of(few.ranks), after_most = next_of(most.ranks);
    const bool few_is_ahead = after_most == few.content, most_is_ahead = after_few == most.content;
    if (few_is_ahead && !most_is_ahead) return has_skipped(few, most);
    if (most_is_ahead && !few_is_ahead && few.ranks.size() == most.ranks.size()) return has_skipped(most, few);
    return fmt::format("{} {} another order in group '{}': {} there, {} on {}", names(few.ranks), few.ranks.size() == 1 ? "has" : "have",
                       group, collective_text(few.content.kind, sequence, few.content.label, false),
                       collective_text(most.content.kind, sequence, most.content.label, false), names(most.ranks));
  }

  void add_missing(bool are_waiting) {
    std::vector<std::pair<double, std::string>> found;
    for (const auto& [key, members] : groups_) {
      const std::optional<Waited> waited = waited_for(members);
      if (!waited) continue;
      std::vector<int> missing;
      for (const int rank : from_ranges(std::get<2>(key))) {
        const auto record = by_rank_.find(rank);
        if (record == by_rank_.end() || is_lost(rank)) continue;
        const auto member = members.find(rank);
        if (member != members.end() && member->second.position().entered >= waited->sequence) continue;
        if ((waiting_group(*record->second) != nullptr) == are_waiting) missing.push_back(rank);
      }
      if (missing.empty()) continue;
      const std::string own = missing.size() == 1 ? "; " + own_place(*by_rank_.at(missing[0])) : "";
      found.emplace_back(waited->seconds, fmt::format("{} {} not entered {}; {} {} waited for it for {:.0f} s{}", names(missing),
                                                      missing.size() == 1 ? "has" : "have", waited->text, names(waited->by),
                                                      waited->by.size() == 1 ? "has" : "have", waited->seconds, own));
    }
    std::ranges::stable_sort(found, std::ranges::greater{}, [](const auto& each) { return each.first; });
    for (auto& [seconds, text] : found) causes_.push_back(std::move(text));
  }

  [[nodiscard]] std::string own_place(const HangRecord& record) const {
    if (const CallGroup* group = waiting_group(record)) {
      const GroupMember member{&record, static_cast<std::size_t>(group - record.groups.data())};
      return "it waits in " + text_of(member, group->entered);
    }
    return record.phase == RankPhase::closing ? "it is at the end of its program" : last_of(record);
  }

  /// All members have entered, but it does not end.
  void add_stuck() {
    for (const auto& [key, members] : groups_) {
      const std::optional<Waited> waited = waited_for(members);
      if (!waited || waited->seconds < 1) continue;
      causes_.push_back(fmt::format("all of {} that are known have entered {}, and it has not ended for {:.0f} s: the network, or MPI",
                                    with_word(std::get<2>(key)), waited->text, waited->seconds));
    }
  }

  void add_unknown_ranks() {
    std::vector<int> unknown;
    for (int rank = 0; rank < std::ssize(hosts_); ++rank) {
      if (!by_rank_.contains(rank)) unknown.push_back(rank);
    }
    if (!unknown.empty()) causes_.push_back(fmt::format("{} left no record", names(unknown)));
  }

  std::vector<std::string> hosts_;
  bool is_of_one_node_;
  std::map<int, const HangRecord*> by_rank_;
  std::map<int, RankHealth> seen_;        // ranks that are dead, stopped or silent
  std::set<std::pair<int, int>> missed_;  // who has heard nothing of whom
  GroupsByKey groups_;
  std::set<int> explained_;
  std::vector<std::string> causes_;
};

}  // namespace

std::vector<std::string> find_causes(const HangScene& scene) { return Analysis(scene).causes(); }

HangSummary summary_of(const std::vector<HangRecord>& records) {
  HangSummary summary;
  const auto is_known_to_live = [&](int rank) {
    return std::ranges::any_of(records, [&](const HangRecord& r) { return r.rank == rank && !counts_as_lost(r.health); });
  };
  const auto note = [&](int rank, RankHealth health) {
    if (counts_as_lost(health) && !is_known_to_live(rank)) summary.lost.try_emplace(rank, health);
  };
  for (const HangRecord& record : records) {
    note(record.rank, record.health);
    for (const HangRecord::Sighting& s : record.sightings) note(s.rank, s.health);
    if (record.written_by == record.rank) ++summary.num_alive;
  }
  return summary;
}

std::string hang_report(const HangScene& scene) {
  Analysis analysis(scene);
  const std::vector<std::string> causes = analysis.causes();
  std::string text;
  for (std::size_t i = 0; i < std::min(causes.size(), kMostCauses); ++i) text += causes[i] + "\n";
  if (causes.size() > kMostCauses) text += fmt::format("and {} more like these\n", causes.size() - kMostCauses);
  if (causes.empty()) text += "no rank was found that others wait for\n";
  text += "where the ranks stand:\n";
  const auto places = analysis.places();
  std::size_t shown = 0;
  for (const auto& [place, ranks] : places) {
    if (++shown > kMostPlaces) continue;
    text += fmt::format("  {}: {}\n", analysis.names(ranks), place);
  }
  if (shown > kMostPlaces) text += fmt::format("  and {} places more\n", shown - kMostPlaces);
  return text;
}

}  // namespace mica
