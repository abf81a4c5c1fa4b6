// SPDX-License-Identifier: Apache-2.0
#include "device_choice.hpp"

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "mica/comm/host_comm.hpp"
#include "mica/comm/mpi_group.hpp"
#include "mica/core/error.hpp"
#include "mica/train/setup.hpp"

namespace mica::train {
namespace {

using Backend = DeviceChoice::Backend;

/// Whether to use GPUs. All ranks or none.
bool wants_gpu(const std::string& device, const std::vector<GpuInfo>& gpus, const mpi::Communicator& world) {
  if (device == "cpu") return false;
  const std::int64_t with_gpu = world.all_sum(gpus.empty() ? 0 : 1);
  make_mpi_comm(world)->agree([&] {
    require<ConfigError>(device != "cuda" || !gpus.empty(),
                         "mesh.device = cuda, but no GPU can be used: {}; use mesh.device=cpu, or a build and a machine with one",
                         why_no_gpu());
    require<ConfigError>(with_gpu == 0 || with_gpu == world.num_ranks(),
                         "mesh.device = auto, and {} of {} ranks see a GPU: give every rank one, or set mesh.device=cpu", with_gpu,
                         world.num_ranks());
  });
  return with_gpu > 0;
}

Backend backend_from_name(const std::string& name, bool on_gpu) {
  require_backend_on(on_gpu, name);
  if (name == "auto") return on_gpu ? Backend::nccl : Backend::mpi;
  return name == "mpi" ? Backend::mpi : name == "shared" ? Backend::shared : name == "nccl" ? Backend::nccl : Backend::staged;
}

/// The most bytes that the ranks of this rank's node would share, with some more for padding.
std::int64_t shared_bytes_on_node(const Config& config, const MeshGeometry& geometry, int ranks_on_node) {
  const auto model = make_module(config);
  const fsdp::Options options = fsdp_options(config);
  const std::string block = block_type(config.model);
  std::int64_t of_blocks = 0, of_tables = 0;
  model->for_each_module([&](const std::string&, nn::Module& module) {
    if (module.type_name() == block) of_blocks += module.num_parameters();
    if (!module.writes_grads_in_turns()) return;
    for (const auto& parameter : module.own_parameters()) of_tables += parameter->shape.numel();
  });
  // Wrapped by block, what is outside of them is the root unit. Otherwise units are known when the model is wrapped: this is the most.
  const bool by_block = config.fsdp.wrap == "block";
  const std::int64_t all = model->num_parameters(), root = by_block ? all - of_blocks : all;
  const bool shares_all = options.can_share_masters() || !fsdp::reshards_after_forward(options.strategy);
  const bool shares_grads = options.can_share_grads(geometry.replicas) && !config.train.deterministic;
  const std::int64_t grads = !shares_grads ? 0 : by_block ? root : std::min(2 * of_tables, all);
  const std::int64_t bytes = (shares_all ? all : root) * dtype_bytes(options.param_dtype()) + grads * dtype_bytes(DType::f32);
  return (bytes + bytes / 16) * (ranks_on_node / geometry.shard_size);
}

/// Sets the backend that mesh.backend = auto is on CPUs. @collective
void choose_sharing(const Config& config, const mpi::Communicator& world, const mpi::Communicator& node,
                    const std::vector<RankPlace>& by_world_rank, DeviceChoice& choice) {
  const std::vector<RankPlace> places = mesh_order(by_world_rank);
  std::int64_t bytes = 0;
  make_mpi_comm(world)->agree([&] {
    const MeshGeometry geometry = MeshGeometry::make(places, shard_size_of(config));
    if (auto_shares_memory(config, geometry, places)) bytes = shared_bytes_on_node(config, geometry, node.num_ranks());
  });
  if (bytes == 0) return;
  const std::string why_not = why_no_shared_memory(node, "mesh.backend = shared", bytes);
  if (world.all_sum(why_not.empty() ? 0 : 1) == 0) {
    choice.backend = Backend::shared;
  } else {
    const std::vector<std::string> reasons = world.gather_strings(why_not);
    choice.why_not_shared = *std::ranges::find_if_not(reasons, &std::string::empty);
  }
}

}  // namespace

void require_backend_on(bool on_gpu, const std::string& backend) {
  const bool is_for_gpus = backend == "nccl" || backend == "staged";
  require<ConfigError>(backend == "auto" || on_gpu == is_for_gpus,
                       "mesh.backend = {} moves memory of {}, but tensors are on {}: use {}, or another mesh.device", backend,
                       on_gpu ? "the CPU" : "GPUs", on_gpu ? "GPUs" : "the CPU", on_gpu ? "nccl or staged" : "mpi or shared");
}

bool auto_shares_memory(const Config& config, const MeshGeometry& geometry, const std::vector<RankPlace>& places) {
  const fsdp::Options options = fsdp_options(config);
  return (options.can_share_masters() || options.can_share_casts()) && options.strategy != fsdp::Strategy::no_shard &&
         geometry.shard_size > 1 && !geometry.replica_over_nodes(places);
}

DeviceChoice choose_device(const Config& config, const mpi::Session& session, const mpi::Communicator& world,
                           const std::vector<RankPlace>& places) {
  const Config::Mesh& wanted = config.mesh;
  const mpi::Communicator node = world.split_node();
  const auto comm = make_mpi_comm(world);
  DeviceChoice choice;
  std::vector<GpuInfo> gpus;
  // The first launch of a kernel may load its module, and for that the driver waits until the GPU is idle. A staged stream may be waiting
  // for the host then: a deadlock. So all modules are loaded when CUDA starts, below. Each stream also gets a hardware queue of its own, so
  // that no work is queued behind a waiting stream.
  if (wanted.backend == "staged") {
    static_cast<void>(setenv("CUDA_MODULE_LOADING", "EAGER", 0));
    static_cast<void>(setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0));
  }
  comm->agree([&] {
    if (wanted.device != "cpu") gpus = list_gpus();
  });
  const bool on_gpu = wants_gpu(wanted.device, gpus, world);
  if (on_gpu) {
    choice.gpu = gpus[static_cast<std::size_t>(node.rank()) % gpus.size()];
    const std::vector<std::string> cards = node.gather_strings(choice.gpu->pci_bus_id);
    choice.ranks_on_gpu = static_cast<int>(std::ranges::count(cards, choice.gpu->pci_bus_id));
  }
  comm->agree([&] {
    choice.backend = backend_from_name(wanted.backend, on_gpu);
    require<ConfigError>(choice.backend != Backend::nccl || choice.ranks_on_gpu == 1,
                         "mesh.backend = nccl needs one GPU per rank, but {} ranks of a node share {} ({}): start fewer ranks per node, or "
                         "set mesh.backend=staged, which is slow",
                         choice.ranks_on_gpu, choice.gpu ? choice.gpu->name : "", choice.gpu ? choice.gpu->pci_bus_id : "");
    require<ConfigError>(
        choice.backend != Backend::staged || session.has_thread_multiple(),
        "mesh.backend = staged communicates from threads of its own, and this MPI ({}) does not grant MPI_THREAD_MULTIPLE: "
        "use an MPI that does, or mesh.backend=nccl",
        mpi::Session::library_version());
    if (choice.gpu) use_gpu(choice.gpu->index);
  });
  if (!on_gpu && wanted.backend == "auto") choose_sharing(config, world, node, places, choice);
  return choice;
}

}  // namespace mica::train
