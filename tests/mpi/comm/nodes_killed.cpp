// SPDX-License-Identifier: Apache-2.0
// The last of four ranks on two nodes is killed while the others wait for it in a collective that goes by node.
#include <csignal>
#include <cstdio>
#include <string_view>
#include <vector>

#include "mica/comm/mpi_group.hpp"
#include "mica/mpi/session.hpp"

int main(int argc, char** argv) {
  const std::string_view what = argc > 1 ? argv[1] : "";
  mica::mpi::Session session(&argc, &argv);
  const auto world = mica::mpi::Communicator::world();
  const auto pool = mica::make_cpu_pool();
  const auto group = mica::make_mpi_group(world.duplicate(), *pool, "shard", {.node = world.rank() / 2});
  const auto stream = mica::make_cpu_stream("communication", mica::StreamMode::inlined);
  constexpr std::int64_t kNumel = 1'000'000;
  std::vector<float> all(4 * kNumel), own(kNumel);
  const mica::TensorView full{all.data(), mica::Shape{4 * kNumel}, mica::DType::f32};
  const mica::TensorView shard{own.data(), mica::Shape{kNumel}, mica::DType::f32};
  const auto communicate = [&] {
    if (what == "all_gather") group->all_gather(*stream, "h.0", shard, full);
    if (what == "reduce_scatter") group->reduce_scatter(*stream, "h.0", full, shard);
    if (what == "all_reduce") group->all_reduce(*stream, "h.0", full, mica::ReduceOp::sum);
    stream->synchronize();
  };
  communicate();
  std::printf("rank %d has sent %lld bytes to the other node\n", world.rank(), static_cast<long long>(group->bytes_to_other_nodes()));
  std::fflush(stdout);
  world.barrier();
  if (world.rank() == 3) {
    std::raise(SIGKILL);
  }
  communicate();
  std::printf("rank %d came out of the collective\n", world.rank());
  return 0;
}
