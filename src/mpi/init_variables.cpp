// SPDX-License-Identifier: Apache-2.0
#include "init_variables.hpp"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <dlfcn.h>

namespace mica::mpi {
namespace {

constexpr const char* kPml = "OMPI_MCA_pml";
constexpr const char* kHwloc = "HWLOC_COMPONENTS";

/// Whether Open MPI's mpirun started all ranks on this node, as it tells them.
bool is_on_one_node() {
  const char* ranks = std::getenv("OMPI_COMM_WORLD_SIZE");
  const char* here = std::getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
  return ranks != nullptr && here != nullptr && std::string_view(ranks) == here;
}

/// The folder of the MPI library; empty if it cannot be told.
std::string library_folder() {
  Dl_info found{};
  const void* const symbol = ::dlsym(RTLD_DEFAULT, "MPI_Init");
  if (symbol == nullptr || ::dladdr(symbol, &found) == 0 || found.dli_fname == nullptr) return {};
  const std::string file = found.dli_fname;
  return file.substr(0, file.rfind('/'));
}

/// Open MPI's parameter files: the user's, and those of the places where it may be installed.
std::vector<std::string> parameter_files() {
  std::vector<std::string> files;
  if (const char* chosen = std::getenv("OMPI_MCA_mca_base_param_files")) {
    std::istringstream names(chosen);
    for (std::string path; std::getline(names, path, ',');) files.push_back(path);
    return files;
  }
  for (const std::string& folder : {library_folder() + "/../etc", std::string("/etc/openmpi"), std::string("/etc/openmpi-x86_64")}) {
    files.push_back(folder + "/openmpi-mca-params.conf");  // the second is Debian's, the third Red Hat's
  }
  if (const char* prefix = std::getenv("OPAL_PREFIX")) files.push_back(std::string(prefix) + "/etc/openmpi-mca-params.conf");
  if (const char* home = std::getenv("HOME")) files.push_back(std::string(home) + "/.openmpi/mca-params.conf");
  return files;
}

/// Whether a list of components says which to use, or leaves out one through which ob1 sends on a node. "^ucx" does neither.
bool is_choice(std::string list) {
  if (!list.starts_with('^')) return true;
  std::ranges::replace(list, ',', ' ');
  std::istringstream left_out(list.substr(1));
  return std::any_of(std::istream_iterator<std::string>(left_out), {}, [](const std::string& component) {
    return component == "ob1" || component == "vader" || component == "sm" || component == "self";
  });
}

/// Whether a line "NAME = VALUE" of a parameter file chooses one of the two.
bool is_transport_chosen(std::istream& file) {
  for (std::string line; std::getline(file, line);) {
    const std::size_t equals = line.find('=');
    if (equals == std::string::npos) continue;
    std::string name, value;
    std::istringstream(line.substr(0, equals)) >> name;
    std::istringstream(line.substr(equals + 1)) >> value;
    if ((name == "pml" || name == "btl") && is_choice(value)) return true;
  }
  return false;
}

/// Whether the user or the site has chosen how ranks send. The environment would outrank a site's parameter file. And ob1 sends through
/// the BTLs: those that somebody has chosen may not reach a rank of the node.
bool is_transport_chosen() {
  if (std::getenv(kPml) != nullptr || std::getenv("OMPI_MCA_btl") != nullptr) return true;
  for (const std::string& path : parameter_files()) {
    std::ifstream file(path);
    if (is_transport_chosen(file)) return true;
  }
  return false;
}

}  // namespace

InitVariables::InitVariables() {
  if (!is_on_one_node()) return;
  if (!is_transport_chosen()) set(kPml, "ob1");
  if (std::getenv(kHwloc) == nullptr) set(kHwloc, "no_os,stop");
}

void InitVariables::set(const char* name, const char* value) {
  setenv(name, value, /*overwrite=*/1);
  ours_.push_back(name);
}

InitVariables::~InitVariables() {
  for (const char* name : ours_) unsetenv(name);
}

}  // namespace mica::mpi
