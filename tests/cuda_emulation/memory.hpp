// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

namespace mica::cuda_emulation {

inline constexpr std::size_t kGranularity = std::size_t{2} << 20;

/// While one lives, device memory is readable and writable for this process: kernels, copies and libraries hold one.
class DeviceWork {
 public:
  DeviceWork();
  ~DeviceWork();
  DeviceWork(const DeviceWork&) = delete;
  DeviceWork& operator=(const DeviceWork&) = delete;
};

enum class Place { pageable, pinned, device };

/// All memory that CUDA knows of in this process: where it is, whose it is, and whether it can be touched.
/// Safe for threads. Device memory is in huge pages where the system has them: opening and closing it for every kernel
/// then costs a few microseconds and not milliseconds.
class Memory {
 public:
  static Memory& instance();

  /// cudaMalloc: pages of its own; the byte behind it (rounded up to the alignment) faults, and writing next to it ends
  /// the process when it is freed. @return nullptr: no memory left
  void* allocate(std::size_t bytes, int device);
  bool free(void* address);  ///< false: not from allocate()

  /// cuMemAddressReserve ... cuMemSetAccess. Sizes and addresses are multiples of kGranularity; false: misuse.
  std::uintptr_t reserve(std::size_t bytes, std::size_t alignment);
  bool unreserve(std::uintptr_t address, std::size_t bytes);
  /// @param shareable  other processes and network cards may be let in  @return 0: no memory left
  std::uint64_t create(std::size_t bytes, int device, bool shareable = false);
  bool release(std::uint64_t handle);
  bool map(std::uintptr_t address, std::size_t bytes, std::uint64_t handle);
  bool unmap(std::uintptr_t address, std::size_t bytes);
  bool set_access(std::uintptr_t address, std::size_t bytes, int device, bool accessible);

  void* allocate_pinned(std::size_t bytes);  ///< likewise
  bool free_pinned(void* address);
  bool add_pinned(void* address, std::size_t bytes);  ///< cudaHostRegister; false: overlaps what is pinned
  bool remove_pinned(void* address);

  struct Found {
    Place place = Place::pageable;
    int device = -1;
    bool whole = true;  ///< all bytes are of that place (and, on a device, accessible)
  };
  [[nodiscard]] Found find(const void* address, std::size_t bytes = 1);
  /// What one cuMemCreate or cudaMalloc made.
  struct Piece {
    std::uintptr_t begin = 0, end = 0;  ///< where it is mapped; equal: there is none
    bool shareable = false;
  };
  [[nodiscard]] Piece piece_of(const void* address);
  [[nodiscard]] std::int64_t in_use(int device);
  [[nodiscard]] std::int64_t pinned_in_use();

  void begin_work();
  void end_work();

 private:
  struct Region {
    std::size_t bytes = 0;
    int device = 0;
    bool accessible = false;
    std::uint64_t physical = 0;
  };
  struct Physical {
    std::uintptr_t parked = 0;  ///< where its pages wait while they are not mapped
    std::size_t bytes = 0;
    std::int64_t counted_bytes = 0;  ///< in in_use_
    int device = 0;
    int references = 0;
    bool has_handle = false;
    bool shareable = true;
  };
  /// What allocate() gave out.
  struct Allocation {
    std::uintptr_t region = 0;
    std::size_t bytes = 0;
  };
  struct Pinned {
    std::size_t bytes = 0;
    std::uintptr_t mapped = 0;  ///< where its pages begin; 0: registered
    std::size_t mapped_bytes = 0;
  };

  Memory();
  std::uint64_t create_locked(std::size_t bytes, std::size_t counted_bytes, int device);
  void drop(std::uint64_t physical);
  void map_locked(std::uintptr_t address, std::uint64_t physical, bool accessible);
  void unmap_locked(std::uintptr_t address);
  void protect(bool open);
  void protect_region(std::uintptr_t address, const Region& region);
  /// Calls visit(address, region) for the regions that make up exactly [address, address + bytes); false where they
  /// do not.
  template <class Visit>
  bool cover(std::uintptr_t address, std::size_t bytes, const Visit& visit);

  std::mutex mutex_;
  bool protects_ = true;
  std::size_t alignment_;  ///< of what allocate() and allocate_pinned() give
  int working_ = 0;
  std::uint64_t next_handle_ = 1;
  std::map<std::uintptr_t, Region> regions_;  ///< mapped device memory
  std::map<std::uintptr_t, std::size_t> reservations_;
  std::map<std::uintptr_t, Allocation> allocations_;  ///< by the address given out
  std::map<std::uint64_t, Physical> physical_;
  std::map<std::uintptr_t, Pinned> pinned_;
  std::map<int, std::int64_t> in_use_;
};

}  // namespace mica::cuda_emulation
