// SPDX-License-Identifier: Apache-2.0
#include "init_variables.hpp"

#include <array>
#include <cstdlib>
#include <string_view>
#include <utility>

namespace mica::mpi {
namespace {

constexpr std::array<std::pair<const char*, const char*>, 2> kOnOneNode{{{"OMPI_MCA_pml", "ob1"}, {"HWLOC_COMPONENTS", "no_os,stop"}}};

/// Whether Open MPI's mpirun started all ranks on this node, as it tells them.
bool is_on_one_node() {
  const char* ranks = std::getenv("OMPI_COMM_WORLD_SIZE");
  const char* here = std::getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
  return ranks != nullptr && here != nullptr && std::string_view(ranks) == here;
}

}  // namespace

InitVariables::InitVariables() {
  if (!is_on_one_node()) return;
  for (const auto& [name, value] : kOnOneNode) {
    if (std::getenv(name) != nullptr) continue;
    // ob1 sends through the BTLs: those that somebody has chosen may not reach a rank of the node.
    if (std::string_view(name) == "OMPI_MCA_pml" && std::getenv("OMPI_MCA_btl") != nullptr) continue;
    setenv(name, value, /*overwrite=*/1);
    ours_.push_back(name);
  }
}

InitVariables::~InitVariables() {
  for (const char* name : ours_) unsetenv(name);
}

}  // namespace mica::mpi
