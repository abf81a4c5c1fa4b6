// SPDX-License-Identifier: Apache-2.0
// gpu_groups.hpp in a build without CUDA.
#include "mica/comm/gpu_groups.hpp"

#include "mica/core/error.hpp"

namespace mica {
namespace {
[[noreturn]] void refuse(const char* backend) {
  throw ConfigError(fmt::format(
      "mesh.backend={} needs CUDA, but this build has none: build Mica on a machine with nvcc (preset cuda), or use mesh.backend=mpi",
      backend));
}
}  // namespace

std::unique_ptr<ProcessGroup> make_nccl_group(std::unique_ptr<ProcessGroup>, const NcclOptions&) { refuse("nccl"); }
std::unique_ptr<ProcessGroup> make_staged_group(std::unique_ptr<ProcessGroup>, Pool&, const StagedOptions&) { refuse("staged"); }
void connect_groups(std::initializer_list<ProcessGroup*>) {}
ProcessGroup& host_group_of(ProcessGroup& group) { return group; }
std::string nccl_version_text() { return "not built in"; }
bool nccl_can_register() { return false; }

}  // namespace mica
