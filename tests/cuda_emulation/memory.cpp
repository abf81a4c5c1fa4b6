// SPDX-License-Identifier: Apache-2.0
#include "memory.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include <sys/mman.h>

#include "api.hpp"
#include "cuda_emulation.hpp"
#include "nccl_registrations.hpp"

namespace mica::cuda_emulation {

namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kAlignment = 256;  // of cudaMalloc
constexpr std::size_t kWatched = 256;    // bytes before a block that must stay as they were
constexpr int kPoison = 0xff;            // a NaN in every floating type

std::size_t round_up(std::size_t value, std::size_t to) { return (value + to - 1) / to * to; }
void* pointer(std::uintptr_t address) { return reinterpret_cast<void*>(address); }
std::uintptr_t number(const void* address) { return reinterpret_cast<std::uintptr_t>(address); }

void demand(bool ok, const char* what) {
  if (ok) return;
  std::perror(what);
  std::abort();
}

std::uintptr_t reserve_pages(std::size_t bytes, std::size_t alignment) {
  void* mapped = mmap(nullptr, bytes + alignment, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  demand(mapped != MAP_FAILED, "CUDA emulation: mmap");
  const std::uintptr_t start = number(mapped);
  const std::uintptr_t address = round_up(start, alignment);
  if (address > start) munmap(pointer(start), address - start);
  munmap(pointer(address + bytes), start + alignment - address);
  return address;
}

/// Ends the process if what lies next to a block, from `pages` to the guard at `end`, was written.
void check_surroundings(std::uintptr_t pages, std::uintptr_t block, std::size_t bytes, std::uintptr_t end) {
  const auto is_written = [](std::uintptr_t begin, std::uintptr_t to) {
    const auto* at = static_cast<const unsigned char*>(pointer(begin));
    return !std::all_of(at, at + (to - begin), [](unsigned char byte) { return byte == kPoison; });
  };
  const bool before = is_written(std::max(pages, block - std::min(block, std::uintptr_t{kWatched})), block);
  if (!before && !is_written(block + bytes, end)) return;
  std::fprintf(stderr, "CUDA emulation: something wrote %s a block of %zu bytes\n", before ? "before" : "behind", bytes);
  std::abort();
}

void move_pages(std::uintptr_t from, std::uintptr_t to, std::size_t bytes) {
  // What is left behind stays reserved.
  void* moved = mremap(pointer(from), bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, pointer(to));
  demand(moved != MAP_FAILED, "CUDA emulation: mremap");
}

}  // namespace

DeviceWork::DeviceWork() { Memory::instance().begin_work(); }
DeviceWork::~DeviceWork() { Memory::instance().end_work(); }

Memory& Memory::instance() {
  static auto& memory = *new Memory;  // outlives every static object that frees device memory
  return memory;
}

Memory::Memory() {
  const char* protect = std::getenv("MICA_CUDA_EMULATION_PROTECT");
  protects_ = protect == nullptr || std::strcmp(protect, "0") != 0;
  const char* alignment = std::getenv("MICA_CUDA_EMULATION_ALIGNMENT");
  alignment_ = alignment == nullptr ? kAlignment : static_cast<std::size_t>(std::atoll(alignment));
}

void* Memory::allocate(std::size_t bytes, int device) {
  const std::lock_guard lock(mutex_);
  const std::size_t given = round_up(bytes, alignment_);
  const std::size_t region_bytes = round_up(given, kGranularity);
  const std::uint64_t physical = create_locked(region_bytes, round_up(given, kPage), device);
  if (physical == 0) return nullptr;
  const std::uintptr_t region = reserve_pages(region_bytes + kGranularity, kGranularity);  // the last is the guard
  map_locked(region, physical, true);
  drop(physical);  // only the mapping holds it
  const std::uintptr_t address = region + region_bytes - given;
  allocations_[address] = {region, bytes};
  return pointer(address);
}

bool Memory::free(void* address) {
  const std::lock_guard lock(mutex_);
  const auto it = allocations_.find(number(address));
  if (it == allocations_.end()) return false;
  const auto [region, bytes] = it->second;
  const std::size_t region_bytes = regions_.at(region).bytes;
  demand(mprotect(pointer(region), region_bytes, PROT_READ) == 0, "CUDA emulation: mprotect");
  check_surroundings(region, it->first, bytes, region + region_bytes);
  check_not_registered(region, region_bytes);
  unmap_locked(region);
  munmap(pointer(region), region_bytes + kGranularity);
  allocations_.erase(it);
  return true;
}

std::uintptr_t Memory::reserve(std::size_t bytes, std::size_t alignment) {
  const std::lock_guard lock(mutex_);
  if (bytes == 0 || bytes % kGranularity != 0) return 0;
  const std::uintptr_t address = reserve_pages(bytes, std::max(alignment, kGranularity));
  reservations_[address] = bytes;
  return address;
}

bool Memory::unreserve(std::uintptr_t address, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto it = reservations_.find(address);
  if (it == reservations_.end() || it->second != bytes) return false;
  const auto mapped = regions_.lower_bound(address);
  if (mapped != regions_.end() && mapped->first < address + bytes) return false;
  munmap(pointer(address), bytes);
  reservations_.erase(it);
  return true;
}

std::uint64_t Memory::create(std::size_t bytes, int device, bool shareable) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t handle = create_locked(bytes, bytes, device);
  if (handle == 0) return 0;
  physical_.at(handle).has_handle = true;
  physical_.at(handle).shareable = shareable;
  return handle;
}

std::uint64_t Memory::create_locked(std::size_t bytes, std::size_t counted_bytes, int device) {
  const auto counted = static_cast<std::int64_t>(counted_bytes);
  if (in_use_[device] + counted > memory_bytes()) return 0;
  const std::uintptr_t parked = reserve_pages(bytes, kGranularity);
  madvise(pointer(parked), bytes, MADV_HUGEPAGE);
  demand(mprotect(pointer(parked), bytes, PROT_READ | PROT_WRITE) == 0, "CUDA emulation: mprotect");
  std::memset(pointer(parked), kPoison, bytes);
  demand(mprotect(pointer(parked), bytes, PROT_NONE) == 0, "CUDA emulation: mprotect");
  in_use_[device] += counted;
  physical_[next_handle_] = {parked, bytes, counted, device, 1, false, true};
  return next_handle_++;
}

bool Memory::release(std::uint64_t handle) {
  const std::lock_guard lock(mutex_);
  const auto it = physical_.find(handle);
  if (it == physical_.end() || !it->second.has_handle) return false;
  it->second.has_handle = false;
  drop(handle);
  return true;
}

void Memory::drop(std::uint64_t physical) {
  const auto it = physical_.find(physical);
  if (--it->second.references > 0) return;
  munmap(pointer(it->second.parked), it->second.bytes);
  in_use_[it->second.device] -= it->second.counted_bytes;
  physical_.erase(it);
}

bool Memory::map(std::uintptr_t address, std::size_t bytes, std::uint64_t handle) {
  const std::lock_guard lock(mutex_);
  const auto physical = physical_.find(handle);
  if (physical == physical_.end() || physical->second.bytes != bytes || physical->second.parked == 0 || address % kGranularity != 0) {
    return false;  // a handle that is mapped twice has no emulation
  }
  auto reserved = reservations_.upper_bound(address);
  if (reserved == reservations_.begin()) return false;
  --reserved;
  if (address + bytes > reserved->first + reserved->second) return false;
  const auto next = regions_.lower_bound(address);
  if (next != regions_.end() && next->first < address + bytes) return false;
  if (next != regions_.begin() && std::prev(next)->first + std::prev(next)->second.bytes > address) return false;
  map_locked(address, handle, false);
  return true;
}

void Memory::map_locked(std::uintptr_t address, std::uint64_t handle, bool accessible) {
  auto& physical = physical_.at(handle);
  ++physical.references;
  move_pages(physical.parked, address, physical.bytes);
  munmap(pointer(physical.parked), physical.bytes);
  physical.parked = 0;
  const auto& region = regions_[address] = {physical.bytes, physical.device, accessible, handle};
  protect_region(address, region);
}

void Memory::unmap_locked(std::uintptr_t address) {
  const auto it = regions_.find(address);
  auto& physical = physical_.at(it->second.physical);
  demand(mprotect(pointer(address), physical.bytes, PROT_NONE) == 0, "CUDA emulation: mprotect");
  physical.parked = reserve_pages(physical.bytes, kGranularity);
  move_pages(address, physical.parked, physical.bytes);
  drop(it->second.physical);
  regions_.erase(it);
}

template <class Visit>
bool Memory::cover(std::uintptr_t address, std::size_t bytes, const Visit& visit) {
  std::uintptr_t at = address;
  for (auto it = regions_.find(address); at < address + bytes; ++it) {
    if (it == regions_.end() || it->first != at) return false;
    at += it->second.bytes;
  }
  if (at != address + bytes) return false;
  for (auto it = regions_.find(address); it != regions_.end() && it->first < address + bytes;) visit(*it++);
  return true;
}

bool Memory::unmap(std::uintptr_t address, std::size_t bytes) {
  check_not_registered(address, bytes);
  const std::lock_guard lock(mutex_);
  return cover(address, bytes, [&](const auto& entry) { unmap_locked(entry.first); });
}

bool Memory::set_access(std::uintptr_t address, std::size_t bytes, int device, bool accessible) {
  const std::lock_guard lock(mutex_);
  return cover(address, bytes, [&](auto& entry) {
    if (entry.second.device != device) return;  // access of a peer, which the emulation does not keep
    entry.second.accessible = accessible;
    protect_region(entry.first, entry.second);
  });
}

void* Memory::allocate_pinned(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const std::size_t given = round_up(std::max<std::size_t>(bytes, 1), alignment_);
  const std::size_t pages = round_up(given, kPage);
  const std::uintptr_t mapped = reserve_pages(pages + kPage, kPage);  // the last is the guard
  demand(mprotect(pointer(mapped), pages, PROT_READ | PROT_WRITE) == 0, "CUDA emulation: mprotect");
  const std::uintptr_t address = mapped + pages - given;
  const std::size_t before = std::min<std::size_t>(address - mapped, kWatched);
  std::memset(pointer(address - before), kPoison, before);
  std::memset(pointer(address + bytes), kPoison, given - bytes);
  pinned_[address] = {bytes, mapped, pages + kPage};
  return pointer(address);
}

bool Memory::free_pinned(void* address) {
  const std::lock_guard lock(mutex_);
  const auto it = pinned_.find(number(address));
  if (it == pinned_.end() || it->second.mapped == 0) return false;
  const Pinned& block = it->second;
  check_surroundings(block.mapped, it->first, block.bytes, block.mapped + block.mapped_bytes - kPage);
  munmap(pointer(block.mapped), block.mapped_bytes);
  pinned_.erase(it);
  return true;
}

bool Memory::add_pinned(void* address, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const std::uintptr_t at = number(address);
  const auto next = pinned_.lower_bound(at);
  if (next != pinned_.end() && next->first < at + bytes) return false;
  if (next != pinned_.begin() && std::prev(next)->first + std::prev(next)->second.bytes > at) return false;
  pinned_[at] = {bytes, 0, 0};
  return true;
}

bool Memory::remove_pinned(void* address) {
  const std::lock_guard lock(mutex_);
  const auto it = pinned_.find(number(address));
  if (it == pinned_.end() || it->second.mapped != 0) return false;
  pinned_.erase(it);
  return true;
}

Memory::Found Memory::find(const void* address, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const std::uintptr_t begin = number(address);
  const std::uintptr_t end = begin + bytes;
  if (auto it = allocations_.upper_bound(begin); it != allocations_.begin()) {
    --it;
    if (begin < it->first + it->second.bytes) {
      return {Place::device, regions_.at(it->second.region).device, end <= it->first + it->second.bytes};
    }
  }
  if (auto it = regions_.upper_bound(begin); it != regions_.begin()) {
    --it;
    if (begin < it->first + it->second.bytes) {
      Found found{Place::device, it->second.device, true};
      std::uintptr_t at = it->first;
      for (; it != regions_.end() && it->first == at && it->second.accessible && at < end; ++it) at += it->second.bytes;
      found.whole = at >= end;
      return found;
    }
  }
  if (auto it = reservations_.upper_bound(begin); it != reservations_.begin()) {
    --it;
    if (begin < it->first + it->second) return {Place::device, current_device(), false};
  }
  if (auto it = pinned_.upper_bound(begin); it != pinned_.begin()) {
    --it;
    if (begin < it->first + it->second.bytes) return {Place::pinned, -1, end <= it->first + it->second.bytes};
  }
  return {};
}

Memory::Piece Memory::piece_of(const void* address) {
  const std::lock_guard lock(mutex_);
  auto it = regions_.upper_bound(number(address));
  if (it == regions_.begin()) return {};
  --it;
  if (number(address) >= it->first + it->second.bytes) return {};
  return {it->first, it->first + it->second.bytes, physical_.at(it->second.physical).shareable};
}

std::int64_t Memory::in_use(int device) {
  const std::lock_guard lock(mutex_);
  return in_use_[device];
}

std::int64_t Memory::pinned_in_use() {
  const std::lock_guard lock(mutex_);
  std::int64_t sum = 0;
  for (const auto& [address, pinned] : pinned_) sum += pinned.mapped == 0 ? 0 : static_cast<std::int64_t>(pinned.bytes);
  return sum;
}

void Memory::begin_work() {
  if (!protects_) return;
  const std::lock_guard lock(mutex_);
  if (working_++ == 0) protect(true);
}

void Memory::end_work() {
  if (!protects_) return;
  const std::lock_guard lock(mutex_);
  if (--working_ == 0) protect(false);
}

void Memory::protect_region(std::uintptr_t address, const Region& region) {
  const bool open = region.accessible && (!protects_ || working_ > 0);
  demand(mprotect(pointer(address), region.bytes, open ? PROT_READ | PROT_WRITE : PROT_NONE) == 0, "CUDA emulation: mprotect");
}

/// One call for each run of neighbours, however many pages a pool has mapped.
void Memory::protect(bool open) {
  for (auto it = regions_.begin(); it != regions_.end();) {
    const std::uintptr_t begin = it->first;
    std::uintptr_t end = begin;
    const bool accessible = it->second.accessible;
    for (; it != regions_.end() && it->first == end && it->second.accessible == accessible; ++it) {
      end += it->second.bytes;
    }
    if (!accessible) continue;
    demand(mprotect(pointer(begin), end - begin, open ? PROT_READ | PROT_WRITE : PROT_NONE) == 0, "CUDA emulation: mprotect");
  }
}

std::int64_t memory_in_use(int device) { return Memory::instance().in_use(device); }
std::int64_t pinned_in_use() { return Memory::instance().pinned_in_use(); }

}  // namespace mica::cuda_emulation
