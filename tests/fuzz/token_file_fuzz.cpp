// SPDX-License-Identifier: Apache-2.0
// Raw and llm.c token files: any bytes are read or refused. HDF5 files are left out: libhdf5 reads them.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

#include "mica/core/error.hpp"
#include "mica/data/token_file.hpp"

namespace {

/// A file in memory under a name that may hold raw tokens.
struct MemoryFile {
  MemoryFile() { mica::invariant(::mkdtemp(folder.data()) != nullptr, "a folder in /dev/shm"); }
  ~MemoryFile() {
    ::unlink(name().c_str());
    ::rmdir(folder.c_str());
  }
  [[nodiscard]] std::string name() const { return folder + "/x.bin"; }

  std::string folder = "/dev/shm/mica-fuzz-XXXXXX";
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const MemoryFile memory;
  const std::string name = memory.name();
  if (size >= 4 && data[0] == 0x89 && data[1] == 'H') return 0;
  const int file = ::open(name.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
  mica::invariant(file >= 0 && ::write(file, data, size) == static_cast<ssize_t>(size), "the input is written");
  ::close(file);
  try {
    const auto tokens = mica::data::TokenFile::open(name);
    std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens.num_tokens()));
    tokens.read(0, ids);
    const std::int64_t past = tokens.find_past_vocab(100, 0, tokens.num_tokens());
    mica::invariant(past == tokens.num_tokens() || tokens.token(past) >= 100, "the id found is past the vocabulary");
  } catch (const mica::ConfigError&) {
  }
  return 0;
}
