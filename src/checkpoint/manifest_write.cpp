// SPDX-License-Identifier: Apache-2.0
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "mica/checkpoint/manifest.hpp"
#include "mica/io/crc32c.hpp"

#include "manifest_trailer.hpp"
#include "token_ids.hpp"

namespace mica::checkpoint {
namespace {

using Json = nlohmann::ordered_json;

std::string crc_list(const std::vector<std::uint32_t>& crcs) {
  std::string text;
  for (const std::uint32_t crc : crcs) text += fmt::format("{}{:08x}", text.empty() ? "" : " ", crc);
  return text;
}

Json to_json(const DatasetEntry& dataset) {
  return {{"path", dataset.path},
          {"unit", dataset.unit},
          {"kind", dataset.kind},
          {"offset", dataset.offset},
          {"bytes", dataset.bytes},
          {"dtype", dtype_name(dataset.dtype)},
          {"crc32c_blocks", crc_list(dataset.block_crcs)}};
}

Json to_json(const FileEntry& file) {
  Json datasets = Json::array();
  for (const DatasetEntry& dataset : file.datasets) datasets.push_back(to_json(dataset));
  return {{"name", file.name},
          {"shard_rank", file.shard_rank},
          {"bytes", file.bytes},
          {"rest_crc32c", fmt::format("{:08x}", file.rest_crc)},
          {"datasets", std::move(datasets)}};
}

Json whole_file_to_json(const FileEntry& file) {
  return {{"name", file.name}, {"bytes", file.bytes}, {"rest_crc32c", fmt::format("{:08x}", file.rest_crc)}};
}

Json to_json(const UnitEntry& unit) {
  Json parameters = Json::array();
  for (const fsdp::ParameterSpec& p : unit.parameters) {
    parameters.push_back({{"name", p.name}, {"shape", std::vector<std::int64_t>(p.shape.dims().begin(), p.shape.dims().end())}});
  }
  return {{"name", unit.name},
          {"shard_size", unit.shard_size},
          {"shard_numel", unit.shard_numel},
          {"layout", unit.layout},
          {"role", unit_role_name(unit.role)},
          {"dtype", dtype_name(unit.dtype)},
          {"parameters", std::move(parameters)}};
}

Json to_json(const Retention& rules) { return {{"newest", rules.newest}, {"every", rules.every}, {"best", rules.best}}; }

/// Replaces invalid UTF-8, so that no name or text makes a save fail.
std::string dump(const Json& json, int indent) { return json.dump(indent, ' ', false, Json::error_handler_t::replace); }

}  // namespace

std::string manifest_trailer(std::string_view covered) {
  return fmt::format(",\n \"manifest_crc32c\": \"{:08x}\"\n}}\n", io::crc32c(covered.data(), static_cast<std::int64_t>(covered.size())));
}

std::string_view unit_role_name(UnitRole role) {
  constexpr std::string_view kNames[] = {"unit", "ignored", "buffer"};
  return kNames[static_cast<std::size_t>(role)];
}

std::string manifest_text(const Manifest& m) {
  std::vector<std::string> files;
  for (const FileEntry& file : m.files) files.push_back(file_entry_text(file));
  return manifest_text(m, files);
}

std::string manifest_text(const Manifest& m, const std::vector<std::string>& files) {
  Json state_dtypes = Json::array();
  for (const std::string& kind : m.state_kinds) state_dtypes.push_back(dtype_name(m.state_dtype(kind)));
  Json units = Json::array();
  for (const UnitEntry& unit : m.units) units.push_back(to_json(unit));
  Json tokenizer_files = Json::array();
  for (const FileEntry& file : m.tokenizer.files) tokenizer_files.push_back(whole_file_to_json(file));
  const Json json = {
      {"format", "mica checkpoint"},
      {"format_version", kFormatVersion},
      {"mica_version", m.mica_version},
      {"run_id", m.run_id},
      {"step", m.step},
      {"parent", m.parent ? Json{{"run_id", m.parent->run_id}, {"step", m.parent->step}} : Json(nullptr)},
      {"began_from", m.began_from},
      {"tokens", m.tokens},
      {"global_batch", m.global_batch},
      {"sequences", m.sequences},
      {"data", m.data},
      {"seed", m.seed},
      {"mesh", {{"world_size", m.world_size}, {"shard_size", m.shard_size}, {"replicas", m.replicas}}},
      {"strategy", m.strategy},
      {"kernels", m.kernels},
      {"omp_threads", m.omp_threads},
      {"optimizer",
       {{"name", m.optimizer},
        {"num_steps", m.optimizer_steps},
        {"state_kinds", m.state_kinds},
        {"state_dtypes", std::move(state_dtypes)},
        {"parameter_steps", m.parameter_steps}}},
      {"scalars", m.scalars},
      {"val_loss", m.val_loss ? Json(*m.val_loss) : Json(nullptr)},
      {"val_data", m.val_data},
      {"diverged", m.diverged},
      {"retention", m.retention ? to_json(*m.retention) : Json(nullptr)},
      {"model", m.model},
      {"config", m.config},
      {"block_bytes", kBlockBytes},
      {"units", std::move(units)},
      {"index", whole_file_to_json(m.index)},
      {"tokenizer", {{"source", m.tokenizer.source}, {"token_ids", to_json(m.tokenizer.token_ids)}, {"files", std::move(tokenizer_files)}}},
  };
  std::string text = dump(json, 1);
  text.resize(text.size() - 2);  // the closing "\n}" comes after the checksum
  text += fmt::format("{}{}{}]", kManifestFiles, files.empty() ? "" : "\n  ", fmt::join(files, ",\n  "));
  return text + manifest_trailer(text);
}

std::string file_entry_text(const FileEntry& file) { return dump(to_json(file), -1); }

}  // namespace mica::checkpoint
