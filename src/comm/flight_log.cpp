// SPDX-License-Identifier: Apache-2.0
#include "mica/comm/flight_log.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "mica/core/error.hpp"
#include "mica/core/rounding.hpp"

namespace mica {
namespace {

static_assert(std::atomic<std::int64_t>::is_always_lock_free && std::atomic<std::uint8_t>::is_always_lock_free,
              "processes share these atomics");

using detail::kRelaxed;

std::mutex process_log_mutex;
std::shared_ptr<FlightLog> process_log;  // NOLINT: under the mutex

}  // namespace

void FlightText::set(std::string_view text) {
  std::array<char, sizeof words> bytes{};
  std::copy_n(text.data(), std::min(text.size(), bytes.size() - 1), bytes.data());
  for (std::size_t i = 0; i < words.size(); ++i) {
    std::uint64_t word = 0;
    std::memcpy(&word, &bytes[i * sizeof word], sizeof word);
    words[i].store(word, kRelaxed);
  }
}

std::string FlightText::get() const {
  std::array<char, sizeof words + 1> bytes{};
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::uint64_t word = words[i].load(kRelaxed);
    std::memcpy(&bytes[i * sizeof word], &word, sizeof word);
  }
  return bytes.data();
}

std::size_t FlightLog::bytes_for(std::size_t num_events, std::size_t num_groups, int world_size) {
  const std::size_t members = num_groups * static_cast<std::size_t>(world_size) * sizeof(std::int32_t);
  return sizeof(FlightHead) + num_groups * sizeof(FlightGroup) + num_events * sizeof(FlightEvent) + members;
}

FlightLog::FlightLog(std::shared_ptr<std::byte> memory, std::size_t num_events, std::size_t num_groups, int world_size)
    : memory_(std::move(memory)),
      num_events_(num_events),
      num_groups_(num_groups),
      world_size_(world_size),
      head_(reinterpret_cast<FlightHead*>(memory_.get())),
      groups_(reinterpret_cast<FlightGroup*>(head_ + 1)),
      events_(reinterpret_cast<FlightEvent*>(groups_ + num_groups)),
      members_(reinterpret_cast<std::atomic<std::int32_t>*>(events_ + num_events)) {}

std::shared_ptr<FlightLog> FlightLog::make_private(std::size_t num_events, std::size_t num_groups, int world_size) {
  const std::size_t bytes = round_up(bytes_for(num_events, num_groups, world_size), alignof(FlightEvent));
  void* const memory = std::aligned_alloc(alignof(FlightEvent), bytes);
  if (memory == nullptr) throw std::bad_alloc();
  std::memset(memory, 0, bytes);
  return std::make_shared<FlightLog>(std::shared_ptr<std::byte>(static_cast<std::byte*>(memory), [](std::byte* p) { std::free(p); }),
                                     num_events, num_groups, world_size);
}

std::shared_ptr<FlightLog> FlightLog::of_process() {
  const std::lock_guard lock(process_log_mutex);
  return process_log;
}

void FlightLog::set_of_process(std::shared_ptr<FlightLog> log) {
  const std::lock_guard lock(process_log_mutex);
  process_log = std::move(log);
}

std::vector<int> FlightLog::members(const FlightGroup& group) const {
  const std::atomic<std::int32_t>* const first = members_ + index_of(group) * world_size_;
  std::vector<int> members;
  for (int i = 0; i < std::min(group.num_members.load(kRelaxed), world_size_); ++i) members.push_back(first[i].load(kRelaxed));
  return members;
}

FlightGroup* FlightLog::add_group(const std::string& name, const std::vector<int>& members) {
  const std::lock_guard lock(mutex_);
  const int instance = instances_[fmt::format("{} {}", name, fmt::join(members, ","))]++;  // equal on all members
  const auto with_use = [&](FlightGroup::Use use) {
    return std::ranges::find_if(groups(), [&](const FlightGroup& g) { return g.use.load(kRelaxed) == static_cast<std::uint8_t>(use); });
  };
  auto place = with_use(FlightGroup::Use::free);
  if (place == groups().end()) place = with_use(FlightGroup::Use::closed);
  if (place == groups().end() && head_->rank.load(kRelaxed) == 0 && !std::exchange(has_warned_, true)) {
    std::fprintf(
        stderr,
        "mica: warning: group '%s' is not watched, and a hang in it will raise no alarm: this job's flight recorder has room for %zu "
        "groups; do not keep groups and meshes that are no longer used\n",
        name.c_str(), num_groups_);
  }
  if (place == groups().end() || std::ssize(members) > world_size_) return nullptr;
  FlightGroup& group = *place;
  for (FlightEvent& event : events()) {  // remove the events of the group that had this slot
    if (event.group.load(kRelaxed) == index_of(group)) event.group.store(-1, kRelaxed);
  }
  group.instance.store(instance, kRelaxed);
  group.num_members.store(static_cast<std::int32_t>(members.size()), kRelaxed);
  group.starts_unseen.store(0, kRelaxed);
  for (auto* const count : {&group.enqueued, &group.started, &group.ended, &group.changed_ns}) count->store(0, kRelaxed);
  group.name.set(name);
  std::atomic<std::int32_t>* const first = members_ + index_of(group) * world_size_;
  for (std::size_t i = 0; i < members.size(); ++i) first[i].store(members[i], kRelaxed);
  group.use.store(static_cast<std::uint8_t>(FlightGroup::Use::open), std::memory_order_release);
  return &group;
}

void FlightLog::remove_group(FlightGroup& group) {
  const std::lock_guard lock(mutex_);
  const auto use = group.enqueued.load(kRelaxed) == 0 ? FlightGroup::Use::free : FlightGroup::Use::closed;
  group.use.store(static_cast<std::uint8_t>(use), std::memory_order_release);
}

}  // namespace mica
