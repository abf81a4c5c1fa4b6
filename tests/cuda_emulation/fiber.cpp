// SPDX-License-Identifier: Apache-2.0
#include "fiber.hpp"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <sys/mman.h>

#if defined(__x86_64__)
// Saves what a function must keep for its caller on the stack that is left, and takes it from the one that is entered.
// Floating-point control words are nobody's to change.
asm(R"(
.text
.type mica_cuda_emulation_switch, @function
.globl mica_cuda_emulation_switch
.hidden mica_cuda_emulation_switch
mica_cuda_emulation_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size mica_cuda_emulation_switch, .-mica_cuda_emulation_switch
)");
extern "C" void mica_cuda_emulation_switch(void** left, void* entered);
#endif

namespace mica::cuda_emulation {

namespace {

constexpr std::size_t kStackBytes = 64 << 10;
constexpr std::size_t kFibersPerSlab = 32;
constexpr std::size_t kSlabBytes = kStackBytes * kFibersPerSlab;  // a huge page: switching would miss the TLB otherwise
constexpr std::uint64_t kCanary = 0x5afe57ac5afe57ac;

/// Stacks begin at different offsets, since tops a power of two apart would share a few lines of the cache.
std::size_t skipped_bytes(std::size_t fiber) { return fiber % kFibersPerSlab * 320; }

std::byte* new_slab() {
  void* mapped = mmap(nullptr, 2 * kSlabBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) {
    std::perror("CUDA emulation: stacks");
    std::abort();
  }
  auto* begin = static_cast<std::byte*>(mapped);
  const std::size_t before = kSlabBytes - reinterpret_cast<std::uintptr_t>(begin) % kSlabBytes;
  munmap(begin, before);
  munmap(begin + before + kSlabBytes, kSlabBytes - before);
  madvise(begin + before, kSlabBytes, MADV_HUGEPAGE);
  return begin + before;
}

}  // namespace

#if defined(__x86_64__)

Fiber::Fiber(std::byte* stack, std::size_t bytes, void (*entry)()) {
  // As switch_from() leaves a stack: six registers, then where to go on. The word above stands for entry's caller.
  constexpr int kRegisters = 6;
  auto* top = reinterpret_cast<std::uint64_t*>(stack + bytes) - 2;
  top[0] = reinterpret_cast<std::uint64_t>(entry);
  top[1] = 0;
  for (int i = 1; i <= kRegisters; ++i) top[-i] = 0;
  stack_pointer_ = top - kRegisters;
}

void Fiber::switch_from(Fiber& from) { mica_cuda_emulation_switch(&from.stack_pointer_, stack_pointer_); }

#else

Fiber::Fiber(std::byte* stack, std::size_t bytes, void (*entry)()) {
  getcontext(&context_);
  context_.uc_stack.ss_sp = stack;
  context_.uc_stack.ss_size = bytes;
  makecontext(&context_, entry, 0);
}

void Fiber::switch_from(Fiber& from) { swapcontext(&from.context_, &context_); }

#endif

FiberPool::~FiberPool() {
  for (auto* slab : slabs_) munmap(slab, kSlabBytes);
}

Fiber& FiberPool::take() {
  if (spare_.empty()) {
    std::byte* slab = slabs_.emplace_back(new_slab());
    for (std::size_t i = 0; i < kFibersPerSlab; ++i) {
      std::byte* stack = slab + i * kStackBytes;
      std::memcpy(stack, &kCanary, sizeof(kCanary));
      fibers_.push_back(std::make_unique<Fiber>(stack, kStackBytes - skipped_bytes(i), entry_));
      spare_.push_back(fibers_.back().get());
    }
  }
  Fiber& fiber = *spare_.back();
  spare_.pop_back();
  return fiber;
}

void FiberPool::check_stacks() const {
  for (const auto* slab : slabs_) {
    for (std::size_t i = 0; i < kFibersPerSlab; ++i) {
      if (std::memcmp(slab + i * kStackBytes, &kCanary, sizeof(kCanary)) == 0) continue;
      std::fprintf(stderr, "CUDA emulation: a thread of a kernel needs more than %zu bytes of stack\n",
                   kStackBytes - skipped_bytes(kFibersPerSlab - 1));
      std::abort();
    }
  }
}

}  // namespace mica::cuda_emulation
