// SPDX-License-Identifier: Apache-2.0
#include "mica/device/pool.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "mica/core/error.hpp"

namespace mica {
namespace {

constexpr unsigned char kPoisonByte = 0xff;  // a quiet NaN in every floating dtype

std::string in_use_by_role(const MemoryStats& stats) {
  std::string text;
  for (std::size_t i = 0; i < kNumMemoryRoles; ++i) {
    if (stats.current_by_role[i] == 0) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", memory_role_name(static_cast<MemoryRole>(i)), stats.current_by_role[i]);
  }
  return text.empty() ? "nothing" : text;
}

}  // namespace

void Buffer::reset() noexcept {
  if (pool_ != nullptr) pool_->free(*this);
}

void Buffer::swap(Buffer& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(role_, other.role_);
  std::swap(home_, other.home_);
  std::swap(foreign_uses_, other.foreign_uses_);
  std::swap(owner_, other.owner_);
}

Pool::~Pool() {
  for (Buffer& buffer : stray_) buffer.pool_ = nullptr;
  for (const Leaving& each : leaving_) {
    for (const Event& last_use : each.last_uses) static_cast<void>(last_use.has_failed());
  }
}

Buffer Pool::allocate(std::int64_t bytes, MemoryRole role, Stream& home) {
  invariant(bytes >= 0, "a number of bytes >= 0 in Pool::allocate");
  host_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  take_back();
  Taken taken;
  if (bytes > 0) {
    if (fits(bytes)) taken = take(bytes, home);
    update_reserved();
    if (taken.data == nullptr) throw_exhausted(bytes, role);
    for (const Event& event : taken.pending) home.wait(event);
  }
  return count(taken.data, bytes, role, home);
}

Buffer Pool::adopt(void* data, std::int64_t bytes, MemoryRole role, Stream& home, std::shared_ptr<void> owner) {
  invariant(bytes > 0 && data != nullptr && owner != nullptr, "memory and its owner in Pool::adopt");
  host_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  take_back();
  if (!fits(bytes)) throw_exhausted(bytes, role);
  adopted_bytes_ += bytes;
  update_reserved();
  Buffer buffer = count(data, bytes, role, home);
  buffer.owner_ = std::move(owner);
  return buffer;
}

bool Pool::fits(std::int64_t bytes) const { return bytes <= limit_ - stats_.current; }

void Pool::throw_exhausted(std::int64_t bytes, MemoryRole role) const {
  throw IoError(
      fmt::format("memory exhausted: {} bytes of {} wanted, but {} bytes are in use ({}){}; use more ranks per "
                  "model, a smaller "
                  "micro-batch or activation checkpointing",
                  bytes, memory_role_name(role), stats_.current, in_use_by_role(stats_),
                  limit_ == std::numeric_limits<std::int64_t>::max() ? "" : fmt::format(" of at most {}", limit_)));
}

Buffer Pool::count(void* data, std::int64_t bytes, MemoryRole role, Stream& home) {
  if (bytes > 0) {
    if (poison_) fill_bytes(home, data, bytes, kPoisonByte);
    const auto r = static_cast<std::size_t>(role);
    stats_.current += bytes;
    stats_.current_by_role[r] += bytes;
    stats_.peak = std::max(stats_.peak, stats_.current);
    stats_.peak_by_role[r] = std::max(stats_.peak_by_role[r], stats_.current_by_role[r]);
  }
  Buffer buffer;
  buffer.pool_ = this;
  buffer.data_ = data;
  buffer.bytes_ = bytes;
  buffer.role_ = role;
  buffer.home_ = &home;
  return buffer;
}

void Pool::copy(void* to, const void* from, std::int64_t bytes) const { std::memcpy(to, from, static_cast<std::size_t>(bytes)); }

void Pool::fill_bytes(Stream& home, void* data, std::int64_t bytes, unsigned char byte) {
  home.submit("poison", {writes(data, bytes)}, [=] { std::memset(data, byte, static_cast<std::size_t>(bytes)); });
}

void Pool::free(Buffer& buffer) noexcept {
  if (std::this_thread::get_id() == host_.load(std::memory_order_relaxed)) {
    take_back();
    free_on_host(buffer);
    return;
  }
  const std::lock_guard lock(stray_mutex_);
  stray_.push_back(std::move(buffer));
  has_stray_.store(true, std::memory_order_release);
}

void Pool::free_on_host(Buffer& buffer) {
  if (buffer.data_ != nullptr) {
    Stream* home = buffer.foreign_uses_.empty() ? buffer.home_ : nullptr;
    std::vector<Event> pending = std::move(buffer.foreign_uses_);
    if (Event so_far = last_use(*buffer.home_); so_far.state()) pending.push_back(std::move(so_far));
    if (buffer.owner_) {
      leaving_.push_back({std::move(buffer.owner_), buffer.bytes_, std::move(pending)});
    } else {
      give(buffer.data_, home, std::move(pending));
    }
    stats_.current -= buffer.bytes_;
    stats_.current_by_role[static_cast<std::size_t>(buffer.role_)] -= buffer.bytes_;
  }
  buffer.pool_ = nullptr;
  buffer.data_ = nullptr;
  buffer.bytes_ = 0;
  buffer.home_ = nullptr;
  buffer.foreign_uses_.clear();
}

void Pool::take_back() {
  if (has_stray_.load(std::memory_order_acquire)) {
    std::vector<Buffer> stray;
    {
      const std::lock_guard lock(stray_mutex_);
      stray.swap(stray_);
      has_stray_.store(false, std::memory_order_release);
    }
    for (Buffer& buffer : stray) free_on_host(buffer);
  }
  if (leaving_.empty()) return;
  std::erase_if(leaving_, [&](const Leaving& each) {
    const bool has_left = std::ranges::all_of(each.last_uses, &Event::is_complete);
    if (has_left) adopted_bytes_ -= each.bytes;
    return has_left;
  });
  update_reserved();
}

const MemoryStats& Pool::stats() {
  take_back();
  return stats_;
}

void Pool::reset_peak() {
  take_back();
  stats_.peak = stats_.current;
  stats_.reserved_peak = stats_.reserved;
  stats_.peak_by_role = stats_.current_by_role;
}

void Pool::update_reserved() {
  stats_.reserved = reserved_bytes() + adopted_bytes_;
  stats_.reserved_peak = std::max(stats_.reserved_peak, stats_.reserved);
}

void Pool::trim() {
  take_back();
  release_free_memory();
  update_reserved();
}

}  // namespace mica
