// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "mica/comm/collective.hpp"
#include "mica/core/dtype.hpp"
#include "mica/device/memory_role.hpp"
#include "mica/tensor/kernels.hpp"

namespace mica::plan {

/// How the members of a group are spread over nodes.
struct GroupShape {
  int num_ranks = 1;
  int num_nodes = 1;
  int ranks_on_node = 1;  ///< most members that share a node
  [[nodiscard]] bool operator==(const GroupShape&) const = default;
};

/// One operation that the host enqueued.
struct RecordedOp {
  enum class Kind : std::uint8_t {
    kernel,      ///< a task that computes or moves memory
    collective,  ///< a task that communicates
    wait,        ///< `stream` waits for op `event`
    host_wait,   ///< the host waits for op `event`
    mark,        ///< the end of a step; no task
  };
  Kind kind = Kind::kernel;
  std::uint8_t stream = 0;  ///< in StepRecord::streams
  const char* what = "";    ///< the task's name, a literal
  std::int64_t bytes = 0;   ///< of a kernel: read and written; of a collective: of the unsharded side
  // of a kernel
  std::int32_t first_product = 0, num_products = 0;  ///< in StepRecord::products
  double attention_flops = 0;                        ///< causal: for half of the scores
  bool is_backward = false;                          ///< for attention
  bool is_recomputed = false;                        ///< a forward that a checkpointed module computes again
  // of a collective
  Collective collective = Collective::barrier;
  GroupShape group{};
  std::int32_t group_name = 0;  ///< in StepRecord::groups
  // of a wait
  std::int32_t event = kNothing;  ///< index of the op that it waits for

  static constexpr std::int32_t kNothing = -1;  ///< already complete
};

/// What a rank's host enqueues in some steps, with everything that a simulator needs. It points to nothing but string literals.
struct StepRecord {
  std::vector<std::string> streams;
  std::vector<std::string> groups;  ///< names
  std::vector<RecordedOp> ops;
  std::vector<ProductShape> products;
};

}  // namespace mica::plan
