#include <algorithm>
#include <cstring>

#include "mica/comm/host_comm.hpp"
#include "mica/fsdp/state_dict.hpp"
#include "state_dict_items.hpp"
#include "state_dict_pieces.hpp"

namespace mica::fsdp {
namespace {

constexpr const char* kLabel = "load_state_dict";

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
 public:
  explicit Loader(nn::Module& module) : module_(module), items_(state_items(module, "loaded")) {}

  /// Every rank's dict is whole: no traffic but the agreement that all of them fit.
  LoadStateDictReport load_full(const StateDict& dict, bool strict) {
    LoadStateDictReport report;
    comm()->agree([&] {
      note_unexpected(dict, items_.keys(), report);
      for (const StateItem& item : items_.items) {
        const auto entry = dict.find(item.key);
        if (entry == dict.end()) {
          report.missing.push_back(item.key);
          continue;
        }
        check_tensor(item, entry->second);
        require<ConfigError>(entry->second.is_whole(), "{} holds rows [{}, {}) of {} in the state dict, expected all of them: "
                             "load it with the sharded kind",
                             item.key, entry->second.row_begin(), entry->second.row_begin() + rows_of(entry->second.shape()),
                             item.shape.to_string());
      }
      if (strict) require_no_strays(report);
    });
    begin_write();
    for (const StateItem& item : items_.items) {
      const auto entry = dict.find(item.key);
      if (entry != dict.end()) store_rows(items_, item, 0, entry->second.view());
    }
    finish();
    return report;
  }

  LoadStateDictReport load_local(const StateDict& dict, bool strict) {
    LoadStateDictReport report;
    comm()->agree([&] { check_local(dict, strict, report); });
    begin_write();
    for (const Unit* unit : items_.units) {
      const auto entry = dict.find(local_key(module_, *unit));
      if (entry == dict.end()) continue;
      const TensorView master = unit->storage()->write_master();
      const std::int64_t numel = entry->second.numel();
      Kernels& kernels = unit->device_mesh().kernels();
      Stream& compute = unit->device_mesh().compute();
      if (numel > 0 && entry->second.view().data != master.data) kernels.copy(compute, entry->second.view(), master.slice(0, numel));
      for (const auto& [begin, end] : padding_of(*unit->storage()))
        kernels.fill(compute, master.slice(begin, end - begin), 0);
    }
    for (const StateItem* item : items_.of_unit(nullptr)) {
      const auto entry = dict.find(item->key);
      if (entry != dict.end()) store_rows(items_, *item, 0, entry->second.view());
    }
    finish();
    return report;
  }

  LoadStateDictReport load_pieces(std::span<const StateDict> parts, bool strict) {
    LoadStateDictReport report;
    std::vector<RowsAt> mine;
    comm()->agree([&] {
      for (const StateDict& dict : parts) note_unexpected(dict, items_.keys(), report);
      mine = rows_in(items_, parts, world().rank());
      if (strict) require_no_strays(report);
    });
    std::vector<RowsAt> found;
    std::string bytes(mine.size() * sizeof(RowsAt), '\0');
    if (!mine.empty()) std::memcpy(bytes.data(), mine.data(), bytes.size());
    for (const std::string& each : comm()->gather_strings(bytes)) {
      const std::size_t before = found.size();
      found.resize(before + each.size() / sizeof(RowsAt));
      if (!each.empty()) std::memcpy(found.data() + before, each.data(), each.size());
    }
    // From here on all ranks know, and do, the same.
    const std::vector<RowsAt> chosen = choose_rows(items_, std::move(found), report.missing);
    if (strict) require_no_strays(report);
    begin_write();
    exchange_rows(items_, chosen, parts);
    finish();
    return report;
  }

  void refuse_unsharded() const { require_sharded(items_.units, "loading a sharded state dict"); }
  [[nodiscard]] int rank() const { return world().rank(); }

 private:
  [[nodiscard]] ProcessGroup& world() const { return items_.roots.front()->device_mesh().mesh().world(); }
  [[nodiscard]] Stream& compute() const { return items_.roots.front()->device_mesh().compute(); }
  [[nodiscard]] std::unique_ptr<HostComm> comm() const { return make_group_comm(world(), compute(), kLabel); }
  /// What is unsharded would go stale.
  void begin_write() {
    for (Root* root : items_.roots) root->reshard();
  }
  /// The dict may go away.
  void finish() {
    for (Root* root : items_.roots) root->device_mesh().compute().synchronize();
  }

  void check_local(const StateDict& dict, bool strict, LoadStateDictReport& report) {
    std::vector<std::string> known;
    for (const Unit* unit : items_.units) {
      known.push_back(local_key(module_, *unit));
      const auto entry = dict.find(known.back());
      if (entry == dict.end()) {
        report.missing.push_back(known.back());
        continue;
      }
      const UnitStorage& storage = *unit->storage();
      const StateTensor& tensor = entry->second;
      const std::int64_t shard = storage.master().numel(), expected = unpadded_numel(storage, storage.shard_rank());
      require<ConfigError>(tensor.numel() == expected && tensor.dtype() == storage.master().dtype,
                           "{} has {} elements of dtype {} in this rank's local state dict, {} of dtype {} in the model: it "
                           "needs equal wrapping and world",
                           known.back(), tensor.numel(), dtype_name(tensor.dtype()), expected, dtype_name(storage.master().dtype));
      require<ConfigError>(tensor.global_shape() == Shape{shard * storage.shard_size()} &&
                               tensor.row_begin() == shard * storage.shard_rank(),
                           "{} begins at element {} of {} (padding included) in this rank's local state dict, at {} of [{}] in "
                           "the model: it needs equal wrapping and world, and the same rank",
                           known.back(), tensor.row_begin(), tensor.global_shape().to_string(), shard * storage.shard_rank(),
                           shard * storage.shard_size());
    }
    for (const StateItem* item : items_.of_unit(nullptr)) {
      known.push_back(item->key);
      const auto entry = dict.find(item->key);
      if (entry == dict.end()) {
        report.missing.push_back(item->key);
      } else {
        check_tensor(*item, entry->second);
      }
    }
    note_unexpected(dict, known, report);
    if (strict) require_no_strays(report);
  }

  nn::Module& module_;
  StateItems items_;
};

}  // namespace

LoadStateDictReport load_state_dict(nn::Module& module, const StateDict& dict, const LoadStateDictOptions& options) {
  const StateDictKind kind = state_dict_settings(module).kind;
  require<ConfigError>(!options.from_rank0 || kind == StateDictKind::full,
                       "from_rank0 is for full state dicts, the kind is {}", state_dict_kind_name(kind));
  Loader loader(module);
  if (kind == StateDictKind::local) return loader.load_local(dict, options.strict);
  if (kind == StateDictKind::sharded) {
    loader.refuse_unsharded();
    return loader.load_pieces({&dict, 1}, options.strict);
  }
  if (!options.from_rank0) return loader.load_full(dict, options.strict);
  return loader.load_pieces({&dict, loader.rank() == 0 ? 1U : 0U}, options.strict);
}

LoadStateDictReport load_state_dict_pieces(nn::Module& module, std::span<const StateDict> pieces, bool strict) {
  return Loader(module).load_pieces(pieces, strict);
}

}  // namespace mica::fsdp
