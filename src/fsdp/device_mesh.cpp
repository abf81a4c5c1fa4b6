#include "mica/fsdp/device_mesh.hpp"

namespace mica::fsdp {

Streams Streams::make(StreamMode mode, const Make& make_stream) {
  return {make_stream("compute", mode),       make_stream("pre_unshard", mode), make_stream("unshard", mode),
          make_stream("post_backward", mode), make_stream("all_reduce", mode),  mode};
}

DeviceMesh::DeviceMesh(Mesh& mesh, Pool& pool, Kernels& kernels, Streams streams, Logger logger)
    : mesh_(mesh),
      pool_(pool),
      kernels_(kernels),
      streams_(std::move(streams)),
      logger_(std::move(logger)),
      unshard_group_(mesh.shard().duplicate("shard/unshard")),
      reduce_group_(mesh.shard().duplicate("shard/reduce")),
      replicate_group_(mesh.replicate().duplicate("replicate/all_reduce")),
      all_ranks_group_(mesh.world().duplicate("world/all_reduce")) {}

double DeviceMesh::communication_ms() const {
  return unshard_group_->busy_ms() + reduce_group_->busy_ms() + replicate_group_->busy_ms() +
         all_ranks_group_->busy_ms() + mesh_.shard().busy_ms() + mesh_.world().busy_ms();
}

}  // namespace mica::fsdp
