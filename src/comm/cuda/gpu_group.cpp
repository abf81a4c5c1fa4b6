// SPDX-License-Identifier: Apache-2.0
#include "gpu_group.hpp"

#include "mica/comm/gpu_groups.hpp"

namespace mica {

void connect_groups(std::initializer_list<ProcessGroup*> groups) {
  for (ProcessGroup* group : groups) {
    if (auto* of_gpus = dynamic_cast<cuda::GpuGroup*>(group)) of_gpus->connect();
  }
}

ProcessGroup& host_group_of(ProcessGroup& group) {
  auto* of_gpus = dynamic_cast<cuda::GpuGroup*>(&group);
  return of_gpus ? of_gpus->on_host() : group;
}

}  // namespace mica
