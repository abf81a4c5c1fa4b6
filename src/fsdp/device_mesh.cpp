#include "mica/fsdp/device_mesh.hpp"

#include <fmt/format.h>

#include "mica/comm/gpu_groups.hpp"
#include "mica/device/gpu.hpp"

namespace mica::fsdp {
namespace {

OffloadTier make_offload_tier(const std::shared_ptr<Streams>& streams, Kernels& kernels) {
  const DeviceKind device = streams->compute->device();
  // Beside a GPU, memory that it copies to and from while the host goes on.
  std::shared_ptr<Pool> pool = device == DeviceKind::cuda ? make_pinned_pool() : make_cpu_pool();
  if (device == DeviceKind::cpu) {  // compute and its kernels, of which the mesh's user owns the latter
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

DeviceMesh::DeviceMesh(Mesh& mesh, Pool& pool, Kernels& kernels, std::shared_ptr<Streams> streams, Logger logger,
                       OffloadTier offload)
    : mesh_(mesh),
      pool_(pool),
      kernels_(kernels),
      streams_(std::move(streams)),
      logger_(std::move(logger)),
      offload_(std::move(offload)),
      unshard_group_(mesh.shard().duplicate("shard/unshard")),
      reduce_group_(mesh.shard().duplicate("shard/reduce")),
      replicate_group_(mesh.replicate().duplicate("replicate/all_reduce")),
      all_ranks_group_(mesh.world().duplicate("world/all_reduce")),
      agreement_group_(mesh.world().duplicate("world/agreement")) {
  // Now, before the model takes its memory. all_ranks_group() is for few: their units connect it.
  connect_groups({unshard_group_.get(), reduce_group_.get(), replicate_group_.get(), agreement_group_.get(), &shard_norm_group(),
                  &metrics_group()});
}

DeviceMesh::DeviceMesh(Mesh& mesh, Pool& pool, Kernels& kernels, Streams streams, Logger logger)
    : DeviceMesh(mesh, pool, kernels, std::make_shared<Streams>(std::move(streams)), std::move(logger), {}) {
  offload_ = make_offload_tier(streams_, kernels);
}

DeviceMesh::DeviceMesh(Mesh& mesh, const DeviceMesh& same_device)
    : DeviceMesh(mesh, same_device.pool_, same_device.kernels_, same_device.streams_, same_device.logger_,
                 same_device.offload_) {}

DeviceMesh::~DeviceMesh() {
  for (Stream* stream : streams_->all()) static_cast<void>(stream->record().has_failed());
}

ProcessGroup& DeviceMesh::neighbour_group(int num_ranks) {
  if (const auto found = neighbour_groups_.find(num_ranks); found != neighbour_groups_.end()) return *found->second;
  const int shard_size = geometry().shard_size;
  require<ConfigError>(num_ranks >= 1 && shard_size % num_ranks == 0,
                       "fsdp.reshard_after_forward is {} ranks, which does not divide the shard axis of {} ranks", num_ranks,
                       shard_size);
  std::vector<int> members;
  for (int i = 0; i < num_ranks; ++i) members.push_back(mesh_.shard_rank() / num_ranks * num_ranks + i);
  auto group = mesh_.shard().subgroup(members, fmt::format("shard/neighbours{}", num_ranks));
  connect_groups({group.get()});
  return *neighbour_groups_.emplace(num_ranks, std::move(group)).first->second;
}

double DeviceMesh::communication_ms() const {
  double ms = 0;
  for (const auto& [num_ranks, group] : neighbour_groups_) ms += group->busy_ms();
  return ms + unshard_group_->busy_ms() + reduce_group_->busy_ms() + replicate_group_->busy_ms() +
         all_ranks_group_->busy_ms() + mesh_.shard().busy_ms() + mesh_.world().busy_ms();
}

}  // namespace mica::fsdp
