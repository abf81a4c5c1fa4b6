// SPDX-License-Identifier: Apache-2.0
#include "mica/fsdp/device_mesh.hpp"

#include <fmt/format.h>

#include "mica/comm/gpu_groups.hpp"
#include "mica/comm/host_comm.hpp"
#include "mica/device/gpu.hpp"

namespace mica::fsdp {
namespace {

OffloadTier make_offload_tier(const std::shared_ptr<Streams>& streams, Kernels& kernels) {
  const DeviceKind device = streams->compute->device();
  // For a GPU pinned memory, so that the host need not wait for copies.
  std::shared_ptr<Pool> pool = device == DeviceKind::cuda ? make_pinned_pool() : make_cpu_pool();
  if (device == DeviceKind::cpu) {  // compute and its kernels, which the mesh's user owns
    return {{streams, streams->compute.get()}, std::move(pool), {std::shared_ptr<Kernels>(), &kernels}};
  }
  std::shared_ptr<Kernels> of_host = make_cpu_kernels(*pool);
  return {make_cpu_stream("offload", StreamMode::inlined), std::move(pool), std::move(of_host)};
}

}  // namespace

Streams Streams::make(StreamMode mode, const Make& make_stream) {
  return {make_stream("compute", mode),       make_stream("pre_unshard", mode), make_stream("unshard", mode),
          make_stream("post_backward", mode), make_stream("all_reduce", mode),  mode};
}

DeviceMesh::DeviceMesh(Mesh& mesh, Pool& pool, Kernels& kernels, std::shared_ptr<Streams> streams, Logger logger, OffloadTier offload)
    : mesh_(mesh), pool_(pool), kernels_(kernels), streams_(std::move(streams)), logger_(std::move(logger)), offload_(std::move(offload)) {
  make_groups();
}

void DeviceMesh::make_groups() {
  unshard_group_ = mesh_.shard().duplicate("shard/unshard");
  reduce_group_ = mesh_.shard().duplicate("shard/reduce");
  replicate_group_ = mesh_.replicate().duplicate("replicate/all_reduce");
  all_ranks_group_ = mesh_.world().duplicate("world/all_reduce");
  agreement_group_ = mesh_.world().duplicate("world/agreement");
  // Before the model allocates its memory. Few units use all_ranks_group(): they connect it themselves.
  connect_groups(
      {unshard_group_.get(), reduce_group_.get(), replicate_group_.get(), agreement_group_.get(), &shard_norm_group(), &metrics_group()});
}

DeviceMesh::DeviceMesh(Mesh& mesh, Pool& pool, Kernels& kernels, Streams streams, Logger logger)
    : DeviceMesh(mesh, pool, kernels, std::make_shared<Streams>(std::move(streams)), std::move(logger), {}) {
  offload_ = make_offload_tier(streams_, kernels);
}

DeviceMesh::DeviceMesh(Mesh& mesh, const DeviceMesh& same_device)
    : DeviceMesh(mesh, same_device.pool_, same_device.kernels_, same_device.streams_, same_device.logger_, same_device.offload_) {}

DeviceMesh::~DeviceMesh() { drain(); }

void DeviceMesh::drain() const {
  for (Stream* stream : streams_->all()) static_cast<void>(stream->record().has_failed());
}

void DeviceMesh::rebuild(std::unique_ptr<ProcessGroup> world, MeshGeometry geometry) {
  require<ConfigError>(geometry.shard_size == mesh_.shard_size(),
                       "a mesh with {} shard ranks cannot be rebuilt with {}: only whole replicas can be left out; for another shard size "
                       "restart from a checkpoint",
                       mesh_.shard_size(), geometry.shard_size);
  drain();  // pending work uses the groups
  check_shards(*world);
  ms_before_rebuild_ = communication_ms();
  std::vector<int> neighbours;
  for (const auto& [num_ranks, group] : neighbour_groups_) neighbours.push_back(num_ranks);
  neighbour_groups_.clear();
  mesh_.rebuild(std::move(world), geometry);
  make_groups();
  for (const int num_ranks : neighbours) static_cast<void>(neighbour_group(num_ranks));
}

void DeviceMesh::check_shards(ProcessGroup& world) const {
  const auto before =
      gather_numbers(world, compute(), "rebuild", {mesh_.shard_rank(), mesh_.replica_rank(), mesh_.shard().shares_memory() ? 1 : 0});
  const std::int64_t shard_size = mesh_.shard_size();
  for (std::int64_t r = 0; r < std::ssize(before); ++r) {
    const auto& rank = before[static_cast<std::size_t>(r)];
    const auto& first = before[static_cast<std::size_t>(r / shard_size * shard_size)];  // of its shard group
    require<ConfigError>(rank[0] == r % shard_size,
                         "rank {} of the rebuilt mesh would get shard {}, but it holds shard {}: give rebuild() the remaining ranks in "
                         "their order in the mesh",
                         r, r % shard_size, rank[0]);
    require<ConfigError>(rank[1] == first[1] || (rank[2] == 0 && first[2] == 0),
                         "rank {} of the rebuilt mesh was in replica {}, but the first rank of its shard group was in replica {}: shard "
                         "groups that share memory can only stay as they are; leave out both, or restart from a checkpoint",
                         r, rank[1], first[1]);
  }
}

ProcessGroup& DeviceMesh::neighbour_group(int num_ranks) {
  if (const auto found = neighbour_groups_.find(num_ranks); found != neighbour_groups_.end()) return *found->second;
  const int shard_size = geometry().shard_size;
  require<ConfigError>(num_ranks >= 1 && shard_size % num_ranks == 0,
                       "fsdp.reshard_after_forward is {} ranks, which does not divide the shard axis of {} ranks", num_ranks, shard_size);
  std::vector<int> members;
  for (int i = 0; i < num_ranks; ++i) members.push_back(mesh_.shard_rank() / num_ranks * num_ranks + i);
  auto group = mesh_.shard().subgroup(members, fmt::format("shard/neighbours{}", num_ranks));
  connect_groups({group.get()});
  return *neighbour_groups_.emplace(num_ranks, std::move(group)).first->second;
}

std::vector<ProcessGroup*> DeviceMesh::groups() const {
  std::vector<ProcessGroup*> groups{unshard_group_.get(),   reduce_group_.get(), replicate_group_.get(), all_ranks_group_.get(),
                                    agreement_group_.get(), &mesh_.shard(),      &mesh_.replicate(),     &mesh_.world()};
  for (const auto& [num_ranks, group] : neighbour_groups_) groups.push_back(group.get());
  return groups;
}

void DeviceMesh::abort(const std::string& why) {
  for (ProcessGroup* group : groups()) group->abort(why);
}

double DeviceMesh::communication_ms() const {
  double ms = ms_before_rebuild_;
  for (const ProcessGroup* group : groups()) ms += group->busy_ms();
  return ms;
}

}  // namespace mica::fsdp
