// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "mica/comm/process_group.hpp"
#include "mica/device/pool.hpp"
#include "mica/plan/step_record.hpp"

namespace mica::plan {

struct RecorderOptions {
  int num_ranks = 1;
  int ranks_per_node = 1;  ///< rank r is on node r / ranks_per_node
  // Of attention, whose tasks do not say it:
  std::int64_t seq_len = 1;
  DType dtype = DType::f32;  ///< of its output
  /// Staging (role communication) that a collective takes while it is enqueued: kind, numel of the unsharded side, its dtype, ranks.
  /// Empty: none.
  std::function<std::int64_t(Collective, std::int64_t, DType, int)> staging_bytes{};
};

/// A device without memory or time, on which the runtime runs unchanged: its streams write down what is enqueued and drop the tasks,
/// its pool hands out addresses that nobody may touch, and its groups (fake_group.hpp) have members that do not exist.
/// [Note: dry device] So the order of work, its bytes and its FLOPs are the runtime's own, for any number of ranks, in little memory.
/// The host must not read what tasks would have written; what ranks agree on in a first step is taken as agreed.
/// Everything made here must be destroyed before the recorder.
class StepRecorder {
 public:
  explicit StepRecorder(RecorderOptions options);
  ~StepRecorder();
  StepRecorder(const StepRecorder&) = delete;
  StepRecorder& operator=(const StepRecorder&) = delete;

  /// @param name  unique.
  [[nodiscard]] std::unique_ptr<Stream> make_stream(std::string name);
  /// Counts as every pool does. Freed memory is given to the next allocation of as many bytes, which waits for its last uses.
  [[nodiscard]] std::unique_ptr<Pool> make_pool();
  /// The world, seen by its first rank.
  [[nodiscard]] std::unique_ptr<ProcessGroup> make_world();
  /// Where the kernels of the dry streams report their products: Kernels::record_products().
  [[nodiscard]] std::vector<ProductShape>* products();

  /// From here on ops are kept. Events before it count as complete.
  void begin();
  /// The end of a step.
  void mark();
  /// What was kept; nothing is from here on.
  [[nodiscard]] StepRecord take();

  struct State;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace mica::plan
