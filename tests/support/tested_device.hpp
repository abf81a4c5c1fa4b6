// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "mica/comm/process_group.hpp"
#include "mica/tensor/kernels.hpp"

namespace mica::testing {

/// What a test's ranks compute on.
struct TestedDevice {
  std::function<std::unique_ptr<Pool>()> make_pool = make_cpu_pool;
  std::function<std::unique_ptr<Kernels>(Pool&)> make_kernels = [](Pool& pool) { return make_cpu_kernels(pool); };
  std::function<std::unique_ptr<Stream>(std::string, StreamMode)> make_stream = make_cpu_stream;
  /// What the ranks' group for memory of the host becomes.
  std::function<std::unique_ptr<ProcessGroup>(std::unique_ptr<ProcessGroup>)> make_group = [](std::unique_ptr<ProcessGroup> host) {
    return host;
  };
};

}  // namespace mica::testing
