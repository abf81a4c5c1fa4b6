// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "mica/comm/mesh.hpp"
#include "mica/device/gpu.hpp"
#include "mica/mpi/communicator.hpp"
#include "mica/mpi/session.hpp"
#include "mica/train/config.hpp"

namespace mica::train {

/// What a rank computes on and how it reaches the others.
struct DeviceChoice {
  enum class Backend : std::uint8_t { mpi, shared, nccl, staged };

  std::optional<GpuInfo> gpu;  ///< none: the CPU
  int ranks_on_gpu = 1;        ///< of this node that share it
  Backend backend = Backend::mpi;
  std::string why_not_shared;  ///< what kept mesh.backend = auto from `shared`, if that was room in /dev/shm
};

/// @throws ConfigError if mesh.backend does not move the device's memory
void require_backend_on(bool on_gpu, const std::string& backend);

/// What mesh.backend = auto is on CPUs: `shared` where that has an effect, which needs parameters that can be shared and shard groups
/// inside nodes. Room in /dev/shm is another question. @param places  every rank's, in mesh order
[[nodiscard]] bool auto_shares_memory(const Config& config, const MeshGeometry& geometry, const std::vector<RankPlace>& places);

/// By mesh.device and mesh.backend: A rank takes a GPU by its local rank among those that it sees. This also works if the launcher shows
/// each rank only its own GPU.
/// @param places  every rank's, by world rank
/// @collective @throws ConfigError on all ranks: no GPU, some ranks without one, NCCL with a GPU shared
[[nodiscard]] DeviceChoice choose_device(const Config& config, const mpi::Session& session, const mpi::Communicator& world,
                                         const std::vector<RankPlace>& places);

}  // namespace mica::train
