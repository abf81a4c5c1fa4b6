// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "mica/device/event.hpp"
#include "mica/device/stream.hpp"

#include "pages.hpp"

namespace mica::detail {

/// One range of virtual addresses, cut into blocks: best fit, neighbours that are free always merged. [Note: arena]
/// The range is reserved once, as large as the machine's memory, so there are no segments whose borders fragment it; only
/// resident pages cost memory. Pages become resident when a block over them is handed out, and stay so until release(): the
/// pool decides when that is worth it. Pages provides them.
/// Last uses by earlier owners are recorded by address, not by block: after two free blocks have merged, a stream that gets
/// the memory of one must not wait for the users of the other.
/// All choices depend on the order of calls only.
class Arena {
 public:
  explicit Arena(std::unique_ptr<Pages> pages);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  struct Taken {
    std::uintptr_t address = 0;  ///< 0: does not fit
    std::vector<Event> pending;
  };
  /// Cuts a block out of a free one; commit() must follow before it is touched.
  [[nodiscard]] Taken take(std::int64_t bytes, Stream& home);
  /// Makes a block's pages resident. False if there are no more.
  [[nodiscard]] bool commit(std::uintptr_t address);
  [[nodiscard]] std::int64_t not_resident_bytes_of(std::uintptr_t address) const;
  void give(std::uintptr_t address, Stream* home, std::vector<Event> pending);

  /// Returns up to `bytes` (rounded up to pages) of free memory to the system, from the highest addresses down, which are
  /// taken last. Blocks the host until that memory's last uses are over. @return bytes returned.
  std::int64_t release(std::int64_t bytes);

  [[nodiscard]] bool contains(std::uintptr_t address) const { return address >= pages_->begin() && address < pages_->end(); }
  [[nodiscard]] std::int64_t resident_bytes() const { return resident_bytes_; }
  /// In whole blocks, alignment included.
  [[nodiscard]] std::int64_t in_use_bytes() const { return in_use_bytes_; }

 private:
  struct Block {
    std::uintptr_t end = 0;
    bool is_free = true;
    Stream* home = nullptr;  // of a free block: the only stream that used it, or null
  };
  struct LastUse {
    std::uintptr_t end;
    std::vector<Event> pending;
  };
  using Blocks = std::map<std::uintptr_t, Block>;
  using BySize = std::set<std::pair<std::int64_t, std::uintptr_t>>;
  struct FreeOfHome {
    Stream* home;
    BySize blocks;
  };

  [[nodiscard]] std::uintptr_t choose(std::int64_t bytes, const Stream* home) const;
  BySize& free_of(Stream* home);
  void index(Blocks::const_iterator block);
  void unindex(Blocks::const_iterator block);
  [[nodiscard]] std::vector<Event> take_last_uses(std::uintptr_t begin, std::uintptr_t end);
  void wait_for_last_uses(std::uintptr_t begin, std::uintptr_t end) const;
  std::int64_t release_from(std::uintptr_t begin, std::uintptr_t end, std::int64_t bytes);
  template <class Visit>
  void for_each_hole(std::uintptr_t begin, std::uintptr_t end, Visit visit) const;
  [[nodiscard]] std::int64_t absent_bytes(std::uintptr_t begin, std::uintptr_t end) const;

  std::unique_ptr<Pages> pages_;
  Blocks blocks_;                                    // by address; they tile the range
  std::vector<FreeOfHome> free_;                     // free blocks by home
  std::map<std::uintptr_t, LastUse> last_uses_;      // of free memory that may still be in use; disjoint
  std::map<std::uintptr_t, std::uintptr_t> absent_;  // page ranges that are not resident: begin -> end, disjoint
  std::int64_t resident_bytes_ = 0;
  std::int64_t in_use_bytes_ = 0;
};

}  // namespace mica::detail
