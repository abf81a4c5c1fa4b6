// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace mica::cuda_emulation {

/// A place where execution can go on: that of a thread of the host, or of a stack of its own.
class Fiber {
 public:
  /// The thread's own: filled in by the first switch_from().
  Fiber() = default;
  /// Runs entry(), which never returns, on [stack, stack + bytes).
  Fiber(std::byte* stack, std::size_t bytes, void (*entry)());
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Leaves `from`, which is running, and goes on here.
  void switch_from(Fiber& from);

 private:
#if defined(__x86_64__)
  void* stack_pointer_ = nullptr;
#else
  ucontext_t context_{};
#endif
};

/// Fibers of one thread of the host with their stacks.
class FiberPool {
 public:
  explicit FiberPool(void (*entry)()) : entry_(entry) {}
  ~FiberPool();
  FiberPool(const FiberPool&) = delete;
  FiberPool& operator=(const FiberPool&) = delete;

  Fiber& take();
  void give_back(Fiber& fiber) { spare_.push_back(&fiber); }
  /// Ends the process if a stack was too small. Stacks have no guard pages, which would take their huge pages apart.
  void check_stacks() const;

 private:
  void (*entry_)();
  std::vector<std::byte*> slabs_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> spare_;
};

}  // namespace mica::cuda_emulation
