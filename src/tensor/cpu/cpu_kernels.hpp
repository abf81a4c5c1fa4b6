// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>
#include <vector>

#include "mica/tensor/kernels.hpp"
#include "mica/tensor/openmp.hpp"

#include "../product_arguments.hpp"
#include "parallel.hpp"
#include "products.hpp"

namespace mica::cpu {

/// Kernels on CPU streams. Each method checks its arguments, finds its products, takes its scratch from the pool and
/// enqueues one task (several for what is written in turns). The host returns scratch to the pool at once, which its home stream makes
/// safe. The methods are in cpu_products.cpp, cpu_layers.cpp, cpu_attention.cpp, cpu_losses.cpp, cpu_elementwise.cpp, cpu_exact.cpp and
/// cpu_optimizers.cpp.
class CpuKernels final : public Kernels {
 public:
  CpuKernels(Pool& pool, const CpuKernelsOptions& options);

  [[nodiscard]] std::string description() const override;
  [[nodiscard]] bool bf16_is_native() const override { return products_.native_bf16(); }
  [[nodiscard]] bool f16_is_native() const override { return false; }
  [[nodiscard]] ProductsMade products_made() const { return products_.made(); }
  void record_products(std::vector<ProductShape>* list) override { record_ = list; }

#include "../kernel_overrides.inc"

 private:
  /// A task that runs with the host's OpenMP thread count.
  template <class Task>
  void enqueue(Stream& s, const char* what, std::initializer_list<Access> accesses, Task task) {
    enqueue(s, what, std::span<const Access>(accesses.begin(), accesses.size()), std::move(task));
  }
  template <class Task>
  void enqueue(Stream& s, const char* what, std::span<const Access> accesses, Task task) {
    s.submit(what, accesses, [threads = omp_get_max_threads(), task = std::move(task)] {
      const OpenMpThreads scope(threads);  // a stream's worker has a count of its own
      if (threads > 1) check_openmp_threads();
      task();
    });
  }
  [[nodiscard]] Buffer scratch(Stream& s, std::int64_t bytes) { return pool_.allocate(bytes, MemoryRole::workspace, s); }
  void record(const char* task, const ProductSpec& spec);
  void enqueue_head(Stream& s, const char* what, const arguments::HeadTensors& tensors, double scale, Write dw_mode);
  void enqueue_head_in_turns(Stream& s, const char* what, const arguments::HeadTensors& tensors, double scale, Write dw_mode,
                             RowTurns& turns);

  Pool& pool_;
  std::int64_t logits_bytes_;
  Products products_;
  std::vector<ProductShape>* record_ = nullptr;
};

[[nodiscard]] inline Access writes(const Buffer& buffer) { return mica::writes(buffer.data(), buffer.bytes()); }

}  // namespace mica::cpu
