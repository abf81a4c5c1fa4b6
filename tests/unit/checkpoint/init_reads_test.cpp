// SPDX-License-Identifier: Apache-2.0
// What the ranks of init_from() open and read of a Hugging Face folder, counted at the C library's calls.

#include <cstdarg>
#include <map>
#include <mutex>
#include <set>
#include <vector>

#include <dlfcn.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "mica/checkpoint/init_from.hpp"

#include "unit/checkpoint/hf_testing.hpp"

namespace {

/// Of files that are called *.safetensors, while it is wanted.
struct Counts {
  std::map<int, bool> is_wanted;  // by descriptor
  int opens = 0;
  int headers = 0;  ///< a file read from its first byte on
  std::int64_t bytes = 0;
};
std::mutex g_mutex;
Counts* g_counts = nullptr;

}  // namespace

/// Stands before the C library's.
extern "C" int open(const char* path, int flags, ...) {
  static const auto real = reinterpret_cast<int (*)(const char*, int, ...)>(::dlsym(RTLD_NEXT, "open"));
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  const int fd = real(path, flags, mode);
  const std::lock_guard lock(g_mutex);
  if (g_counts != nullptr) {
    const bool is_wanted = std::string_view(path).ends_with(".safetensors");
    g_counts->is_wanted[fd] = is_wanted;
    g_counts->opens += is_wanted ? 1 : 0;
  }
  return fd;
}

/// Stands before the C library's.
extern "C" ssize_t pread(int fd, void* data, size_t bytes, off_t offset) {
  static const auto real = reinterpret_cast<ssize_t (*)(int, void*, size_t, off_t)>(::dlsym(RTLD_NEXT, "pread"));
  const ssize_t done = real(fd, data, bytes, offset);
  const std::lock_guard lock(g_mutex);
  if (g_counts != nullptr && g_counts->is_wanted[fd]) {
    g_counts->headers += offset == 0 ? 1 : 0;
    g_counts->bytes += done;
  }
  return done;
}

namespace mica::checkpoint {
namespace {

/// The files that a rank's part of some units lies in.
std::set<std::string> files_of(const HfSource& source, const std::vector<const fsdp::UnitStorage*>& units) {
  std::set<std::string> files;
  for (const fsdp::UnitStorage* unit : units) {
    for (const fsdp::Piece& piece : unit->layout().pieces(unit->shard_rank())) {
      files.insert(source.tensors().find(unit->parameters()[piece.parameter].full_name)->file->path());
    }
  }
  return files;
}

struct Grid {
  const char* model;
  int replicas, shard_size;
  fsdp::Strategy strategy = fsdp::Strategy::hybrid_shard;
};
class InitReads : public ::testing::TestWithParam<Grid> {};

TEST_P(InitReads, HeadersOnceAndFilesWhereTheyAreNeeded) {
  const auto [name, replicas, shard_size, strategy] = GetParam();
  const std::string folder = test::hf_reference(name);
  const HfSource expected(folder);
  fsdp::Options options;
  if (replicas > 1) options.strategy = strategy;
  Counts counts;
  int num_needed = 0;  // pairs of a rank, but the first, and a file that it takes bytes from
  run_local_ranks(replicas * shard_size, [&](std::unique_ptr<ProcessGroup> world) {
    const HfModel described = read_hf_model(folder);
    const int rank = world->rank();
    test::ShardedHfModel model(std::move(world), described, options, strategy == fsdp::Strategy::no_shard ? 1 : replicas);
    const auto comm = make_group_comm(model.device_mesh.metrics_group(), model.device_mesh.compute());
    std::vector<const fsdp::UnitStorage*> mine;  // replicas read units in turn
    int turn = 0;
    for (const fsdp::Unit* unit : model.root().units()) {
      if (unit->storage() && turn++ % replicas == rank / shard_size) mine.push_back(unit->storage());
    }
    {
      const std::lock_guard lock(g_mutex);
      if (rank > 0) num_needed += static_cast<int>(files_of(expected, mine).size());
      g_counts = &counts;
    }
    (void)comm->gather_strings("");
    (void)init_from(folder, described.keys.all(), model.root(), *comm);
    (void)comm->gather_strings("");
    {
      const std::lock_guard lock(g_mutex);
      g_counts = nullptr;
    }
    HfSource source(folder);
    for (const fsdp::Piece& p : model.root().pieces()) {
      std::vector<float> values(static_cast<std::size_t>(p.numel()));
      source.read(model.root().parameter(p).full_name, "master", p.begin, p.numel(), values.data());
      EXPECT_TRUE(std::equal(values.begin(), values.end(), model.root().master(p).as<float>())) << model.root().parameter(p).full_name;
    }
  });
  EXPECT_EQ(counts.headers, static_cast<int>(expected.tensors().num_files()));
  EXPECT_EQ(counts.opens, static_cast<int>(expected.tensors().num_files()) + num_needed);
  std::int64_t file_bytes = 0;
  for (const auto& each : std::filesystem::directory_iterator(folder)) {
    if (each.path().extension() == ".safetensors") file_bytes += static_cast<std::int64_t>(each.file_size());
  }
  EXPECT_LE(counts.bytes, file_bytes) << "every tensor's bytes are read once, whatever the replicas";
  EXPECT_GT(counts.bytes, file_bytes * 9 / 10);
}

INSTANTIATE_TEST_SUITE_P(Of, InitReads,
                         ::testing::Values(Grid{"llama_untied", 1, 1}, Grid{"llama_untied", 1, 5}, Grid{"llama_untied", 2, 2},
                                           Grid{"llama_untied", 4, 1}, Grid{"llama_untied", 3, 2}, Grid{"llama_untied", 1, 64},
                                           Grid{"llama", 2, 3}, Grid{"llama", 3, 1, fsdp::Strategy::no_shard}),
                         [](const auto& info) {
                           return fmt::format("{}_{}x{}{}", info.param.model, info.param.replicas, info.param.shard_size,
                                              info.param.strategy == fsdp::Strategy::no_shard ? "_no_shard" : "");
                         });

}  // namespace
}  // namespace mica::checkpoint
