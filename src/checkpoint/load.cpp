// SPDX-License-Identifier: Apache-2.0
#include "mica/checkpoint/load.hpp"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <ranges>

#include "mica/checkpoint/folder.hpp"
#include "mica/io/atomic_file.hpp"
#include "mica/tensor/host_math.hpp"

#include "complete_checkpoint.hpp"
#include "read_plan.hpp"
#include "save_job.hpp"
#include "shared_read.hpp"
#include "tokenizer_files.hpp"
#include "whole_tensors.hpp"

namespace mica::checkpoint {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// --- does the checkpoint fit? ----------------------------------------------------------------------------------------

/// A parameter or buffer, and its unit.
struct NamedTensor {
  const fsdp::ParameterSpec* spec;
  const UnitEntry* unit;

  [[nodiscard]] std::string_view kind_name() const { return unit->role == UnitRole::buffer ? "buffer" : "parameter"; }
};

std::vector<NamedTensor> all_tensors(const std::vector<UnitEntry>& units) {
  std::vector<NamedTensor> all;
  for (const UnitEntry& unit : units) {
    for (const fsdp::ParameterSpec& p : unit.parameters) all.push_back({&p, &unit});
  }
  return all;
}

/// Requires the same parameters and buffers on both sides, in any units. @returns notes on those rounded to a narrower type.
std::vector<std::string> check_tensors(const std::vector<UnitEntry>& saved_units, const std::vector<UnitEntry>& model_units,
                                       const std::string& folder) {
  std::map<std::string, NamedTensor> unclaimed;
  for (const NamedTensor& t : all_tensors(saved_units)) unclaimed.emplace(t.spec->name, t);
  std::vector<std::string> rounded;
  for (const NamedTensor& t : all_tensors(model_units)) {
    const auto found = unclaimed.find(t.spec->name);
    require<CheckpointError>(found != unclaimed.end() && found->second.kind_name() == t.kind_name(),
                             "{}: is of another model: it has no {} {} (shape {} here); compare model.* with the "
                             "checkpoint's (mica-inspect)",
                             folder, t.kind_name(), t.spec->name, t.spec->shape.to_string());
    const NamedTensor& saved = found->second;
    require<CheckpointError>(saved.spec->shape == t.spec->shape,
                             "{}: is of another model: {} {} has shape {} there and {} here; compare model.* with the "
                             "checkpoint's (mica-inspect)",
                             folder, t.kind_name(), t.spec->name, saved.spec->shape.to_string(), t.spec->shape.to_string());
    const DType from = saved.unit->dtype;
    const DType to = t.unit->dtype;
    require<CheckpointError>(can_convert(from, to), "{}: {} {} is {} there and {} here", folder, t.kind_name(), t.spec->name,
                             dtype_name(from), dtype_name(to));
    if (from != to && to != DType::f32) {
      rounded.push_back(fmt::format("{} {} was {} and is {} here: its values are rounded", t.kind_name(), t.spec->name, dtype_name(from),
                                    dtype_name(to)));
    }
    unclaimed.erase(found);
  }
  for (const NamedTensor& t : all_tensors(saved_units)) {
    require<CheckpointError>(!unclaimed.contains(t.spec->name),
                             "{}: is of another model: this one has no {} {} (shape {} there); compare model.* with "
                             "the checkpoint's (mica-inspect)",
                             folder, t.kind_name(), t.spec->name, t.spec->shape.to_string());
  }
  return rounded;
}

bool is_same_unit(const UnitEntry& a, const UnitEntry& b) {
  return a.shard_size == b.shard_size && a.shard_numel == b.shard_numel && a.layout == b.layout && a.role == b.role &&
         std::ranges::equal(a.parameters, b.parameters, {}, &fsdp::ParameterSpec::name, &fsdp::ParameterSpec::name);
}

// --- loading ---------------------------------------------------------------------------------------------------------

class Loader {
 public:
  Loader(const std::string& folder, const Manifest& manifest, const LoadTarget& target)
      : folder_(folder), manifest_(manifest), target_(target), storages_(unit_storages(*target.root)) {}

  /// @throws what load() throws. Reads nothing and does not communicate.
  void prepare() {
    check_fit();
    if (target_.optimizer != nullptr) prepare_optimizer();
    target_.root->device_mesh().compute().synchronize();  // it zeroes fresh state
  }
  /// Whether each dataset of a file is exactly a shard of this model. If not, the tables of pieces are needed.
  [[nodiscard]] bool is_of_this_mesh() const { return std::ranges::equal(manifest_.units, unit_entries(units_), is_same_unit); }
  /// @param mesh_ranks  of the ranks of `comm`. @collective
  void read(const HostComm& comm, const std::vector<int>& mesh_ranks, bool is_of_this_mesh) {
    const ReadPlan plan = make_read_plan({folder_, manifest_, comm, units_, mesh(), mesh_ranks, is_of_this_mesh});
    report_.bytes = read_together({folder_, comm, pool(), plan.parts, [&] { return make_sinks(plan); }, plan.for_each_destination});
    if (!stateless_.empty()) start_counts_anew();
  }
  [[nodiscard]] LoadReport& report() { return report_; }

 private:
  [[nodiscard]] const Mesh& mesh() const { return target_.root->device_mesh().mesh(); }

  void check_fit() {
    require(target_.root->state() == fsdp::TrainingState::idle, "a checkpoint is loaded while the root is {}: load between passes",
            fsdp::training_state_name(target_.root->state()));
    for (const fsdp::UnitStorage* storage : storages_) {
      require(storage->is_initialized() && !storage->is_unsharded(), "unit {} is {}: load into an initialised, sharded model",
              storage->name(), storage->is_initialized() ? "unsharded" : "without storage");
    }
    whole_ = whole_tensors(*target_.root);
    units_ = saved_units(*target_.root);
    report_.notes = check_tensors(manifest_.units, unit_entries(units_), folder_);
    const std::string here = target_.root->device_mesh().kernels().description();
    if (here != manifest_.kernels) {
      report_.notes.push_back(
          fmt::format("the saved run used {}, this run uses {}: results may differ in the last bits", manifest_.kernels, here));
    }
    if (target_.omp_threads != 0 && target_.omp_threads != manifest_.omp_threads) {
      report_.notes.push_back(
          fmt::format("the saved run had {} OpenMP threads a rank, this run has {}: results may differ in "
                      "the last bits",
                      manifest_.omp_threads, target_.omp_threads));
    }
  }

  void prepare_optimizer() {
    optim::Optimizer& optimizer = *target_.optimizer;
    optimizer.allocate_state();
    takes_optimizer_ = !manifest_.optimizer.empty() && optimizer.state_kinds() == manifest_.state_kinds;
    if (!takes_optimizer_) {
      report_.notes.push_back(fmt::format("its optimizer state ({}) is not loaded: this run's {} starts from zero",
                                          manifest_.optimizer.empty() ? "none" : manifest_.optimizer, optimizer.name()));
    }
    for (std::size_t i = 0; takes_optimizer_ && i < manifest_.state_kinds.size(); ++i) {
      const std::string& kind = manifest_.state_kinds[i];
      const DType from = manifest_.state_dtype(kind), to = optimizer.state_dtypes()[i];
      if (from != to)
        report_.notes.push_back(fmt::format("its {} is {}, converted to this run's {}", kind, dtype_name(from), dtype_name(to)));
    }
    optimizer.set_num_steps(takes_optimizer_ ? manifest_.optimizer_steps : 0);
    if (takes_optimizer_) optimizer.set_parameter_steps(manifest_.parameter_steps);
    if (takes_optimizer_ && !manifest_.state_kinds.empty()) leave_out_frozen();
  }

  /// A parameter that is frozen here gets no state, so its steps count from zero when it is trained again.
  void leave_out_frozen() {
    const auto with_state = target_.optimizer->parameters_with_state();
    std::map<std::string, std::int64_t> left_out;
    for (const optim::ParamGroup& group : target_.optimizer->groups()) {
      for (const std::string& name : group.parameters) {
        if (!with_state.contains(name) && target_.optimizer->steps_of(name) > 0) left_out[name] = 0;
      }
    }
    if (left_out.empty()) return;
    target_.optimizer->set_parameter_steps(left_out);
    report_.notes.push_back(
        fmt::format("the optimizer state of {} parameter{} is not loaded, {}{}: frozen here; it starts from zero when trained again",
                    left_out.size(), left_out.size() == 1 ? "" : "s", left_out.begin()->first, left_out.size() == 1 ? "" : " ..."));
  }

  [[nodiscard]] const Pool& pool() const { return target_.root->device_mesh().pool(); }

  void clear(TensorView data) const {
    const std::vector<std::byte> zeros(static_cast<std::size_t>(std::min(data.bytes(), kBlockBytes)));
    for (std::int64_t at = 0; at < data.bytes(); at += std::ssize(zeros)) {
      pool().copy(static_cast<std::byte*>(data.data) + at, zeros.data(), std::min(std::ssize(zeros), data.bytes() - at));
    }
  }

  std::vector<Sink> make_sinks(const ReadPlan& plan) {
    for (std::size_t u = 0; u < storages_.size(); ++u) add(plan, u, std::string(kMasterKind), storages_[u]->write_master());
    for (std::size_t w = 0; w < whole_.size(); ++w) {
      add(plan, storages_.size() + w, std::string(kMasterKind), whole_[w].data);
    }
    if (target_.optimizer != nullptr) add_optimizer(plan);
    return std::move(sinks_);
  }

  void add_optimizer(const ReadPlan& plan) {
    const auto add_one = [&](std::size_t unit, const std::string& kind, TensorView data) {
      if (takes_optimizer_) {
        add(plan, unit, kind, data);
      } else {
        clear(data);
      }
    };
    for (const optim::StateShard& shard : target_.optimizer->state()) {
      add_one(static_cast<std::size_t>(std::ranges::find(storages_, shard.storage) - storages_.begin()), shard.kind, shard.data);
    }
    for (const optim::IgnoredState& state : target_.optimizer->ignored_state()) {
      const auto of = std::ranges::find(whole_, state.parameter, &WholeTensor::name);
      if (of == whole_.end()) continue;  // a parameter without elements
      add_one(storages_.size() + static_cast<std::size_t>(of - whole_.begin()), state.kind, state.data);
    }
  }

  /// Requests one kind of one unit's shard. State that the checkpoint lacks becomes zero: of a unit that no step had updated yet, or that
  /// was frozen or ignored when it was saved.
  void add(const ReadPlan& plan, std::size_t unit, const std::string& kind, TensorView to) {
    bool is_complete = true;
    for (const fsdp::ParameterSpec& p : units_[unit].layout->parameters()) {
      if (plan.has(p.name, kind)) continue;
      is_complete = false;
      stateless_[p.name] = 0;
    }
    if (!is_complete) clear(to);
    sinks_.push_back({unit, kind, to});
  }

  /// Moments that start from zero count their steps from zero, too: otherwise bias correction would leave the first steps many times too
  /// long.
  void start_counts_anew() {
    std::vector<std::string> names;
    for (const auto& [name, steps] : stateless_) {
      if (target_.optimizer->steps_of(name) > 0) names.push_back(name);
    }
    target_.optimizer->set_parameter_steps(stateless_);
    if (names.empty()) return;
    report_.notes.push_back(
        fmt::format("it has no optimizer state of {} parameter{}, {}{}: frozen or ignored when it was saved; here their "
                    "state starts from zero",
                    names.size(), names.size() == 1 ? "" : "s", names[0], names.size() == 1 ? "" : " ..."));
  }

  const std::string& folder_;
  const Manifest& manifest_;
  const LoadTarget& target_;
  std::vector<const fsdp::UnitStorage*> storages_;
  bool takes_optimizer_ = false;
  std::vector<SavedUnit> units_;  // this model's: for storages_, then for whole_
  std::vector<WholeTensor> whole_;
  std::vector<Sink> sinks_;
  std::map<std::string, std::int64_t> stateless_;  // parameters whose optimizer state the checkpoint lacks, with 0
  LoadReport report_;
};

/// Whether a run can resume from it: all files that its manifest names are there in their sizes, and it has the optimizer's state.
bool is_resumable(const std::string& folder) {
  try {
    const Manifest manifest = read_manifest(folder);
    check_file_sizes(manifest, folder);
    return !manifest.optimizer.empty();
  } catch (const Error&) {  // of another format, for example: cannot be resumed from
    return false;
  }
}

/// The newest checkpoint beside this one that is older and resumable; empty if there is none. Their bytes are not read, which would keep
/// the user waiting for minutes: loading checks them.
std::string older_resumable_checkpoint(const std::string& checkpoint_folder) {
  std::vector<CheckpointPath> all = list_checkpoints(io::parent_directory(checkpoint_folder));
  const std::string name = fs::path(checkpoint_folder + "/").parent_path().filename().string();
  const auto self = std::ranges::find_if(all, [&](const CheckpointPath& each) { return fs::path(each.path).filename() == name; });
  if (self == all.end()) return "";
  all.erase(self, all.end());
  const auto older = std::ranges::find_if(all | std::views::reverse, [](const CheckpointPath& each) { return is_resumable(each.path); });
  return older == all.rend() ? "" : older->path;
}

/// Runs a collective action. If all ranks throw a DamagedCheckpointError, adds the checkpoint to resume from instead.
template <class Action>
auto with_older_checkpoint(const std::string& folder, const HostComm& comm, Action&& action) {
  try {
    return action();
  } catch (const DamagedCheckpointError& e) {
    const std::string older = comm.from_root(0, [&] { return older_resumable_checkpoint(folder); });
    DamagedCheckpointError error(
        e.what() + (older.empty() ? std::string("; there is no older complete checkpoint with optimizer state beside it")
                                  : fmt::format("; the next older complete one is {}: resume with --checkpoint.resume={}", older, older)));
    error.set_num_sharers(e.num_sharers());
    throw error;
  }
}

}  // namespace

Manifest open_checkpoint(const std::string& checkpoint_folder, const HostComm& comm) {
  return with_older_checkpoint(checkpoint_folder, comm, [&] { return share_manifest(checkpoint_folder, comm); });
}

LoadReport load(const std::string& checkpoint_folder, const Manifest& manifest, const LoadTarget& target, const HostComm& comm) {
  return with_older_checkpoint(checkpoint_folder, comm, [&] {
    const auto start = Clock::now();
    Loader loader(checkpoint_folder, manifest, target);
    std::vector<int> mesh_ranks;
    bool is_of_this_mesh = true;
    for (const std::string& each : comm.all_or_throw([&] {
           loader.prepare();
           return fmt::format("{}{}", target.root->device_mesh().mesh().rank(), loader.is_of_this_mesh() ? "" : " other");
         })) {
      mesh_ranks.push_back(std::stoi(each));
      is_of_this_mesh = is_of_this_mesh && each.find(' ') == std::string::npos;
    }
    loader.read(comm, mesh_ranks, is_of_this_mesh);
    loader.report().tokenizer = share_tokenizer(checkpoint_folder, manifest, comm);
    loader.report().ms = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
    return loader.report();
  });
}

}  // namespace mica::checkpoint
