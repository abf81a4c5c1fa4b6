#include "memory.hpp"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "api.hpp"
#include "cuda_emulation.hpp"

namespace mica::cuda_emulation {

namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kAlignment = 256;  // of cudaMalloc
constexpr int kPoison = 0xff;            // a NaN in every floating type

std::size_t round_up(std::size_t value, std::size_t to) { return (value + to - 1) / to * to; }
void* pointer(std::uintptr_t address) { return reinterpret_cast<void*>(address); }
std::uintptr_t number(const void* address) { return reinterpret_cast<std::uintptr_t>(address); }

void demand(bool ok, const char* what) {
  if (ok) return;
  std::perror(what);
  std::abort();
}

std::uintptr_t reserve_pages(std::size_t bytes) {
  void* address = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  demand(address != MAP_FAILED, "CUDA emulation: mmap");
  return number(address);
}

}  // namespace

DeviceWork::DeviceWork() { Memory::instance().begin_work(); }
DeviceWork::~DeviceWork() { Memory::instance().end_work(); }

Memory& Memory::instance() {
  static auto& memory = *new Memory;  // outlives every static object that frees device memory
  return memory;
}

Memory::Memory() : file_(memfd_create("mica-cuda-emulation", MFD_CLOEXEC)) {
  demand(file_ >= 0, "CUDA emulation: memfd_create");
  const char* protect = std::getenv("MICA_CUDA_EMULATION_PROTECT");
  protects_ = protect == nullptr || std::strcmp(protect, "0") != 0;
}

void* Memory::allocate(std::size_t bytes, int device) {
  const std::lock_guard lock(mutex_);
  const std::size_t given = round_up(bytes, kAlignment);
  const std::size_t pages = round_up(given, kPage);
  const std::uint64_t physical = create_locked(pages, device);
  if (physical == 0) return nullptr;
  const std::uintptr_t base = reserve_pages(pages + 2 * kPage) + kPage;
  map_locked(base, physical, true);
  drop(physical);  // only the mapping holds it
  const std::uintptr_t address = base + pages - given;
  allocations_[address] = pages;
  return pointer(address);
}

bool Memory::free(void* address) {
  const std::lock_guard lock(mutex_);
  const auto it = allocations_.find(number(address));
  if (it == allocations_.end()) return false;
  const std::uintptr_t base = it->first / kPage * kPage;
  drop(regions_.at(base).physical);
  regions_.erase(base);
  munmap(pointer(base - kPage), it->second + 2 * kPage);
  allocations_.erase(it);
  return true;
}

std::uintptr_t Memory::reserve(std::size_t bytes, std::size_t alignment) {
  const std::lock_guard lock(mutex_);
  if (bytes == 0 || bytes % kGranularity != 0) return 0;
  alignment = std::max(alignment, kGranularity);
  const std::uintptr_t start = reserve_pages(bytes + alignment);
  const std::uintptr_t address = round_up(start, alignment);
  if (address > start) munmap(pointer(start), address - start);
  munmap(pointer(address + bytes), start + alignment - address);
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

std::uint64_t Memory::create(std::size_t bytes, int device) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t handle = create_locked(bytes, device);
  if (handle != 0) physical_.at(handle).has_handle = true;
  return handle;
}

std::uint64_t Memory::create_locked(std::size_t bytes, int device) {
  if (in_use_[device] + static_cast<std::int64_t>(bytes) > memory_bytes()) return 0;
  // Offsets are never used again: released pages become holes of the file.
  const std::int64_t offset = file_end_;
  file_end_ += static_cast<std::int64_t>(bytes);
  demand(ftruncate(file_, file_end_) == 0, "CUDA emulation: ftruncate");
  void* pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_, offset);
  demand(pages != MAP_FAILED, "CUDA emulation: mmap");
  std::memset(pages, kPoison, bytes);
  munmap(pages, bytes);
  in_use_[device] += static_cast<std::int64_t>(bytes);
  physical_[next_handle_] = {offset, bytes, device, 1, false};
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
  const auto bytes = static_cast<std::int64_t>(it->second.bytes);
  fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, it->second.offset, bytes);
  in_use_[it->second.device] -= bytes;
  physical_.erase(it);
}

bool Memory::map(std::uintptr_t address, std::size_t bytes, std::uint64_t handle) {
  const std::lock_guard lock(mutex_);
  const auto physical = physical_.find(handle);
  if (physical == physical_.end() || physical->second.bytes != bytes || address % kGranularity != 0) return false;
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
  void* mapped = mmap(pointer(address), physical.bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, file_, physical.offset);
  demand(mapped != MAP_FAILED, "CUDA emulation: mmap");
  const auto& region = regions_[address] = {physical.bytes, physical.device, accessible, handle};
  protect_region(address, region);
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
  const std::lock_guard lock(mutex_);
  return cover(address, bytes, [&](const auto& entry) {
    const auto [at, region] = entry;
    void* reserved =
        mmap(pointer(at), region.bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    demand(reserved != MAP_FAILED, "CUDA emulation: mmap");
    regions_.erase(at);
    drop(region.physical);
  });
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
  const std::size_t given = round_up(std::max<std::size_t>(bytes, 1), kPage);
  void* address = mmap(nullptr, given, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  demand(address != MAP_FAILED, "CUDA emulation: mmap");
  pinned_[number(address)] = {given, false};
  return address;
}

bool Memory::free_pinned(void* address) {
  const std::lock_guard lock(mutex_);
  const auto it = pinned_.find(number(address));
  if (it == pinned_.end() || it->second.registered) return false;
  munmap(address, it->second.bytes);
  pinned_.erase(it);
  return true;
}

bool Memory::add_pinned(void* address, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const std::uintptr_t at = number(address);
  const auto next = pinned_.lower_bound(at);
  if (next != pinned_.end() && next->first < at + bytes) return false;
  if (next != pinned_.begin() && std::prev(next)->first + std::prev(next)->second.bytes > at) return false;
  pinned_[at] = {bytes, true};
  return true;
}

bool Memory::remove_pinned(void* address) {
  const std::lock_guard lock(mutex_);
  const auto it = pinned_.find(number(address));
  if (it == pinned_.end() || !it->second.registered) return false;
  pinned_.erase(it);
  return true;
}

Memory::Found Memory::find(const void* address, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const std::uintptr_t begin = number(address);
  const std::uintptr_t end = begin + bytes;
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

std::int64_t Memory::in_use(int device) {
  const std::lock_guard lock(mutex_);
  return in_use_[device];
}

std::int64_t Memory::pinned_in_use() {
  const std::lock_guard lock(mutex_);
  std::int64_t sum = 0;
  for (const auto& [address, pinned] : pinned_) sum += pinned.registered ? 0 : static_cast<std::int64_t>(pinned.bytes);
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
  demand(mprotect(pointer(address), region.bytes, open ? PROT_READ | PROT_WRITE : PROT_NONE) == 0,
         "CUDA emulation: mprotect");
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
    demand(mprotect(pointer(begin), end - begin, open ? PROT_READ | PROT_WRITE : PROT_NONE) == 0,
           "CUDA emulation: mprotect");
  }
}

std::int64_t memory_in_use(int device) { return Memory::instance().in_use(device); }
std::int64_t pinned_in_use() { return Memory::instance().pinned_in_use(); }

}  // namespace mica::cuda_emulation
