// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include "mica/comm/host_comm.hpp"
#include "mica/fsdp/state_dict.hpp"

#include "model_arrays.hpp"
#include "state_exchange.hpp"

namespace mica::fsdp {
namespace {

std::string joined(const std::vector<std::string>& keys) {
  std::string text;
  for (const std::string& key : keys) text += (text.empty() ? "" : ", ") + key;
  return text;
}

void require_no_strays(const LoadStateDictReport& report) {
  if (report.missing.empty() && report.unexpected.empty()) return;
  std::string text = "the state dict does not fit the model:";
  if (!report.missing.empty()) text += " missing " + joined(report.missing);
  if (!report.unexpected.empty()) text += (report.missing.empty() ? " unexpected " : "; unexpected ") + joined(report.unexpected);
  throw ConfigError(text + "; strict = false leaves missing ones as they are and ignores unexpected ones");
}

/// Keys of the dict that are not among `known`.
void note_unexpected(const StateDict& dict, const std::vector<std::string>& known, LoadStateDictReport& report) {
  for (const auto& [key, tensor] : dict) {
    if (std::ranges::find(known, key) == known.end()) report.unexpected.push_back(key);
  }
}

class Loader {
  using Arrays = std::vector<const StateArray*>;

 public:
  explicit Loader(nn::Module& module) : module_(module), arrays_(model_arrays(module, "loaded")) {}

  /// Each rank's dict has all that the rank stores: the only traffic is the agreement that all dicts fit.
  /// @param is_local  the dict has units' shards; otherwise all its tensors are whole.
  LoadStateDictReport load_own(const StateDict& dict, bool is_local, bool strict) {
    LoadStateDictReport report;
    const Arrays whole = is_local ? arrays_.of_unit(nullptr) : all();
    const std::vector<Unit*> shards = is_local ? arrays_.units : std::vector<Unit*>{};
    comm()->agree([&] {
      std::vector<std::string> known = keys_of(whole);
      for (Unit* unit : shards) {
        known.push_back(local_key(module_, *unit));
        check_shard(known.back(), *unit, dict, report);
      }
      check_whole(whole, dict, report);
      note_unexpected(dict, known, report);
      if (strict) require_no_strays(report);
    });
    begin_write();
    for (Unit* unit : shards) {
      const auto entry = dict.find(local_key(module_, *unit));
      if (entry != dict.end()) store_shard(*unit, entry->second.view());
    }
    for (const StateArray* array : whole) {
      const auto entry = dict.find(array->key);
      if (entry != dict.end()) store(arrays_, *array, 0, entry->second.view());
    }
    arrays_.synchronize();  // the caller may free the dict
    return report;
  }

  LoadStateDictReport load_pieces(std::span<const StateDict> dicts, bool strict) {
    LoadStateDictReport report;
    std::vector<FoundRun> mine;
    comm()->agree([&] {
      for (const StateDict& dict : dicts) note_unexpected(dict, keys_of(all()), report);
      mine = find_runs(arrays_, dicts, rank());
      if (strict) require_no_strays(report);
    });
    std::vector<FoundRun> found;
    const std::string bytes(reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof(FoundRun));
    for (const std::string& each : comm()->gather_strings(bytes)) {
      const std::size_t before = found.size();
      found.resize(before + each.size() / sizeof(FoundRun));
      if (!each.empty()) std::memcpy(found.data() + before, each.data(), each.size());
    }
    // From here on all ranks have the same data and make the same decisions.
    const std::vector<FoundRun> chosen = choose_runs(arrays_, std::move(found), report.missing);
    if (strict) require_no_strays(report);
    begin_write();
    exchange(arrays_, chosen, dicts);
    arrays_.synchronize();
    return report;
  }

  void refuse_unsharded() const { require_sharded(arrays_.units, "loading a sharded state dict"); }
  [[nodiscard]] int rank() const { return world().rank(); }

 private:
  [[nodiscard]] ProcessGroup& world() const { return arrays_.roots.front()->device_mesh().mesh().world(); }
  [[nodiscard]] std::unique_ptr<HostComm> comm() const {
    return make_group_comm(world(), arrays_.roots.front()->device_mesh().compute(), "load_state_dict");
  }
  /// Reshards: unsharded copies would go stale.
  void begin_write() {
    for (Root* root : arrays_.roots) root->reshard();
  }

  [[nodiscard]] Arrays all() const {
    Arrays found;
    for (const StateArray& array : arrays_.all) found.push_back(&array);
    return found;
  }

  static std::vector<std::string> keys_of(const Arrays& arrays) {
    std::vector<std::string> keys;
    for (const StateArray* array : arrays) keys.push_back(array->key);
    return keys;
  }

  static void check_whole(const Arrays& arrays, const StateDict& dict, LoadStateDictReport& report) {
    for (const StateArray* array : arrays) {
      const auto entry = dict.find(array->key);
      if (entry == dict.end()) {
        report.missing.push_back(array->key);
        continue;
      }
      const StateTensor& tensor = entry->second;
      check_tensor(*array, tensor);
      require<ConfigError>(tensor.is_whole(),
                           "{} holds rows [{}, {}) of {} in the state dict, expected all of them: "
                           "load it with the sharded kind",
                           array->key, tensor.row_begin(), tensor.row_begin() + rows_of(tensor.shape()), array->shape.to_string());
    }
  }

  static void check_shard(const std::string& key, Unit& unit, const StateDict& dict, LoadStateDictReport& report) {
    const auto entry = dict.find(key);
    if (entry == dict.end()) {
      report.missing.push_back(key);
      return;
    }
    const StateTensor& tensor = entry->second;
    const UnitStorage& storage = *unit.storage();
    const std::int64_t shard = storage.master().numel(), expected = unpadded_numel(unit);
    require<ConfigError>(tensor.numel() == expected && tensor.dtype() == storage.master().dtype,
                         "{} has {} elements of dtype {} in this rank's local state dict, {} of dtype {} in the model: it "
                         "needs the same wrapping and world size",
                         key, tensor.numel(), dtype_name(tensor.dtype()), expected, dtype_name(storage.master().dtype));
    require<ConfigError>(tensor.global_shape() == Shape{shard * storage.shard_size()} && tensor.row_begin() == shard * storage.shard_rank(),
                         "{} begins at element {} of {} (padding included) in this rank's local state dict, at {} of [{}] in "
                         "the model: it needs the same wrapping, world size and rank",
                         key, tensor.row_begin(), tensor.global_shape().to_string(), shard * storage.shard_rank(),
                         shard * storage.shard_size());
  }

  /// Elements outside all pieces become zero.
  static void store_shard(Unit& unit, ConstTensorView from) {
    const UnitStorage& storage = *unit.storage();
    Kernels& kernels = unit.device_mesh().kernels();
    Stream& compute = unit.device_mesh().compute();
    const TensorView master = storage.write_master(compute);
    if (from.numel() > 0 && from.data != master.data) kernels.copy(compute, from, master.slice(0, from.numel()));
    std::int64_t at = 0;
    const auto clear_to = [&](std::int64_t end) {
      if (end > at) kernels.fill(compute, master.slice(at, end - at), 0);
    };
    for (const Piece& piece : unit.root().pieces_of(unit)) {
      clear_to(piece.offset);
      at = piece.offset + piece.numel();
    }
    clear_to(master.numel());
  }

  nn::Module& module_;
  StateArrays arrays_;
};

}  // namespace

LoadStateDictReport load_state_dict(nn::Module& module, const StateDict& dict, const LoadStateDictOptions& options) {
  const StateDictKind kind = state_dict_settings(module).kind;
  require<ConfigError>(!options.from_rank0 || kind == StateDictKind::full, "from_rank0 is for full state dicts, the kind is {}",
                       state_dict_kind_name(kind));
  Loader loader(module);
  if (kind == StateDictKind::sharded) {
    loader.refuse_unsharded();
    return loader.load_pieces({&dict, 1}, options.strict);
  }
  if (options.from_rank0) return loader.load_pieces({&dict, loader.rank() == 0 ? 1U : 0U}, options.strict);
  return loader.load_own(dict, kind == StateDictKind::local, options.strict);
}

LoadStateDictReport load_state_dict_pieces(nn::Module& module, std::span<const StateDict> pieces, bool strict) {
  return Loader(module).load_pieces(pieces, strict);
}

}  // namespace mica::fsdp
