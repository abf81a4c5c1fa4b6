// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <functional>
#include <numeric>
#include <optional>
#include <span>

#include <fcntl.h>
#include <unistd.h>

#include "mica/checkpoint/load.hpp"
#include "mica/checkpoint/save.hpp"
#include "mica/checkpoint/verify.hpp"
#include "mica/core/unique_fd.hpp"
#include "mica/io/raw_file.hpp"
#include "mica/train/resume_rules.hpp"
#include "mica/train/setup.hpp"

#include "async_checkpoint.hpp"
#include "bench_model.hpp"
#include "benches.hpp"
#include "command_line.hpp"
#include "host_buffer.hpp"
#include "report.hpp"
#include "timing.hpp"

namespace mica::train::bench {
namespace {

constexpr const char* kCheckpointHelp = R"(mica-bench checkpoint --dir FOLDER [--flags]

Saves, loads and verifies a checkpoint of a GPT-2 with AdamW state, sharded over the ranks. These alternate with a plain write +
fsync and a plain read of the same bytes, one file per rank. Cold: the page cache is dropped first; hot: read again. With --steps
it also saves in the background: how long training stalls, compared with one copy of the bytes in memory, and how much slower steps
are during the write. Figures are medians. FOLDER must exist. The benchmark deletes only its own files there.

  OMP_NUM_THREADS=1 mpirun -np 2 mica-bench checkpoint --model gpt2-124m --dir /scratch
  OMP_NUM_THREADS=1 mpirun -np 2 mica-bench checkpoint --model gpt2-124m --dir /scratch --steps 4 --batch 2 --seq 256
  python3 scripts/peers/torch_dcp.py --ranks 2 --model gpt2-124m --dir /scratch                the same for PyTorch
)";

constexpr std::int64_t kChunkBytes = 16 << 20;

struct CheckpointOptions {
  std::string model = "gpt2-124m", dir;
  std::int64_t repeats = 6, steps = 0, batch = 1, seq = 64;
};

using Bytes = std::span<const std::byte>;

Bytes bytes_of(ConstTensorView view) { return {static_cast<const std::byte*>(view.data), static_cast<std::size_t>(view.bytes())}; }

/// The arrays of this rank's shard of a checkpoint.
std::vector<Bytes> parts_of(const ShardedModel& model) {
  std::vector<Bytes> parts;
  for (const fsdp::Unit* unit : model.root->units()) {
    if (unit->storage()) parts.push_back(bytes_of(unit->storage()->master()));
  }
  for (const optim::StateShard& state : model.optimizer->state()) parts.push_back(bytes_of(state.data));
  return parts;
}

void check_call(bool ok, const char* call, const std::string& path) {
  require<IoError>(ok, "{} of {} failed: {}", call, path, errno_text(errno));
}

void write_plainly(const std::string& path, const std::vector<Bytes>& parts) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  check_call(fd >= 0, "open", path);
  const UniqueFd owner(fd);
  for (Bytes part : parts) {
    while (!part.empty()) {
      const ssize_t done = ::write(fd, part.data(), std::min<std::size_t>(part.size(), kChunkBytes));
      check_call(done > 0, "write", path);
      part = part.subspan(static_cast<std::size_t>(done));
    }
  }
  check_call(::fsync(fd) == 0, "fsync", path);
}

void read_plainly(const std::string& path, const HostBuffer& buffer) {
  const int fd = ::open(path.c_str(), O_RDONLY);
  check_call(fd >= 0, "open", path);
  const UniqueFd owner(fd);
  for (;;) {
    const ssize_t done = ::read(fd, buffer.data(), static_cast<std::size_t>(buffer.bytes()));
    check_call(done >= 0, "read", path);
    if (done == 0) return;
  }
}

/// Drops a file, or all files of a folder, from the page cache.
void drop_from_cache(const std::string& path) {
  if (std::filesystem::is_directory(path)) {
    for (const auto& entry : std::filesystem::directory_iterator(path)) drop_from_cache(entry.path().string());
    return;
  }
  io::RawFile file = io::RawFile::open_for_reading(path);
  file.drop_cache();
}

struct Seconds {
  std::vector<double> raw_write, save, raw_read, load, raw_read_hot, load_hot, verify;
};

po::options_description flags_of(CheckpointOptions& options) {
  po::options_description flags("Flags");
  auto add = flags.add_options();
  add("model", po::value(&options.model)->default_value(options.model), model_names().c_str());
  add("dir", po::value(&options.dir), "an existing folder on the disk to measure");
  add("repeats", po::value(&options.repeats)->default_value(options.repeats),
      "rounds; a multiple of 3, so that each side goes first equally often");
  add("steps", po::value(&options.steps)->default_value(options.steps),
      "training steps before each background save; 0: no background saves");
  add("batch", po::value(&options.batch)->default_value(options.batch), "sequences per rank and step");
  add("seq", po::value(&options.seq)->default_value(options.seq), "tokens per sequence");
  return flags;
}

}  // namespace

std::string checkpoint_help() {
  CheckpointOptions defaults;
  return help_text(kCheckpointHelp, flags_of(defaults));
}

ExitCode bench_checkpoint(App& app, const Arguments& arguments) {
  CheckpointOptions options;
  read_flags(app, arguments, flags_of(options));
  Config config;
  app.comm.agree([&] {
    std::error_code unknown;
    require<ConfigError>(!options.dir.empty() && std::filesystem::is_directory(options.dir, unknown),
                         "--dir='{}' is not a folder: name an existing one on the disk to measure", options.dir);
    require<ConfigError>(options.repeats >= 1, "--repeats={}, expected at least 1", options.repeats);
    require<ConfigError>(options.steps >= 0, "--steps={}, expected 0 or more", options.steps);
    config = make_config({.model = options.model, .batch = options.batch, .seq = options.seq});
    config.mesh.device = "cpu";  // the plain side writes from host memory
  });
  const Watchdog::Patience patience(app.watchdog);
  const mpi::Communicator& world = app.world;
  const bool is_main = world.rank() == 0;
  Device device = make_device(app, config);
  std::optional<ShardedModel> model;
  app.comm.agree([&] { model.emplace(ShardedModel::make(config, device)); });
  model->root->initialize(config.run.seed);
  model->optimizer->allocate_state();
  model->optimizer->set_num_steps(1);
  model->context.compute.synchronize();

  const std::vector<Bytes> parts = parts_of(*model);
  std::int64_t shard_bytes = 0;
  for (const Bytes part : parts) shard_bytes += static_cast<std::int64_t>(part.size());
  const HostBuffer chunk(kChunkBytes);
  const std::string run_id = world.broadcast_string(checkpoint::make_run_id(), 0);
  const std::string folder = fmt::format("{}/mica-bench-{}", options.dir, run_id);
  const std::string raw_path = fmt::format("{}/raw-{}", folder, world.rank());
  app.comm.agree([&] {
    if (is_main) std::filesystem::create_directory(folder);
  });

  Seconds seconds;
  std::int64_t checkpoint_bytes = 0;
  for (std::int64_t step = 1; step <= options.repeats; ++step) {
    seconds.raw_write.push_back(timed_together(world, [&] { write_plainly(raw_path, parts); }));
    checkpoint::SaveReport saved;
    seconds.save.push_back(timed_together(world, [&] {
      saved = checkpoint::save(folder,
                               {.root = model->root,
                                .optimizer = model->optimizer.get(),
                                .run_id = run_id,
                                .step = step,
                                .seed = config.run.seed,
                                .omp_threads = device.num_threads,
                                .model = model_description(config),
                                .config = to_ini(config)},
                               app.comm);
    }));
    checkpoint_bytes = saved.bytes;
    const auto load = [&] {
      const checkpoint::Manifest manifest = checkpoint::open_checkpoint(saved.path, app.comm);
      static_cast<void>(checkpoint::load(
          saved.path, manifest, {.root = model->root, .optimizer = model->optimizer.get(), .omp_threads = device.num_threads}, app.comm));
    };
    // The order rotates, since a disk may be faster for a while after a rest.
    const std::array<std::function<void()>, 3> cold{
        [&] { seconds.raw_read.push_back(timed_together(world, [&] { read_plainly(raw_path, chunk); })); },
        [&] { seconds.load.push_back(timed_together(world, load)); },
        [&] {  // one process checks all files
          seconds.verify.push_back(timed_together(world, [&] {
            if (is_main) require(checkpoint::verify(saved.path).damage.empty(), "the checkpoint is damaged");
          }));
        }};
    for (std::int64_t i = 0; i < 3; ++i) {
      drop_from_cache(raw_path);
      if (is_main) drop_from_cache(saved.path);
      world.barrier();
      cold[static_cast<std::size_t>((step + i) % 3)]();
    }
    read_plainly(raw_path, chunk);
    load();
    seconds.raw_read_hot.push_back(timed_together(world, [&] { read_plainly(raw_path, chunk); }));
    seconds.load_hot.push_back(timed_together(world, load));
    world.barrier();
    if (is_main) std::filesystem::remove_all(saved.path);
  }
  world.barrier();
  std::optional<AsyncFigures> background;
  if (options.steps > 0) {
    background = measure_async(app, config, device, *model, folder, {.steps = options.steps, .repeats = options.repeats});
  }
  if (is_main) std::filesystem::remove_all(folder);

  // Ratio of the sums over all turns, since single turns depend on what came before.
  const auto ratio = [](const std::vector<double>& raw, const std::vector<double>& ours) {
    return rounded(std::accumulate(raw.begin(), raw.end(), 0.0) / std::accumulate(ours.begin(), ours.end(), 0.0));
  };
  Report report(is_main);
  nlohmann::ordered_json row{{"bench", "checkpoint"},
                             {"model", options.model},
                             {"ranks", world.num_ranks()},
                             {"repeats", options.repeats},
                             {"mb", rounded(static_cast<double>(checkpoint_bytes) * 1e-6, 0)},
                             {"raw_mb", rounded(static_cast<double>(world.all_sum(shard_bytes)) * 1e-6, 0)},
                             {"raw_write_s", rounded(median(seconds.raw_write), 3)},
                             {"save_s", rounded(median(seconds.save), 3)},
                             {"save_vs_raw", ratio(seconds.raw_write, seconds.save)},
                             {"raw_read_s", rounded(median(seconds.raw_read), 3)},
                             {"load_s", rounded(median(seconds.load), 3)},
                             {"load_vs_raw", ratio(seconds.raw_read, seconds.load)},
                             {"raw_read_hot_s", rounded(median(seconds.raw_read_hot), 3)},
                             {"load_hot_s", rounded(median(seconds.load_hot), 3)},
                             {"load_hot_vs_raw", ratio(seconds.raw_read_hot, seconds.load_hot)},
                             {"verify_s", rounded(median(seconds.verify), 3)},
                             {"verify_vs_raw", ratio(seconds.raw_read, seconds.verify)}};
  if (background) {
    row.update({{"copy_s", rounded(background->copy_s, 3)},
                {"stall_s", rounded(background->stall_s, 3)},
                {"stall_vs_copy", rounded(background->stall_s / background->copy_s)},
                {"write_s", rounded(background->write_s, 3)},
                {"step_s", rounded(background->step_s, 3)},
                {"step_overlapped_s", rounded(background->overlapped_step_s, 3)},
                {"step_slower", rounded(background->overlapped_step_s / background->step_s)}});
  }
  report.add(row);
  report.print_table();
  return ExitCode::done;
}

}  // namespace mica::train::bench
