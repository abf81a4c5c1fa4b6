// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>

#include "mica/device/cuda/block_memory.hpp"

#include "nccl_comm.hpp"

namespace mica::nccl {

/// Whether the library that runs knows user buffers (2.19).
[[nodiscard]] bool can_register();

/// Blocks of memory that a communicator may read and write without copies of its own. [Note: NCCL buffers]
class Registrations final : public BlockUser {
 public:
  /// @param communicator  outlives it
  explicit Registrations(Communicator& communicator) : communicator_(communicator) {}
  ~Registrations() override;

  /// Once is enough, until the block goes. @throws NcclError
  void add(void* begin, std::int64_t bytes);
  void forget_block(const void* begin) noexcept override;

 private:
  void close(void* handle) noexcept;

  Communicator& communicator_;
  std::map<const void*, void*> handles_;  // by the block's beginning
};

}  // namespace mica::nccl
