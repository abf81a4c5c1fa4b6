// SPDX-License-Identifier: Apache-2.0
// Preloaded into a job: rank 0 takes 14 s for the fsync of a file with $MICA_SLOW_FSYNC in its path, as on a file system that is busy.
#include <cstdlib>
#include <string>

#include <dlfcn.h>
#include <unistd.h>

namespace {

std::string environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool is_slow(int fd) {
  const std::string part = environment("MICA_SLOW_FSYNC");
  if (part.empty() || environment("OMPI_COMM_WORLD_RANK") + environment("PMI_RANK") != "0") return false;
  std::string path(4096, '\0');
  const ssize_t length = ::readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), path.data(), path.size());
  return length > 0 && path.substr(0, static_cast<std::size_t>(length)).find(part) != std::string::npos;
}

}  // namespace

extern "C" int fsync(int fd) {
  static const auto real = reinterpret_cast<int (*)(int)>(::dlsym(RTLD_NEXT, "fsync"));
  if (is_slow(fd)) ::sleep(14);
  return real(fd);
}
