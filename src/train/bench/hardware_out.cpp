// SPDX-License-Identifier: Apache-2.0
#include "hardware_out.hpp"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>

#include <nlohmann/json.hpp>

#include "mica/comm/host_comm.hpp"
#include "mica/core/host.hpp"
#include "mica/plan/hardware.hpp"
#include "mica/train/memory_limit.hpp"

#include "host_buffer.hpp"
#include "output_file.hpp"
#include "report.hpp"
#include "timing.hpp"

namespace mica::train::bench {
namespace {

constexpr std::string_view kFlag = "--hardware-out";
constexpr double kGiga = 1e9, kGiB = 1024.0 * 1024 * 1024;

/// Seconds of one call on the slowest rank, the median of 5 rounds.
template <class Work>
double seconds_of(const mpi::Communicator& world, int calls, const Work& work) {
  constexpr int kRounds = 5;
  std::vector<double> times;
  for (int round = 0; round < kRounds + 1; ++round) {
    const double seconds = timed_together(world, [&] {
      for (int call = 0; call < calls; ++call) work();
    });
    if (round > 0) times.push_back(seconds / calls);
  }
  return median(times);
}

struct Attention {
  double forward_tflops = 0, backward_tflops = 0;
};

/// GPT-2 small's attention of one sequence of 512 tokens, in f32.
Attention measure_attention(const mpi::Communicator& world, Kernels& kernels, Stream& stream) {
  const AttentionShape shape{.batch = 1, .seq_len = 512, .heads = 12, .head_dim = 64};
  const std::int64_t t = shape.seq_len, c = shape.q_width();
  const HostBuffer in(t * 3 * c * 4), out(t * c * 4), lse(shape.heads * t * 4), d_in(t * 3 * c * 4);
  const TensorView qkv(in.data(), {1, t, 3 * c}, DType::f32), y(out.data(), {1, t, c}, DType::f32);
  const TensorView sums(lse.data(), {1, shape.heads, t}, DType::f32), dqkv(d_in.data(), {1, t, 3 * c}, DType::f32);
  const double forward_s = seconds_of(world, 4, [&] { kernels.attention(stream, shape, qkv, y, sums); });
  const double backward_s = seconds_of(world, 4, [&] { kernels.attention_backward(stream, shape, y, qkv, y, sums, dqkv); });
  // Causal: half of 2 and of 5 products of [T,D] and [D,T] a head, 2 operations each.
  const double product = static_cast<double>(t * t * c);
  return {.forward_tflops = 2 * product / forward_s * 1e-12, .backward_tflops = 5 * product / backward_s * 1e-12};
}

void write_file(const std::string& path, const Row& json) {
  const std::string text = json.dump(1) + "\n";
  static_cast<void>(plan::parse_hardware(text, path));  // check that the file can be read
  write_output(kFlag, path, text);
}

Row read_file(const std::string& path) {
  std::ifstream file(path);
  require<ConfigError>(file.good(), "--hardware-out={} does not exist: mica-bench gemm --hardware-out={} creates it", path, path);
  Row json = Row::parse(file, nullptr, false);
  require<ConfigError>(json.is_object() && json.contains("sources"),
                       "--hardware-out={} is not a hardware file: create one with mica-bench gemm --hardware-out", path);
  return json;
}

}  // namespace

void check_computing_out(const std::string& path, const mpi::Communicator& world, bool has_all_dtypes) {
  require<ConfigError>(has_all_dtypes, "--hardware-out needs both dtypes: mica-bench gemm without --dtypes");
  if (world.rank() == 0) require_writable(kFlag, path);
}

void check_links_out(const std::string& path, const mpi::Communicator& world) {
  require<ConfigError>(world.num_ranks() > 1, "--hardware-out needs 2 ranks or more: mpirun -np 2 mica-bench comm --hardware-out={}", path);
  if (world.rank() != 0) return;
  static_cast<void>(read_file(path));
  require_writable(kFlag, path);
}

void write_computing(const std::string& path, const mpi::Communicator& world, Kernels& kernels, const MeasuredComputing& measured) {
  const std::unique_ptr<Stream> stream = make_cpu_stream("compute", StreamMode::inlined);
  const Attention attention = measure_attention(world, kernels, *stream);
  const std::int64_t copied = 64 << 20;
  const HostBuffer from(copied), to(copied);
  const TensorView source(from.data(), {copied / 4}, DType::f32), target(to.data(), {copied / 4}, DType::f32);
  const double copy_s = seconds_of(world, 1, [&] { kernels.copy(*stream, source, target); });
  const TensorView one(to.data(), {1}, DType::f32);
  const double task_s = seconds_of(world, 1000, [&] { kernels.fill(*stream, one, 0.0); });
  stream->synchronize();  // throws if a task failed
  const int node_ranks = world.split_node().num_ranks();
  const std::string source_text = fmt::format("measured by mica-bench gemm on {} ranks", world.num_ranks());
  make_mpi_comm(world)->from_first_rank([&] {
    const double fp32 = measured.fp32_tflops, bf16 = measured.bf16_tflops;
    const std::vector<MemoryLimit> limits = memory_limits();
    const auto memory = static_cast<double>(std::ranges::min_element(limits, {}, &MemoryLimit::bytes)->bytes);
    const double threads = measured.threads;
    Row json{{"name", host_name()},
             {"device", "cpu"},
             {"ranks_per_node", node_ranks},
             {"threads", measured.threads},
             {"memory_gib", memory / kGiB / node_ranks},
             {"reserved_gib", 0.1},
             {"peak_tflops", {{"fp32", fp32}, {"bf16", bf16}}},
             {"product_tflops", {{"fp32", fp32}, {"bf16", bf16}}},
             {"attention_forward_tflops", attention.forward_tflops},
             {"attention_backward_tflops", attention.backward_tflops},
             {"attention_half_tokens", 0},
             {"processors", 0},
             {"memory_gb_s", 2 * static_cast<double>(copied) / copy_s / kGiga},
             {"kernel_us", 0},
             {"host_task_us", task_s * 1e6},
             {"host_wait_us", 0},
             {"in_node_gb_s", static_cast<double>(copied) / copy_s / kGiga / 2},
             {"network_gbps", 100},
             {"network_efficiency", 1},
             {"protocols", Row::array({{{"bandwidth_share", 1}, {"base_us", 5}, {"in_node_step_us", 0.5}, {"network_step_us", 5}}})},
             {"compute_beside_communication", threads / (threads + 1)},
             {"communication_beside_compute", threads / (threads + 1)},
             {"storage_gb_s", 1},
             {"rank_mtbf_hours", 50677},
             {"restart_s", 60}};
    Row sources;
    for (const auto& [key, value] : json.items()) {
      if (key != "name" && key != "device") sources[key] = source_text;
    }
    sources["peak_tflops"] = "the measured rate of matrix products: MFU is relative to what this machine reaches, not to its data sheet";
    sources["attention_half_tokens"] = "none: the rate at 512 tokens is used for all lengths";
    sources["processors"] = "none: products are not cut into tiles";
    sources["kernel_us"] = sources["host_wait_us"] = "counted in host_task_us";
    sources["compute_beside_communication"] = sources["communication_beside_compute"] = "one communicating thread shares the cores evenly";
    for (const char* key : {"reserved_gib", "network_gbps", "network_efficiency", "storage_gb_s", "rank_mtbf_hours", "restart_s"}) {
      sources[key] = "assumption; edit it";
    }
    sources["in_node_gb_s"] = sources["protocols"] = "assumption; mica-bench comm --hardware-out measures it";
    json["sources"] = sources;
    write_file(path, json);
    return std::string();
  });
}

void write_links(const std::string& path, const mpi::Communicator& world, const MeasuredLinks& measured) {
  const int on_node = world.split_node().num_ranks();
  make_mpi_comm(world)->from_first_rank([&] {
    const double n = world.num_ranks();
    Row json = read_file(path);
    // The mean, since a step moves about as many bytes in all-gathers as in reduce-scatters.
    const double seconds = (measured.gather_s + measured.reduce_scatter_s) / 2 - measured.small_gather_s;
    // Through a rank's link inside the node: the others' parts. Through the node's: the other nodes'.
    const bool is_one_node = on_node == world.num_ranks();
    const double parts = is_one_node ? n : n / on_node;
    const double gb_s = static_cast<double>(measured.bytes) * (parts - 1) / parts / std::max(seconds, 1e-9) / kGiga;
    const std::string source_text = fmt::format("measured by mica-bench comm on {} ranks, {} per node", world.num_ranks(), on_node);
    Row& protocol = json["protocols"][0];
    if (is_one_node) {
      json["in_node_gb_s"] = gb_s;
      json["sources"]["in_node_gb_s"] = source_text;
      protocol["base_us"] = measured.small_gather_s * 1e6;
      protocol["in_node_step_us"] = 0;  // included in base_us
    } else {
      json["network_gbps"] = gb_s * 8;
      json["network_efficiency"] = 1;
      json["sources"]["network_gbps"] = json["sources"]["network_efficiency"] = source_text;
      const double nodes = n / on_node;
      protocol["network_step_us"] = std::max(0.0, measured.small_gather_s * 1e6 - protocol["base_us"].get<double>()) / (nodes - 1);
    }
    json["sources"]["protocols"] = source_text;
    write_file(path, json);
    return std::string();
  });
}

}  // namespace mica::train::bench
