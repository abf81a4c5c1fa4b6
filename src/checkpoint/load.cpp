#include "mica/checkpoint/load.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <optional>

#include "block_reader.hpp"
#include "block_workers.hpp"
#include "mica/checkpoint/verify.hpp"
#include "mica/io/atomic_file.hpp"
#include "shard_file.hpp"

namespace mica::checkpoint {
namespace {

using Clock = std::chrono::steady_clock;

// --- does the checkpoint fit? ----------------------------------------------------------------------------------------

void check_mesh(const Manifest& manifest, const Mesh& mesh, const std::string& folder) {
  require<CheckpointError>(
      manifest.world_size == mesh.world_size() && manifest.shard_size == mesh.shard_size(),
      "{}: was written on {} ranks (shard_size {} x {} replicas), and this run has {} ranks (shard_size {} x {} replicas); "
      "resuming on another mesh is not supported yet: start it with mpirun -np {} and mesh.shard_size={}",
      folder, manifest.world_size, manifest.shard_size, manifest.replicas, mesh.world_size(), mesh.shard_size(),
      mesh.replicas(), manifest.world_size, manifest.shard_size);
}

std::vector<fsdp::ParameterSpec> all_parameters(const std::vector<UnitEntry>& units) {
  std::vector<fsdp::ParameterSpec> all;
  for (const UnitEntry& unit : units) all.insert(all.end(), unit.parameters.begin(), unit.parameters.end());
  return all;
}

/// The same parameters, whatever the units.
void check_parameters(const std::vector<UnitEntry>& saved_units, const std::vector<UnitEntry>& model_units,
                      const std::string& folder) {
  const std::vector<fsdp::ParameterSpec> saved = all_parameters(saved_units);
  std::map<std::string, const Shape*> unclaimed;
  for (const fsdp::ParameterSpec& p : saved) unclaimed[p.name] = &p.shape;
  for (const fsdp::ParameterSpec& p : all_parameters(model_units)) {
    const auto found = unclaimed.find(p.name);
    require<CheckpointError>(found != unclaimed.end(),
                             "{}: is of another model: it has no parameter {} (shape {} here); compare model.* with the "
                             "checkpoint's (mica-inspect)",
                             folder, p.name, p.shape.to_string());
    require<CheckpointError>(*found->second == p.shape,
                             "{}: is of another model: parameter {} has shape {} there and {} here; compare model.* with the "
                             "checkpoint's (mica-inspect)",
                             folder, p.name, found->second->to_string(), p.shape.to_string());
    unclaimed.erase(found);
  }
  for (const fsdp::ParameterSpec& p : saved) {
    require<CheckpointError>(!unclaimed.contains(p.name),
                             "{}: is of another model: this one has no parameter {} (shape {} there); compare model.* with "
                             "the checkpoint's (mica-inspect)",
                             folder, p.name, p.shape.to_string());
  }
}

std::string describe(const UnitEntry& unit) {
  return fmt::format("{} ({} parameters from {} on, shard_size {}, {} elements a rank, {})", unit.name, unit.parameters.size(),
                     unit.parameters.empty() ? "none" : unit.parameters.front().name, unit.shard_size, unit.shard_numel, unit.layout);
}

bool is_same_unit(const UnitEntry& a, const UnitEntry& b) {
  return a.shard_size == b.shard_size && a.shard_numel == b.shard_numel && a.layout == b.layout &&
         std::ranges::equal(a.parameters, b.parameters, {}, &fsdp::ParameterSpec::name, &fsdp::ParameterSpec::name);
}

void check_units(const std::vector<UnitEntry>& saved, const std::vector<UnitEntry>& model, const std::string& folder) {
  const auto [there, here] = std::ranges::mismatch(saved, model, is_same_unit);
  if (there == saved.end() && here == model.end()) return;
  throw CheckpointError(
      fmt::format("{}: its parameters are grouped into other units: it has {} units, unit {} is {}; this run has {} units, unit {} "
                  "is {}; resuming with another fsdp.wrap or fsdp.sharding is not supported yet: use the one it was written with ({})",
                  folder, saved.size(), there - saved.begin(), there == saved.end() ? "none" : describe(*there), model.size(),
                  here - model.begin(), here == model.end() ? "none" : describe(*here), "mica-inspect shows its config"));
}

// --- reading ---------------------------------------------------------------------------------------------------------

/// A dataset and the memory that it is read into.
struct Target {
  const FileEntry* file;
  const DatasetEntry* dataset;
  void* data;
};

const DatasetEntry* find_dataset(const FileEntry& file, std::int64_t unit, std::string_view kind) {
  const auto found =
      std::ranges::find_if(file.datasets, [&](const DatasetEntry& d) { return d.unit == unit && d.kind == kind; });
  return found == file.datasets.end() ? nullptr : &*found;
}

class Loader {
 public:
  Loader(const std::string& folder, const Manifest& manifest, const LoadTarget& target)
      : folder_(folder), manifest_(manifest), target_(target), storages_(unit_storages(*target.root)) {}

  /// Without communication. @throws what load() says.
  LoadReport run() {
    const auto start = Clock::now();
    check_fit();
    target_.root->device_mesh().compute().synchronize();
    add_masters();
    if (target_.optimizer != nullptr) add_optimizer_state();
    read_all();
    report_.ms = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
    return report_;
  }

 private:
  [[nodiscard]] const Mesh& mesh() const { return target_.root->device_mesh().mesh(); }

  void check_fit() {
    require(target_.root->state() == fsdp::TrainingState::idle, "a checkpoint is loaded while the root is {}: load between passes",
            fsdp::training_state_name(target_.root->state()));
    require(target_.root->device_mesh().compute().device() == DeviceKind::cpu,
            "a checkpoint is loaded into a device whose memory the host cannot write");
    const std::vector<UnitEntry> units = unit_entries(*target_.root);
    for (std::size_t u = 0; u < storages_.size(); ++u) {
      require(storages_[u]->is_initialized() && !storages_[u]->is_unsharded(),
              "unit {} is {}: load into an initialised, sharded model", units[u].name,
              storages_[u]->is_initialized() ? "unsharded" : "without storage");
    }
    check_parameters(manifest_.units, units, folder_);
    check_mesh(manifest_, mesh(), folder_);
    check_units(manifest_.units, units, folder_);
    const std::string here = target_.root->device_mesh().kernels().description();
    if (here != manifest_.kernels) {
      report_.notes.push_back(
          fmt::format("it was computed by {}, this run by {}: results may differ in the last bits", manifest_.kernels, here));
    }
    if (target_.omp_threads != 0 && target_.omp_threads != manifest_.omp_threads) {
      report_.notes.push_back(fmt::format("it was computed with {} OpenMP threads a rank, this run has {}: results may differ in "
                                          "the last bits",
                                          manifest_.omp_threads, target_.omp_threads));
    }
  }

  /// The file that has this rank's part of a unit.
  [[nodiscard]] const FileEntry& file_of(std::size_t unit) const {
    const int shard_rank = manifest_.units[unit].shard_size == 1 ? 0 : mesh().shard_rank();
    return manifest_.files[static_cast<std::size_t>(shard_rank)];
  }

  void add_masters() {
    for (std::size_t u = 0; u < storages_.size(); ++u) {
      const FileEntry& file = file_of(u);
      targets_.push_back({&file, find_dataset(file, static_cast<std::int64_t>(u), kMasterKind), storages_[u]->master().data});
    }
  }

  void add_optimizer_state() {
    optim::Optimizer& optimizer = *target_.optimizer;
    optimizer.allocate_state();
    const std::vector<std::string> kinds = optimizer.state_kinds();
    const bool is_same_kind = !manifest_.optimizer.empty() && kinds == manifest_.state_kinds;
    if (!is_same_kind) {
      report_.notes.push_back(fmt::format("its optimizer state ({}) is not taken over: this run's {} starts anew",
                                          manifest_.optimizer.empty() ? "none" : manifest_.optimizer, optimizer.name()));
    }
    for (const optim::StateShard& shard : optimizer.state()) {
      const auto unit = static_cast<std::size_t>(std::ranges::find(storages_, shard.storage) - storages_.begin());
      const FileEntry& file = file_of(unit);
      const DatasetEntry* dataset = is_same_kind ? find_dataset(file, static_cast<std::int64_t>(unit), shard.kind) : nullptr;
      if (dataset != nullptr) {
        targets_.push_back({&file, dataset, shard.data.data});
      } else {  // a unit that had not been stepped when the checkpoint was written has no state
        std::memset(shard.data.data, 0, static_cast<std::size_t>(shard.data.bytes()));
      }
    }
    optimizer.set_num_steps(is_same_kind ? manifest_.optimizer_steps : 0);
    if (is_same_kind) optimizer.set_parameter_steps(manifest_.parameter_steps);
  }

  void read_all() {
    struct Job {
      const Target* target;
      std::int64_t block;
    };
    std::vector<Job> jobs;
    for (const Target& target : targets_) {
      invariant(target.dataset != nullptr, "a parsed manifest has the parameters of every unit");
      for (std::int64_t b = 0; b < target.dataset->num_blocks(); ++b) jobs.push_back({&target, b});
      report_.bytes += target.dataset->bytes;
    }
    // Replicas share what the first of them brought into the page cache.
    const io::Caching caching = mesh().replicas() > 1 ? io::Caching::page_cache : io::Caching::direct;
    std::map<std::pair<int, const FileEntry*>, BlockReader> readers;
    for (int w = 0; w < kNumBlockWorkers; ++w) {
      for (const Target& target : targets_) readers.try_emplace({w, target.file}, folder_, *target.file, caching);
    }
    run_block_workers(static_cast<std::int64_t>(jobs.size()), [&](int worker, std::int64_t j) {
      const Job& job = jobs[static_cast<std::size_t>(j)];
      const DatasetEntry& dataset = *job.target->dataset;
      const std::byte* bytes = readers.at({worker, job.target->file}).block(dataset, job.block);
      std::memcpy(static_cast<std::byte*>(job.target->data) + job.block * kBlockBytes, bytes,
                  static_cast<std::size_t>(dataset.block_bytes(job.block)));
    });
  }

  const std::string& folder_;
  const Manifest& manifest_;
  const LoadTarget& target_;
  std::vector<const fsdp::UnitStorage*> storages_;
  std::vector<Target> targets_;
  LoadReport report_;
};

/// Runs a collective action and adds the way out to an error about damage, which all ranks have in common.
template <class Action>
auto with_way_out(const std::string& folder, const HostComm& comm, Action&& action) {
  try {
    return action();
  } catch (const DamagedCheckpointError& e) {
    const std::string good = comm.from_root(0, [&] { return next_good_checkpoint(folder); });
    throw DamagedCheckpointError(
        e.what() + (good.empty() ? std::string("; there is no older good checkpoint beside it")
                                 : fmt::format("; the next good one is {}: resume with --checkpoint.resume={}", good, good)));
  }
}

}  // namespace

Manifest open_checkpoint(const std::string& checkpoint_folder, const HostComm& comm) {
  return with_way_out(checkpoint_folder, comm, [&] {
    const std::string path = checkpoint_folder + "/" + std::string(kManifestName);
    const std::string text = comm.from_root(0, [&] { return manifest_text(read_manifest(checkpoint_folder)); });
    return parse_manifest(text, path);
  });
}

LoadReport load(const std::string& checkpoint_folder, const Manifest& manifest, const LoadTarget& target, const HostComm& comm) {
  return with_way_out(checkpoint_folder, comm, [&] {
    LoadReport report;
    (void)comm.all_or_throw([&] {
      report = Loader(checkpoint_folder, manifest, target).run();
      return std::string();
    });
    return report;
  });
}

}  // namespace mica::checkpoint
