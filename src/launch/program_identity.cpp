// SPDX-License-Identifier: Apache-2.0
#include "program_identity.hpp"

#include <filesystem>
#include <string>
#include <string_view>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "mica/core/error.hpp"
#include "mica/core/unique_fd.hpp"
#include "mica/core/version.hpp"
#include "mica/launch/first_exchange.hpp"
#include "mica/launch/launch_checks.hpp"
#include "mica/mpi/session.hpp"

namespace mica::launch {
namespace {

constexpr const char* kExecutable = "/proc/self/exe";

/// 0 if it cannot be read: then only versions are compared.
std::uint64_t executable_hash() {
  const UniqueFd fd(::open(kExecutable, O_RDONLY | O_CLOEXEC));
  if (!fd) return 0;
  struct stat status {};
  void* bytes = MAP_FAILED;
  if (::fstat(fd.get(), &status) == 0)
    bytes = ::mmap(nullptr, static_cast<std::size_t>(status.st_size), PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (bytes == MAP_FAILED) return 0;
  const std::string_view text(static_cast<const char*>(bytes), static_cast<std::size_t>(status.st_size));
  const std::uint64_t hash = std::hash<std::string_view>()(text);
  ::munmap(bytes, text.size());
  return hash;
}

std::string executable_path() {
  std::error_code error;
  return std::filesystem::read_symlink(kExecutable, error).string();
}

}  // namespace

std::uint64_t program_hash() {
  return std::hash<std::string>()(fmt::format("{:x} {} {}", executable_hash(), full_version(), mpi::Session::library_version()));
}

void refuse_programs(const mpi::Communicator& world) {
  const Check check{
      .name = "program",
      .look =
          [] {
            return fmt::format("{} (Mica {}, {}, hash {:016x})", executable_path(), full_version(), mpi::Session::library_version(),
                               program_hash());
          },
      .judge = [](const std::vector<RankWords>& all) -> std::vector<Finding> {
        const auto hash_of = [](const RankWords& each) { return each.words.substr(each.words.rfind(' ')); };
        for (const RankWords& each : all) {
          if (hash_of(each) == hash_of(all.front())) continue;
          return {{Finding::Kind::error, fmt::format("{} runs {}, but {} runs {}: start all ranks from one build, with one MPI; copy it to "
                                                     "the nodes again",
                                                     name_of(each), each.words, name_of(all.front()), all.front().words)}};
        }
        return {};
      }};
  LaunchChecks(world).run({check});
}

}  // namespace mica::launch
