// SPDX-License-Identifier: Apache-2.0
// One rank of a small sharded model, for the tests of this folder.
#pragma once

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "mica/fsdp/fully_shard.hpp"
#include "mica/nn/linear.hpp"
#include "mica/nn/sequential.hpp"

#include "testing/local_group.hpp"

namespace mica::fsdp::testing {

/// The devices of one rank of a mesh replicas x shard_size.
class RankRig {
 public:
  explicit RankRig(std::unique_ptr<ProcessGroup> world, int shard_size = 0, Logger logger = {}, StreamMode mode = StreamMode::inlined)
      : pool_(make_cpu_pool()), kernels_(make_cpu_kernels(*pool_)) {
    const int world_size = world->num_ranks();
    if (shard_size == 0) shard_size = world_size;
    pool_->poison(true);
    mesh_ = std::make_unique<Mesh>(std::move(world), MeshGeometry{world_size, shard_size, world_size / shard_size});
    device_mesh_ = std::make_unique<DeviceMesh>(*mesh_, *pool_, *kernels_, Streams::make(mode), std::move(logger));
    context_.emplace(nn::Context{.compute = device_mesh_->compute(), .pool = *pool_, .kernels = *kernels_});
  }
  ~RankRig() { device_mesh_->compute().synchronize(); }

  Pool& pool() { return *pool_; }
  Kernels& kernels() { return *kernels_; }
  Mesh& mesh() { return *mesh_; }
  DeviceMesh& device_mesh() { return *device_mesh_; }
  Stream& compute() { return device_mesh_->compute(); }
  nn::Context& context() { return *context_; }
  int rank() { return mesh_->rank(); }

  /// At the end of a test of memory that ranks share: nobody goes away while others still wait for it.
  void meet() {
    mesh_->world().barrier(compute(), "end");
    compute().synchronize();
  }

  std::vector<float> values(ConstTensorView view) {
    std::vector<float> copy(static_cast<std::size_t>(view.numel()));
    if (copy.empty()) return copy;
    kernels_->copy(compute(), view, {copy.data(), view.shape, DType::f32});
    compute().synchronize();
    return copy;
  }

  /// Masters get values that name rank-independent places: element e of the n-th parameter (module order) is n * 1000 + e.
  void number_masters(nn::Module& module) {
    std::vector<const nn::Parameter*> order;
    module.for_each_parameter([&](const std::string&, nn::Parameter& p) { order.push_back(&p); });
    for (const Piece& p : root_of(module).pieces()) {
      const auto n = std::ranges::find(order, root_of(module).parameter(p).parameter) - order.begin();
      float* master = root_of(module).write_master(p).as<float>();
      for (std::int64_t r = 0; r < p.num_runs(); ++r) {
        for (std::int64_t i = p.run(r).begin; i < p.run(r).end; ++i) {
          *master++ = static_cast<float>(n * 1000 + i);
        }
      }
    }
  }

 private:
  std::unique_ptr<Pool> pool_;
  std::unique_ptr<Kernels> kernels_;
  std::unique_ptr<Mesh> mesh_;
  std::unique_ptr<DeviceMesh> device_mesh_;
  std::optional<nn::Context> context_;
};

/// What number_masters() gives the n-th parameter.
inline std::vector<float> numbered(int n, std::int64_t numel) {
  std::vector<float> values(static_cast<std::size_t>(numel));
  std::iota(values.begin(), values.end(), static_cast<float>(n * 1000));
  return values;
}

/// A chain of Linear(widths[i] -> widths[i + 1]).
inline std::unique_ptr<nn::Sequential> make_chain(const std::vector<std::int64_t>& widths) {
  auto model = std::make_unique<nn::Sequential>();
  for (std::size_t i = 0; i + 1 < widths.size(); ++i) model->add<nn::Linear>(std::to_string(i), widths[i], widths[i + 1]);
  return model;
}

/// Everything `action` has logged to a Logger::to_stderr.
template <class Action>
std::string stderr_of(Action&& action) {
  ::testing::internal::CaptureStderr();
  action();
  return ::testing::internal::GetCapturedStderr();
}

}  // namespace mica::fsdp::testing
