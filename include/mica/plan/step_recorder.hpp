// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "mica/comm/process_group.hpp"
#include "mica/device/pool.hpp"
#include "mica/plan/step_record.hpp"

namespace mica::plan {

struct RecorderOptions {
  std::vector<int> nodes{0};   ///< of each rank of the world
  int rank = 0;                ///< whose work is recorded
  bool shares_memory = false;  ///< groups inside a node (ProcessGroup::shares_memory())
  DeviceKind device = DeviceKind::cpu;
  /// Of a GPU: buffers that NCCL registers (FakeGroupOptions::own_blocks_from). By default none.
  std::int64_t own_blocks_from = std::numeric_limits<std::int64_t>::max();
  // For attention, whose tasks do not carry these:
  std::int64_t seq_len = 1;
  DType dtype = DType::f32;  ///< of its output
  /// Bytes of staging (role communication) that a collective needs: kind, numel of the unsharded side, its dtype, ranks. Empty: none.
  std::function<std::int64_t(Collective, std::int64_t, DType, int)> staging_bytes{};
};

/// A device without memory or time, on which the runtime runs unchanged. Its streams record what is enqueued and drop the tasks, its pool
/// returns addresses without memory, and the other members of its groups (fake_group.hpp) do not exist.
/// [Note: dry device] So the order of work, its bytes and its FLOPs are the runtime's own, for any number of ranks, in little memory. The
/// host must not read what tasks would have written. Checks that compare ranks in the first step pass. Everything made here must be
/// destroyed before the recorder.
class StepRecorder {
 public:
  /// @throws ConfigError if options.rank is not one of the ranks
  explicit StepRecorder(RecorderOptions options);
  ~StepRecorder();
  StepRecorder(const StepRecorder&) = delete;
  StepRecorder& operator=(const StepRecorder&) = delete;

  /// @param name  unique
  [[nodiscard]] std::unique_ptr<Stream> make_stream(std::string name);
  /// A dry pool of options.device: a stream that reuses memory waits for its last uses, as on a machine.
  [[nodiscard]] std::unique_ptr<Pool> make_pool();
  /// The world group, as options.rank.
  [[nodiscard]] std::unique_ptr<ProcessGroup> make_world();
  /// The list for Kernels::record_products() of the kernels that run on these streams.
  [[nodiscard]] std::vector<ProductShape>* products();

  /// Starts recording. Earlier events count as complete.
  void begin();
  /// Marks the end of a step.
  void mark();
  /// Ends recording. @returns what was recorded
  [[nodiscard]] StepRecord take();

  struct State;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace mica::plan
