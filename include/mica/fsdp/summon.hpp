// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "mica/fsdp/root.hpp"

namespace mica::fsdp {

/// Options of SummonFullParams (docs/parity.md E1).
struct SummonOptions {
  bool recurse = true;     ///< false: only the module's own unit
  bool write_back = true;  ///< at the end each rank stores the part that it owns; padding is never stored
  /// Only world rank 0 gets full parameters; the others take part in the gathers. Refused with write_back.
  bool rank0_only = false;
  /// Full parameters are in host memory. Without rank0_only every rank of a node holds a copy, and a warning is logged.
  bool offload_to_cpu = false;
  /// Also averaged gradients, absent where there are none. In original-parameter mode only, and not with offload_to_cpu.
  bool with_grads = false;
};

/// While it lives, the module's parameters hold all their elements in the master's dtype (fp32 under mixed precision, in
/// buffers of their own), to be read and edited on the host or on the compute stream. If nothing is sharded, the parameters are
/// the masters themselves, so edits persist even without write_back.
/// Starts when every root below is idle, does not nest; a forward or backward inside is an error.
/// @collective over each unit's shard axis, at the start only.
/// Example: { SummonFullParams full(model); edit(model); }
class SummonFullParams {
 public:
  /// @param module  a root, an inner unit, or a plain module that holds several roots.
  /// @throws ConfigError for contradicting options; Error if a root is not idle or has no values.
  explicit SummonFullParams(nn::Module& module, SummonOptions options = {});
  SummonFullParams(const SummonFullParams&) = delete;
  SummonFullParams& operator=(const SummonFullParams&) = delete;
  /// close(); an error goes to the log.
  ~SummonFullParams();

  /// Writes back, removes the full parameters and waits until that is done. @throws the compute stream's error.
  void close();

 private:
  /// A full parameter or gradient, and this rank's shard of its unit.
  struct Full {
    Unit* unit;
    std::size_t index;  // of the parameter in the unit
    TensorView view;
    TensorView shard;  // what it is written back to
    Buffer buffer;     // the memory of view: this, or host
    std::vector<std::byte> host;
  };
  void gather(Unit& unit);
  [[nodiscard]] TensorView keep(Full full, DType dtype);
  [[nodiscard]] bool exposes() const;
  void leave() noexcept;

  SummonOptions options_;
  std::vector<Unit*> units_;
  std::vector<Root*> roots_;
  std::vector<Full> full_;
  bool open_ = false;
};

}  // namespace mica::fsdp
