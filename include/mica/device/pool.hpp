// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "mica/device/event.hpp"
#include "mica/device/memory_role.hpp"
#include "mica/device/stream.hpp"

namespace mica {

class Pool;

/// Owns one allocation of a pool. Move-only. Freed in host order, reused in stream order: [Note: memory and streams] a buffer
/// belongs to its home stream, on which it may be used and freed without further synchronisation. When another stream uses it,
/// the owner hands over that stream's last use with used_until(); the next owner's stream waits for it (and for the home
/// stream's work so far) before it touches the memory. So freeing never blocks, and the counts depend on the host's order of
/// calls only, never on timing. That holds because tasks own no buffers: a task captures views, and the host frees a buffer
/// right after it has enqueued the last use. (A buffer that a task nevertheless frees on a worker thread is returned safely,
/// but only at the host's next call to the pool; counts are then no longer exact.)
class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    Buffer(std::move(other)).swap(*this);
    return *this;
  }
  ~Buffer() { reset(); }

  [[nodiscard]] void* data() const { return data_; }
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }
  [[nodiscard]] MemoryRole role() const { return role_; }
  /// Whether it was allocated and not yet returned; also true for an allocation of 0 bytes.
  [[nodiscard]] explicit operator bool() const { return pool_ != nullptr; }

  /// Another stream's last use of this memory: its next owner waits for `last_use` first.
  void used_until(Event last_use) { foreign_uses_.push_back(std::move(last_use)); }
  /// Returns the memory to the pool.
  void reset() noexcept;
  void swap(Buffer& other) noexcept;

 private:
  friend class Pool;
  Pool* pool_ = nullptr;
  void* data_ = nullptr;
  std::int64_t bytes_ = 0;
  MemoryRole role_ = MemoryRole::workspace;
  Stream* home_ = nullptr;
  std::vector<Event> foreign_uses_;
  std::shared_ptr<void> owner_;  // of adopted memory
};

/// Bytes as requested, exact; `reserved` is what was taken from the operating system and not returned, `reserved_peak` the most of it
/// at any time.
struct MemoryStats {
  std::int64_t current = 0;
  std::int64_t peak = 0;
  std::int64_t reserved = 0;
  std::int64_t reserved_peak = 0;
  std::array<std::int64_t, kNumMemoryRoles> current_by_role{};
  std::array<std::int64_t, kNumMemoryRoles> peak_by_role{};
  [[nodiscard]] std::int64_t current_of(MemoryRole role) const { return current_by_role[static_cast<std::size_t>(role)]; }
  [[nodiscard]] std::int64_t peak_of(MemoryRole role) const { return peak_by_role[static_cast<std::size_t>(role)]; }
};

/// A caching allocator with exact accounting. One host thread per pool. Blocks are aligned to 64 bytes (256 on a GPU). Outlives
/// its buffers; its destructor waits until streams no longer use freed memory.
class Pool {
 public:
  virtual ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  /// @param bytes  > 0 or 0 (then data() is null, and nothing is counted).  @param home  see [Note: memory and
  /// streams]. Contents are undefined; with poison(true) every allocation is filled with a NaN pattern (tests).
  /// @throws IoError when memory is exhausted, naming role, bytes and the memory in use, or when no address space can be reserved; the
  /// pool stays usable.
  [[nodiscard]] Buffer allocate(std::int64_t bytes, MemoryRole role, Stream& home);
  /// The same for memory that was allocated elsewhere but is counted like the pool's own: a part of memory that ranks share.
  /// @param bytes  > 0.  @param owner  released after the buffer, at the first call of the pool when streams are done with the
  ///               memory; at the latest by the pool's destructor, which waits for them.
  [[nodiscard]] Buffer adopt(void* data, std::int64_t bytes, MemoryRole role, Stream& home, std::shared_ptr<void> owner);

  [[nodiscard]] const MemoryStats& stats();
  /// Resets peaks to the current bytes.
  void reset_peak();
  /// Returns free memory to the operating system. Waits for that memory's events.
  void trim();
  void poison(bool on) { poison_ = on; }
  /// Allocations that would raise stats().current above this fail as if memory were exhausted.
  void set_limit(std::int64_t bytes) { limit_ = bytes; }

  /// Where the pool's memory is.
  [[nodiscard]] virtual DeviceKind device() const { return DeviceKind::cpu; }
  /// Where any memory is, the pool's or not, as far as the pool's device can tell: a CPU knows host memory only.
  [[nodiscard]] virtual DeviceKind device_of(const void* /*data*/) const { return DeviceKind::cpu; }
  /// Copies between host memory and the pool's, in either direction; the host waits. Any thread. Not ordered with any stream:
  /// streams must have finished with the memory.
  virtual void copy(void* to, const void* from, std::int64_t bytes) const;

 protected:
  friend class Buffer;
  struct Taken {
    void* data = nullptr;        ///< null: exhausted
    std::vector<Event> pending;  ///< earlier uses of the memory that the new owner's stream must wait for
  };
  Pool() = default;
  virtual Taken take(std::int64_t bytes, Stream& home) = 0;
  /// Returns memory of take(). @param home  the stream that may use it at once; null if other streams used it too.
  virtual void give(void* data, Stream* home, std::vector<Event> pending) = 0;
  virtual void release_free_memory() = 0;
  /// An event after everything enqueued on `home` so far, whose memory is being returned.
  [[nodiscard]] virtual Event last_use(Stream& home) { return home.record(); }
  /// Enqueues on `home`: every byte of fresh memory becomes `byte`.
  virtual void fill_bytes(Stream& home, void* data, std::int64_t bytes, unsigned char byte);
  [[nodiscard]] virtual std::int64_t reserved_bytes() const = 0;

 private:
  [[nodiscard]] bool fits(std::int64_t bytes) const;
  [[noreturn]] void throw_exhausted(std::int64_t bytes, MemoryRole role) const;
  [[nodiscard]] Buffer count(void* data, std::int64_t bytes, MemoryRole role, Stream& home);
  void free(Buffer& buffer) noexcept;
  void free_on_host(Buffer& buffer);
  /// Returns buffers that another thread destroyed, and releases adopted memory that streams are done with.
  void take_back();
  void update_reserved();

  MemoryStats stats_;
  bool poison_ = false;
  std::int64_t limit_ = std::numeric_limits<std::int64_t>::max();
  std::atomic<std::thread::id> host_;  // the thread that allocates

  // Buffers destroyed by a thread other than the host's, until the host's next call. (At the end of the pool their streams may
  // be gone; their memory is freed with the pool's.)
  std::mutex stray_mutex_;
  std::vector<Buffer> stray_;
  std::atomic<bool> has_stray_{false};

  struct Leaving {
    std::shared_ptr<void> owner;
    std::int64_t bytes;
    std::vector<Event> last_uses;
  };
  std::vector<Leaving> leaving_;  // adopted memory that was returned
  std::int64_t adopted_bytes_ = 0;
};

[[nodiscard]] std::unique_ptr<Pool> make_cpu_pool();
/// Counts and places as a pool of that device does, but its addresses have no memory behind them, however many there are (of a GPU, 2 PiB).
[[nodiscard]] std::unique_ptr<Pool> make_dry_pool(DeviceKind like);

}  // namespace mica
