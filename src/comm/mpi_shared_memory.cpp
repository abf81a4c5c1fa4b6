// SPDX-License-Identifier: Apache-2.0
#include "mpi_shared_memory.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "mica/comm/host_comm.hpp"
#include "mica/comm/mpi_group.hpp"
#include "mica/core/error.hpp"
#include "mica/core/host.hpp"
#include "mica/core/rounding.hpp"

#include "shared_file.hpp"

namespace mica {
namespace detail {
namespace {

constexpr const char* kWhatHelps = "make /dev/shm larger (a container has an option for it, often --shm-size), or set mesh.backend=mpi";

/// @throws ConfigError if /dev/shm or ulimit -f has no room for that many bytes.
void require_room(int fd, const std::string& what, std::int64_t bytes) {
  require<ConfigError>(bytes <= max_file_bytes(),
                       "{} needs {} bytes of shared memory, but files may have at most {} bytes here (ulimit -f): raise that, or set "
                       "mesh.backend=mpi",
                       what, bytes, max_file_bytes());
  struct statvfs place {};
  if (fstatvfs(fd, &place) != 0 || place.f_blocks == 0) return;  // no limit
  const auto unit = static_cast<std::uint64_t>(place.f_frsize);
  require<ConfigError>(divide_up(static_cast<std::uint64_t>(bytes), unit) <= place.f_bavail,
                       "{} needs {} bytes of shared memory, but of the {} bytes of /dev/shm {} are free: {}", what, bytes,
                       place.f_blocks * unit, place.f_bavail * unit, kWhatHelps);
}

SharedFile make_segment(const std::string& what, std::int64_t bytes) {
  SharedFile file = SharedFile::make();
  require<ConfigError>(static_cast<bool>(file),
                       "{}: cannot create shared memory in /dev/shm: {}; make it writable, or set mesh.backend=mpi", what,
                       std::strerror(errno));
  require_room(file.fd(), what, bytes);
  const int rc = ftruncate(file.fd(), bytes);
  require<ConfigError>(rc == 0, "{} needs {} bytes of shared memory: {}; {}", what, bytes, std::strerror(errno), kWhatHelps);
  return file;
}

void take_pages(int fd, const std::string& what, std::int64_t bytes, std::int64_t begin, std::int64_t end) {
  if (begin == end) return;
  int error = EINTR;
  while (error == EINTR) error = posix_fallocate(fd, begin, end - begin);
  require<ConfigError>(error == 0, "{} needs {} bytes of shared memory, and this rank could not allocate its {} of them: {}; {}", what,
                       bytes, end - begin, std::strerror(error), kWhatHelps);
}

/// The same file on all ranks, without a name and without pages. @collective @throws ConfigError on all ranks
SharedFile open_segment(HostComm& ranks, const std::string& what, std::int64_t bytes) {
  SharedFile file;
  const std::string name = ranks.from_first_rank([&] {
    file = make_segment(what, bytes);
    return file.name();
  });
  ranks.agree([&] {
    if (!file) file = SharedFile::open(name, O_RDWR);
    require<ConfigError>(static_cast<bool>(file),
                         "{}: cannot open the shared memory that its first rank has created in /dev/shm: {}; all ranks of a node must see "
                         "the same /dev/shm; else set mesh.backend=mpi",
                         what, std::strerror(errno));
  });
  file.remove_name();
  return file;
}

}  // namespace

std::shared_ptr<std::byte> map_shared_memory(const mpi::Communicator& comm, const std::string& what, std::int64_t bytes,
                                             std::int64_t own_begin, std::int64_t own_end) {
  const auto ranks = make_mpi_comm(comm);
  const SharedFile file = open_segment(*ranks, what, bytes);  // without a name: a job that is killed from now on leaves nothing
  const std::int64_t page = sysconf(_SC_PAGESIZE);
  const std::int64_t begin = std::min(round_up(own_begin, page), bytes), end = std::min(round_up(own_end, page), bytes);
  ranks->agree([&] { take_pages(file.fd(), what, bytes, begin, end); });
  std::shared_ptr<std::byte> memory;
  ranks->agree([&] {
    // After the agreement: MAP_POPULATE would allocate pages that their ranks have not allocated yet. It saves page faults in the first
    // step.
    memory = file.map(static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE, MAP_POPULATE);
    require<ConfigError>(memory != nullptr, "{}: cannot map {} bytes of shared memory: {}; set mesh.backend=mpi", what, bytes,
                         std::strerror(errno));
  });
  return memory;
}

}  // namespace detail

std::string why_no_shared_memory(const mpi::Communicator& node, const std::string& what, std::int64_t bytes) {
  try {
    (void)detail::open_segment(*make_mpi_comm(node), what, bytes);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return {};
}

}  // namespace mica
