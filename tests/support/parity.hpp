// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "mica/comm/mesh.hpp"
#include "mica/fsdp/wrap_policy.hpp"
#include "mica/nn/models/gpt2.hpp"

#include "support/failing_group.hpp"
#include "support/tested_device.hpp"

namespace mica::testing {

/// One point of the parity matrix (docs/design.md, Invariants 3).
struct ParityCase {
  /// Large: with tables whose gradients ranks share, where they share memory ([Note: shared gradients]).
  enum class Model : std::uint8_t { gpt2, llama, large_gpt2, large_llama } model = Model::gpt2;
  fsdp::Strategy strategy = fsdp::Strategy::full_shard;
  int shard_size = 0;  ///< 0: the world
  DType param_dtype = DType::f32;
  DType reduce_dtype = DType::f32;
  enum class Wrap : std::uint8_t { block, size, none } wrap = Wrap::block;
  fsdp::BackwardPrefetch backward_prefetch = fsdp::BackwardPrefetch::pre;
  bool forward_prefetch = false;
  bool limit_all_gathers = true;
  bool checkpointed = false;
  int accumulation = 1;
  bool no_sync = false;
  fsdp::Sharding sharding = fsdp::Sharding::flat;
  fsdp::CpuOffload cpu_offload = fsdp::CpuOffload::none;
  int reshard_ranks = 0;  ///< reshard_after_forward_ranks
  StreamMode mode = StreamMode::inlined;
  fsdp::GradientReduction* reduction = nullptr;  ///< null: the default one
  bool deterministic = false;
  bool shares_memory = false;  ///< the world's groups do (whoever makes the world sees to it)

  [[nodiscard]] std::string describe() const;
  /// Whether units' masters, or casts of them, can be shared on a world of so many ranks that shares memory.
  [[nodiscard]] bool can_share(int world_size) const;
  /// Of so many units on such a world, those that a forward gathers.
  [[nodiscard]] std::int64_t num_gathered(std::int64_t num_units, int world_size) const;
};

/// What a run of a few SGD steps gives.
struct ParityRun {
  friend bool operator==(const ParityRun&, const ParityRun&) = default;

  std::vector<std::vector<float>> losses;           ///< [step][micro-batch], global micro-batch order
  std::vector<std::vector<float>> parameters;       ///< whole masters, module order
  std::vector<std::vector<float>> first_gradients;  ///< whole gradients of step 1, averaged
};

inline constexpr int kParitySteps = 3;
inline constexpr double kParityLr = 0.5;

/// A GPT-2 with odd sizes, tied embeddings and dropout: 2 blocks, width 12, vocabulary 19, 5 tokens. Or a Llama of as
/// many blocks, width 10, 4 heads of 6 in 2 groups, with a head of its own. The large ones have 1 block, width 64 and a vocabulary of
/// 4,099.
[[nodiscard]] std::unique_ptr<nn::Module> make_parity_model(ParityCase::Model model = ParityCase::Model::gpt2);

/// The plain single-rank run: no sharding code at all; num_ranks * accumulation micro-batches a step, in global order.
[[nodiscard]] ParityRun run_plain(int num_ranks, int accumulation, DType param_dtype, ParityCase::Model model = ParityCase::Model::gpt2,
                                  const TestedDevice& device = {});

/// What wraps each of a rank's streams (checking, delays); identity by default.
using WrapStream = std::function<std::unique_ptr<Stream>(std::unique_ptr<Stream>)>;

/// Counts of one training step, from the process groups.
struct StepCounts {
  std::int64_t all_gathers_in_forward = 0;
  std::int64_t all_gathers_in_backward = 0;
  std::int64_t reduce_scatters = 0;
  std::int64_t all_reduces = 0;
  std::int64_t num_units = 0;
};

struct RunOptions {
  StepCounts* counts = nullptr;
  WrapStream wrap_stream;
  TestedDevice device;
  /// Collectives of step 2 are made to fail as it says; the step is abandoned and done again.
  FailurePlan* failures = nullptr;
};

/// The same under fsdp on this rank of `world`. Every rank returns the same whole result. @collective
[[nodiscard]] ParityRun run_sharded(std::unique_ptr<ProcessGroup> world, const ParityCase& parity_case, const RunOptions& options = {});

/// Fails the current test where `run` leaves the plain run by more than rounding. [Note: parity tolerance]
void expect_parity(const ParityRun& plain, const ParityRun& run, const ParityCase& parity_case);

/// Fails the current test unless the counts are exactly those of docs/parity.md D1.
void expect_counts(const StepCounts& counts, const ParityCase& parity_case, int world_size);

/// Strategies and grids x dtypes x wrappings x prefetches x checkpointing x accumulations x stream modes, and smaller switches spread over
/// them: 216 cases for each strategy and grid. The first cases have each strategy and grid equally often, and random settings,
/// the same in every run.
[[nodiscard]] std::vector<ParityCase> parity_matrix(int world_size);

}  // namespace mica::testing
