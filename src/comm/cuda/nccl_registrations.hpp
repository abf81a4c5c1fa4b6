// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>

#include "mica/device/block_memory.hpp"

#include "nccl_comm.hpp"

namespace mica::nccl {

/// Whether the NCCL loaded at run time has user buffer registration (2.19.1 or newer).
[[nodiscard]] bool can_register();

/// Blocks of memory that a communicator may read and write without copies of its own. [Note: NCCL buffers]
class Registrations final : public BlockUser {
 public:
  /// @param communicator  outlives it
  explicit Registrations(Communicator& communicator) : communicator_(communicator) {}
  ~Registrations() override;

  /// Registers the block, unless it is registered already. @throws NcclError
  void add(void* begin, std::int64_t bytes);
  void forget_block(const void* begin) noexcept override;

 private:
  void close(void* handle) noexcept;

  Communicator& communicator_;
  std::map<const void*, void*> handles_;  // by the address of the block
};

}  // namespace mica::nccl
