// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <thread>

#include <sched.h>

#include "mica/comm/mpi_group.hpp"
#include "mica/tensor/openmp.hpp"
#include "mica/tensor/raw_product.hpp"

#include "benches.hpp"
#include "command_line.hpp"
#include "hardware_out.hpp"
#include "host_buffer.hpp"
#include "report.hpp"
#include "timing.hpp"

namespace mica::train::bench {
namespace {

constexpr const char* kCommHelp = R"(mica-bench comm [--flags]

Collectives over all ranks in fp32, in GB/s of the unsharded buffer, compared with a memcpy of as many bytes by all ranks at once, all in
memory from the pool, as in a training. Figures are of the slowest rank, the median of the repeats. crossed_mib: MiB that one call sends
between nodes, summed over nodes, as far as Mica sends it itself (slices above 32 KiB).

  OMP_NUM_THREADS=1 mpirun -np 2 mica-bench comm --mib 1,16,64
  OMP_NUM_THREADS=1 mpirun -np 16 --map-by ppr:8:node mica-bench comm --ranks-per-node 16     as if all ranks were on one node
  OMP_NUM_THREADS=1 mpirun -np 2 mica-bench comm --idle-cost
  OMP_NUM_THREADS=1 mpirun -np 2 mica-bench comm --mib 16 --hardware-out=this.json
  python3 scripts/peers/torch_comm.py --ranks 2 --mib 64           the same for PyTorch's gloo

--idle-cost: rank 0 multiplies matrices on one core, while a stream's thread on the same core waits in a collective for ranks that sleep.
The matrix product should keep 97 % of its speed: a waiting collective must not use a core. It takes no other flag
than --repeats.
)";

struct CommOptions {
  std::string mib = "1,16,64";
  std::int64_t repeats = 9;
  int ranks_per_node = 0;
  bool idle_cost = false;
  std::string hardware_out;
};

double gb_per_s(std::int64_t bytes, double seconds) { return rounded(static_cast<double>(bytes) / seconds * 1e-9, 4); }

/// Places as if this many ranks shared a node; empty for 0: MPI decides.
std::vector<RankPlace> supposed_places(int num_ranks, int ranks_per_node) {
  std::vector<RankPlace> places;
  for (int r = 0; ranks_per_node > 0 && r < num_ranks; ++r) places.push_back({r, "supposed", r / ranks_per_node, r % ranks_per_node});
  return places;
}

void bench_collectives(App& app, const CommOptions& options) {
  const int ranks = app.world.num_ranks();
  const auto pool = make_cpu_pool();
  const auto stream = make_cpu_stream("collectives", StreamMode::inlined);
  const Mesh mesh = make_mpi_mesh(app.world, {.kind = ShardSize::Kind::world}, *pool, {}, supposed_places(ranks, options.ranks_per_node));
  ProcessGroup& group = mesh.world();
  std::vector<std::int64_t> sizes;
  app.comm.agree([&] { sizes = parse_numbers("mib", options.mib); });
  Report report(app.world.rank() == 0);
  MeasuredLinks links;
  for (const std::int64_t mib : sizes) {
    const std::int64_t shard_numel = mib * (1 << 18) / ranks;
    const std::int64_t numel = shard_numel * ranks;
    // From the pool, as in a training: in huge pages, which one process reads from another faster than small ones.
    const auto memory = [&](std::int64_t n) { return pool->allocate(n * 4, MemoryRole::communication, *stream); };
    const Buffer full_memory = memory(numel), shard_memory = memory(shard_numel), other = memory(numel);
    const TensorView full(full_memory.data(), {numel}, DType::f32);
    const TensorView shard(shard_memory.data(), {shard_numel}, DType::f32);
    for (const TensorView& view : {full, shard}) std::fill_n(view.as<float>(), view.numel(), 0.0078F);
    const auto time = [&](auto&& work) {
      std::vector<double> times;
      for (std::int64_t i = 0; i < options.repeats + 2; ++i) {
        const double seconds = timed_together(app.world, work);
        if (i >= 2) times.push_back(seconds);
      }
      return median(times);
    };
    const auto crossed_mib = [&](auto&& collective) {
      const std::int64_t before = group.bytes_to_other_nodes();
      collective();
      stream->synchronize();
      return rounded(static_cast<double>(app.world.all_sum(group.bytes_to_other_nodes() - before)) / (1 << 20), 3);
    };
    const auto gather = [&] { group.all_gather(*stream, "bench", shard, full); };
    const auto scatter = [&] { group.reduce_scatter(*stream, "bench", full, shard); };
    // A maximum, not a sum: the numbers do not grow when it is repeated.
    const auto reduce = [&] { group.all_reduce(*stream, "bench", full, ReduceOp::max); };
    const double gather_s = time(gather);
    const double scatter_s = time(scatter);
    const TensorView received(other.data(), {numel}, DType::f32);
    const double swap_s = time([&] { group.all_to_all(*stream, "bench", full, received); });
    const double reduce_s = time(reduce);
    if (numel * 4 > links.bytes) {
      const TensorView few(full_memory.data(), {ranks}, DType::f32);
      const double small_s = time([&] { group.all_gather(*stream, "bench", few.slice(app.world.rank(), 1), few); });
      links = {.bytes = numel * 4, .gather_s = gather_s, .reduce_scatter_s = scatter_s, .small_gather_s = small_s};
    }
    const double copy_s = time([&] { std::memcpy(other.data(), full.data, static_cast<std::size_t>(full.bytes())); });
    stream->synchronize();
    report.add({{"bench", "comm"},
                {"ranks", ranks},
                {"mib", mib},
                {"all_gather_gb_s", gb_per_s(numel * 4, gather_s)},
                {"reduce_scatter_gb_s", gb_per_s(numel * 4, scatter_s)},
                {"all_reduce_gb_s", gb_per_s(numel * 4, reduce_s)},
                {"all_to_all_gb_s", gb_per_s(numel * 4, swap_s)},
                {"all_gather_crossed_mib", crossed_mib(gather)},
                {"reduce_scatter_crossed_mib", crossed_mib(scatter)},
                {"all_reduce_crossed_mib", crossed_mib(reduce)},
                {"memcpy_gb_s", gb_per_s(numel * 4, copy_s)}});
  }
  report.print_table();
  if (!options.hardware_out.empty()) write_links(options.hardware_out, app.world, links);
}

/// Pins this thread, and threads that it starts later, to one core.
void pin_to_one_core(int index) {
  cpu_set_t allowed;
  const bool is_known = sched_getaffinity(0, sizeof allowed, &allowed) == 0;  // before errno may change
  require<IoError>(is_known, "sched_getaffinity failed: {}", errno_text(errno));
  int skip = index % std::max(1, CPU_COUNT(&allowed));
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &allowed) || skip-- > 0) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    const bool is_pinned = sched_setaffinity(0, sizeof one, &one) == 0;
    require<IoError>(is_pinned, "cannot pin to core {}: {}", core, errno_text(errno));
    return;
  }
}

void bench_idle_cost(App& app, const CommOptions& options) {
  constexpr auto kPhase = std::chrono::milliseconds(400);
  constexpr std::int64_t kSide = 512;
  app.comm.agree([&] {
    require<ConfigError>(app.world.num_ranks() > 1, "--idle-cost needs 2 ranks or more: mpirun -np 2 mica-bench comm --idle-cost");
    require<ConfigError>(comm_stream_mode(app.session, StreamMode::threaded) == StreamMode::threaded,
                         "--idle-cost needs an MPI that grants MPI_THREAD_MULTIPLE: this one does not, and Mica then makes "
                         "all calls on one thread");
    pin_to_one_core(app.world.rank());
  });
  const bool computes = app.world.rank() == 0;
  const auto pool = make_cpu_pool();
  const auto stream = make_cpu_stream("waiting", StreamMode::threaded);
  const Mesh mesh = make_mpi_mesh(app.world, {.kind = ShardSize::Kind::world}, *pool);
  const std::int64_t shard_numel = 1 << 18;
  const HostBuffer shard_memory(shard_numel * 4), full_memory(shard_numel * 4 * app.world.num_ranks());
  const TensorView shard(shard_memory.data(), {shard_numel}, DType::f32);
  const TensorView full(full_memory.data(), {shard_numel * app.world.num_ranks()}, DType::f32);
  const HostBuffer a(kSide * kSide * 4), b(kSide * kSide * 4), c(kSide * kSide * 4);
  const auto product = make_raw_product({kSide, kSide, kSide, false, false, DType::f32});

  // Matrix products per second during one phase in which the other ranks sleep. If `waiting`, a collective of rank 0 waits for them
  // meanwhile.
  const auto phase = [&](bool waiting) {
    app.world.barrier();
    if (!computes) {
      std::this_thread::sleep_for(kPhase * 1.25);
      if (waiting) mesh.world().all_gather(*stream, "waited for", shard, full);
      stream->synchronize();
      return 0.0;
    }
    if (waiting) mesh.world().all_gather(*stream, "waited for", shard, full);
    std::this_thread::sleep_for(kPhase * 0.1);  // the collective is waiting by now
    const double begin = now_s();
    int count = 0;
    while (now_s() - begin < std::chrono::duration<double>(kPhase).count()) {
      product->run(a.data(), b.data(), c.data());
      ++count;
    }
    const double speed = count / (now_s() - begin);
    stream->synchronize();
    return speed;
  };
  std::vector<double> alone, beside, ratios;
  phase(false);
  for (std::int64_t i = 0; i < options.repeats; ++i) {
    alone.push_back(phase(false));
    beside.push_back(phase(true));
    ratios.push_back(computes ? beside.back() / alone.back() : 0);
  }
  const auto gf_s = [&](const std::vector<double>& speeds) { return rounded(2.0 * std::pow(kSide, 3) * median(speeds) * 1e-9, 1); };
  Report report(computes);
  report.add({{"bench", "comm"},
              {"case", "idle-cost"},
              {"ranks", app.world.num_ranks()},
              {"product_alone_gf_s", gf_s(alone)},
              {"product_beside_gf_s", gf_s(beside)},
              {"speed_kept_percent", rounded(100 * median(ratios), 1)}});
  report.print_table();
}

po::options_description flags_of(CommOptions& options) {
  po::options_description flags("Flags");
  auto add = flags.add_options();
  add("mib", po::value(&options.mib)->default_value(options.mib), "sizes of the unsharded buffer in MiB, separated by commas");
  add("repeats", po::value(&options.repeats)->default_value(options.repeats), "timed calls of each collective, or pairs with --idle-cost");
  add("ranks-per-node", po::value(&options.ranks_per_node)->default_value(options.ranks_per_node),
      "run collectives as if this many consecutive ranks shared a node; 0: ranks that share memory do");
  add("hardware-out", po::value(&options.hardware_out), "add the measured figures to a file that gemm --hardware-out has written");
  add("idle-cost", po::bool_switch(&options.idle_cost), "instead measure how much a waiting collective slows down a matrix product");
  return flags;
}

}  // namespace

std::string comm_help() {
  CommOptions defaults;
  return help_text(kCommHelp, flags_of(defaults));
}

ExitCode bench_comm(App& app, const Arguments& arguments) {
  CommOptions options;
  read_flags(app, arguments, flags_of(options));
  app.comm.agree([&] {
    require<ConfigError>(options.repeats >= 1, "--repeats={}, expected at least 1", options.repeats);
    require<ConfigError>(options.ranks_per_node >= 0, "--ranks-per-node={}, expected 0 or more", options.ranks_per_node);
    require<ConfigError>(!options.idle_cost || (options.mib == CommOptions().mib && options.ranks_per_node == 0),
                         "--idle-cost has one size and the real nodes: leave out --mib and --ranks-per-node");
    if (options.hardware_out.empty()) return;
    require<ConfigError>(!options.idle_cost, "--hardware-out: --idle-cost measures nothing that a hardware file holds");
    require<ConfigError>(options.ranks_per_node == 0,
                         "--hardware-out: leave out --ranks-per-node, which supposes nodes other than the real ones");
    check_links_out(options.hardware_out, app.world);
  });
  set_openmp_threads(1);
  options.idle_cost ? bench_idle_cost(app, options) : bench_collectives(app, options);
  return ExitCode::done;
}

}  // namespace mica::train::bench
