// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include <nlohmann/json.hpp>

#include "mica/checkpoint/folder.hpp"
#include "mica/checkpoint/inspect.hpp"
#include "mica/checkpoint/lineage.hpp"
#include "mica/checkpoint/retention.hpp"
#include "mica/io/atomic_file.hpp"

#include "token_ids.hpp"

namespace mica::checkpoint {
namespace {

using Json = nlohmann::ordered_json;

std::string dump(const Json& json) { return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n"; }

std::vector<std::int64_t> dims_of(const Shape& shape) { return {shape.dims().begin(), shape.dims().end()}; }

std::string_view result_name(DiffEntry::Result result) {
  constexpr std::string_view kNames[] = {"equal", "different", "other_shape", "only_in_a", "only_in_b"};
  return kNames[static_cast<std::size_t>(result)];
}

Json to_json(const DiffEntry& e) {
  Json json = {{"parameter", e.parameter}, {"kind", e.kind}, {"result", result_name(e.result)}};
  if (e.result != DiffEntry::Result::only_in_b) json["shape_a"] = dims_of(e.shape_a);
  if (e.result != DiffEntry::Result::only_in_a) json["shape_b"] = dims_of(e.shape_b);
  if (e.result == DiffEntry::Result::different) {
    json["num_different"] = e.num_different;
    json["max_at"] = e.max_at;
    // JSON has no NaN and no infinity.
    if (std::isfinite(e.max_difference))
      json["max_difference"] = e.max_difference;
    else
      json["max_difference"] = fmt::format("{}", e.max_difference);
  }
  return json;
}

}  // namespace

std::string summary_json(const std::string& folder, const Manifest& m) {
  Json units = Json::array();
  for (const UnitEntry& unit : m.units) {
    Json parameters = Json::array();
    for (const auto& p : unit.parameters) parameters.push_back({{"name", p.name}, {"shape", dims_of(p.shape)}});
    units.push_back({{"name", unit.name},
                     {"shard_size", unit.shard_size},
                     {"shard_numel", unit.shard_numel},
                     {"layout", unit.layout},
                     {"role", unit_role_name(unit.role)},
                     {"dtype", dtype_name(unit.dtype)},
                     {"parameters", std::move(parameters)}});
  }
  Json files = Json::array();
  for (const FileEntry& file : m.files) {
    files.push_back({{"name", file.name}, {"shard_rank", file.shard_rank}, {"bytes", file.bytes}});
  }
  Json state_dtypes = Json::array();
  for (const std::string& kind : m.state_kinds) state_dtypes.push_back(dtype_name(m.state_dtype(kind)));
  Json tokenizer_files = Json::array();
  for (const FileEntry& file : m.tokenizer.files) tokenizer_files.push_back({{"name", file.name}, {"bytes", file.bytes}});
  Json line = Json::array();
  for (const LineEntry& entry : line_of(folder, m).entries) {
    line.push_back({{"step", entry.id.step}, {"run_id", entry.id.run_id}, {"is_there", entry.is_there}});
  }
  Json kept = Json::array();
  for (const Kept& each : kept_checkpoints(io::parent_directory(folder))) {
    kept.push_back({{"step", each.step}, {"reasons", each.reasons}});
  }
  return dump({{"checkpoint", folder},
               {"step", m.step},
               {"val_loss", m.val_loss ? Json(*m.val_loss) : Json(nullptr)},
               {"val_data", m.val_data},
               {"diverged", m.diverged},
               {"kept", std::move(kept)},
               {"line", std::move(line)},
               {"set_aside", list_set_aside(io::parent_directory(folder))},
               {"tokens", m.tokens},
               {"global_batch", m.global_batch},
               {"sequences", m.sequences},
               {"data", m.data},
               {"seed", m.seed},
               {"model", m.model},
               {"num_parameters", m.num_parameters()},
               {"optimizer",
                {{"name", m.optimizer},
                 {"num_steps", m.optimizer_steps},
                 {"state_kinds", m.state_kinds},
                 {"state_dtypes", std::move(state_dtypes)}}},
               {"mesh", {{"world_size", m.world_size}, {"shard_size", m.shard_size}, {"replicas", m.replicas}}},
               {"strategy", m.strategy},
               {"mica_version", m.mica_version},
               {"run_id", m.run_id},
               {"kernels", m.kernels},
               {"omp_threads", m.omp_threads},
               {"bytes", m.total_bytes()},
               {"files", std::move(files)},
               {"index", {{"name", m.index.name}, {"bytes", m.index.bytes}}},
               {"tokenizer",
                {{"source", m.tokenizer.source}, {"token_ids", to_json(m.tokenizer.token_ids)}, {"files", std::move(tokenizer_files)}}},
               {"units", std::move(units)},
               {"config", m.config}});
}

std::string diff_json(const DiffReport& report) {
  Json entries = Json::array();
  for (const DiffEntry& e : report.entries) entries.push_back(to_json(e));
  return dump({{"equal", report.is_equal()},
               {"num_equal", report.num_equal()},
               {"optimizer_difference", report.optimizer_difference},
               {"scalar_differences", report.scalar_differences},
               {"arrays", std::move(entries)}});
}

std::string hang_json(const std::string& folder, const HangScene& scene) {
  return dump({{"records", folder}, {"causes", find_causes(scene)}, {"report", hang_report(scene)}});
}

std::string verify_json(const std::string& folder, const VerifyReport& report) {
  return dump(
      {{"checkpoint", folder}, {"sound", report.damage.empty()}, {"bytes", report.bytes}, {"ms", report.ms}, {"damage", report.damage}});
}

}  // namespace mica::checkpoint
