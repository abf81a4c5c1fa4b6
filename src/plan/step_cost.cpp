// SPDX-License-Identifier: Apache-2.0
#include "mica/plan/step_cost.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "mica/core/rounding.hpp"

namespace mica::plan {
namespace {

constexpr double kGiga = 1e9, kTera = 1e12, kMicro = 1e-6;

double flops_of(const ProductShape& p) { return 2.0 * static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k); }

double operand_bytes(const ProductShape& p) { return static_cast<double>((p.m * p.k + p.k * p.n + p.m * p.n) * dtype_bytes(p.dtype)); }

/// The largest share of the processors that a product keeps busy, over common tile sizes and splits of k.
double tile_efficiency(const ProductShape& p, int processors) {
  struct Tile {
    std::int64_t rows, columns;
  };
  constexpr std::array<Tile, 3> kTiles{{{128, 128}, {256, 128}, {128, 256}}};
  constexpr std::int64_t kShortestSum = 512;  // the shortest k per part that is worth splitting
  double best = 0;
  for (const Tile& tile : kTiles) {
    const std::int64_t tiles = divide_up(p.m, tile.rows) * divide_up(p.n, tile.columns);
    const double filled = static_cast<double>(p.m) * static_cast<double>(p.n) / static_cast<double>(tiles * tile.rows * tile.columns);
    for (std::int64_t parts = 1; parts <= 8 && (parts == 1 || p.k / parts >= kShortestSum); parts *= 2) {
      const std::int64_t rounds = divide_up(tiles * parts, processors);
      best = std::max(best, filled * static_cast<double>(tiles * parts) / static_cast<double>(rounds * processors));
    }
  }
  return best;
}

/// The share of its rate for heads of 128 that cuDNN's attention reaches with narrower ones: a score costs as many exponentials there, and
/// fewer products. cuDNN 9.19 on an H200, 1,024 tokens: 0.76 forward and 0.71 backward with heads of 64.
double head_dim_share(std::int64_t head_dim) {
  constexpr double kWide = 128, kHalf = 72;
  const double narrow = std::min(static_cast<double>(head_dim), kWide);
  return narrow / (narrow + kHalf) * (kWide + kHalf) / kWide;
}

AttentionRate attention_on(const Hardware& hardware, const CostOptions& options) {
  const Software* software = options.software;
  const bool is_softwares = software != nullptr && (!software->attention.empty() || !hardware.is_gpu);
  AttentionRate rate = is_softwares ? software->attention_on(hardware.name) : hardware.attention;
  if (!hardware.is_gpu) return rate;
  for (double* tflops : {&rate.forward_tflops, &rate.backward_tflops}) {
    if (!is_softwares) *tflops *= head_dim_share(options.head_dim);
    // The rates are those of tensor cores, which fused attention uses for 16-bit numbers only.
    if (options.dtype == DType::f32) *tflops = std::min(*tflops, hardware.product_tflops.fp32);
  }
  return rate;
}

double attention_seconds(const RecordedOp& op, const AttentionRate& rate, double tokens) {
  const double long_tflops = op.is_backward ? rate.backward_tflops : rate.forward_tflops;
  return op.attention_flops / (long_tflops * tokens / (tokens + rate.half_tokens) * kTera);
}

KernelCost cost_of(const RecordedOp& op, const Software* software) {
  if (software == nullptr) return {};
  const auto found = software->kernels.find(op.what);
  return found == software->kernels.end() ? KernelCost() : found->second;
}

struct Traffic {
  double in_node = 0, network = 0;  ///< bytes through a rank's link inside the node, and through its node's network
};

Traffic traffic_of(Collective kind, std::int64_t bytes, const GroupShape& group, int ranks_per_node, bool is_gpu) {
  const double n = group.num_ranks, full = static_cast<double>(bytes);
  // The node's other ranks are in other groups of the same shape.
  const double groups_on_node = std::max(1.0, static_cast<double>(ranks_per_node) / group.ranks_on_node);
  Traffic traffic;
  if (kind == Collective::all_to_all) {
    traffic.in_node = full * (group.ranks_on_node - 1) / n;
    traffic.network = full * (n - group.ranks_on_node) / n * group.ranks_on_node * groups_on_node;
    return traffic;
  }
  const double ways = kind == Collective::all_reduce ? 2 : 1;
  const double through = ways * full * (n - 1) / n;
  if (group.ranks_on_node > 1) traffic.in_node = through;
  // NCCL's ring passes every other rank's block on to the next node. On CPUs a node's ranks send their part of the whole to it once
  // ([Note: collectives by node]).
  const double parts = is_gpu ? n : group.num_nodes;
  if (group.num_nodes > 1) traffic.network = ways * full * (parts - 1) / parts * groups_on_node;
  return traffic;
}

}  // namespace

double product_seconds(const ProductShape& p, const Hardware& hardware, bool tf32) {
  if (p.m == 0 || p.n == 0 || p.k == 0) return 0;
  const double efficiency = hardware.processors == 0 ? 1 : tile_efficiency(p, hardware.processors);
  const double computing = flops_of(p) / (tflops_for(p.dtype, tf32, hardware.product_tflops, hardware) * kTera * efficiency);
  return std::max(computing, operand_bytes(p) / (hardware.memory_gb_s * kGiga));
}

double collective_seconds(Collective kind, std::int64_t bytes, const GroupShape& group, int ranks_per_node, const Hardware& hardware) {
  if (group.num_ranks == 1) return 0;
  const Traffic traffic = traffic_of(kind, bytes, group, ranks_per_node, hardware.is_gpu);
  const double network = hardware.network_gbps * hardware.network_efficiency * kGiga / 8;
  const double moving = std::max(traffic.in_node / (hardware.in_node_gb_s * kGiga), traffic.network / network);
  const int nodes = group.num_nodes, ways = kind == Collective::all_reduce ? 2 : 1;
  double best = std::numeric_limits<double>::max();
  for (const Protocol& p : hardware.protocols) {
    const double ring_us = ways * ((group.num_ranks - nodes) * p.in_node_step_us + (nodes - 1) * p.network_step_us);
    best = std::min(best, moving / p.bandwidth_share + (p.base_us + ring_us) * kMicro);
    if (kind != Collective::all_reduce && kind != Collective::barrier) continue;
    const int levels = std::bit_width(static_cast<unsigned>(nodes) - 1U);  // log2, rounded up
    const double tree_us = 2 * ((group.ranks_on_node - 1) * p.in_node_step_us + levels * p.network_step_us);
    constexpr double kTreeShare = 0.9;  // of a ring's bandwidth: NCCL, src/graph/tuning.cc
    best = std::min(best, moving / (p.bandwidth_share * kTreeShare) + (p.base_us + tree_us) * kMicro);
  }
  return best;
}

std::vector<SimOp> sim_ops(const StepRecord& record, const Hardware& hardware, const CostOptions& options) {
  const AttentionRate attention = attention_on(hardware, options);
  const auto kernel_seconds = [&](const RecordedOp& op) {
    double computing = op.attention_flops > 0 ? attention_seconds(op, attention, static_cast<double>(options.seq_len)) : 0;
    double operands = 0;
    for (std::int32_t i = 0; i < op.num_products; ++i) {
      const ProductShape& product = record.products[static_cast<std::size_t>(op.first_product + i)];
      computing += product_seconds(product, hardware, options.tf32);
      operands += operand_bytes(product);
    }
    // A product's task has the scratch memory of the CPU's kernels, which a GPU's do not take.
    const double bytes = hardware.is_gpu && op.num_products > 0 ? operands : static_cast<double>(op.bytes);
    const KernelCost cost = cost_of(op, options.software);
    const double moving = bytes / (hardware.memory_gb_s * cost.bandwidth * kGiga);
    return std::max(computing, moving) + cost.extra * moving + hardware.kernel_us * kMicro;
  };
  std::vector<SimOp> ops;
  ops.reserve(record.ops.size());
  for (const RecordedOp& op : record.ops) {
    SimOp sim{.stream = op.stream, .event = op.event};
    switch (op.kind) {
      case RecordedOp::Kind::kernel:
        sim.seconds = kernel_seconds(op);
        break;
      case RecordedOp::Kind::collective:
        sim.resource = op.group.num_nodes > 1 ? Resource::network : Resource::in_node;
        sim.seconds = collective_seconds(op.collective, op.bytes, op.group, options.ranks_per_node, hardware);
        break;
      case RecordedOp::Kind::wait:
        sim.kind = SimOp::Kind::wait;
        break;
      case RecordedOp::Kind::host_wait:
        sim.kind = SimOp::Kind::host_wait;
        break;
      case RecordedOp::Kind::mark:
        sim.kind = SimOp::Kind::mark;
        break;
    }
    ops.push_back(sim);
  }
  return ops;
}

StepTotals totals_of(const StepRecord& record, int step, int ranks_per_node, bool is_gpu) {
  StepTotals totals;
  int at = 0;
  for (const RecordedOp& op : record.ops) {
    if (op.kind == RecordedOp::Kind::mark) ++at;
    if (at != step) continue;
    if (op.kind == RecordedOp::Kind::kernel) {
      ++totals.num_kernels;
      totals.kernel_bytes += static_cast<double>(op.bytes);
      double product_flops = 0;
      for (std::int32_t i = 0; i < op.num_products; ++i) {
        product_flops += flops_of(record.products[static_cast<std::size_t>(op.first_product + i)]);
      }
      totals.product_flops += product_flops;
      totals.attention_flops += op.attention_flops;
      if (op.is_recomputed) totals.recomputed_flops += product_flops + op.attention_flops;
      // Backward computes 5 products of half the scores. MFU counts 2 + 4 products of all scores for forward and backward: 12 halves.
      if (op.is_backward) totals.model_attention_flops += op.attention_flops / 5 * 12;
    } else if (op.kind == RecordedOp::Kind::collective) {
      ++totals.num_collectives;
      const Traffic traffic = traffic_of(op.collective, op.bytes, op.group, ranks_per_node, is_gpu);
      totals.sent_in_node += traffic.in_node;
      totals.sent_to_network += traffic.network / ranks_per_node;
    }
  }
  return totals;
}

}  // namespace mica::plan
