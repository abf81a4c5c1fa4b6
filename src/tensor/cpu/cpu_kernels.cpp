// SPDX-License-Identifier: Apache-2.0
#include "cpu_kernels.hpp"

#include "loops.hpp"

namespace mica {

std::unique_ptr<Kernels> make_cpu_kernels(Pool& pool, const CpuKernelsOptions& options) {
  return std::make_unique<cpu::CpuKernels>(pool, options);
}

ProductsMade products_made(const Kernels& kernels) {
  const auto* on_cpu = dynamic_cast<const cpu::CpuKernels*>(&kernels);
  return on_cpu ? on_cpu->products_made() : ProductsMade();
}

namespace cpu {

CpuKernels::CpuKernels(Pool& pool, const CpuKernelsOptions& options)
    : pool_(pool), logits_bytes_(options.logits_bytes), products_(options.use_native_bf16 && Products::processor_has_bf16()) {
  static_cast<void>(loops());  // reports a bad MICA_CPU_ISA here: no exception can leave an OpenMP region
}

std::string CpuKernels::description() const {
  return fmt::format("cpu ({}; loops {}{})", Products::library_description(), isa_name(loops().isa),
                     products_.native_bf16() ? "" : "; bf16 by way of fp32");
}

}  // namespace cpu
}  // namespace mica
