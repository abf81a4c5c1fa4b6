// SPDX-License-Identifier: Apache-2.0
#include <filesystem>

#include "mica/checkpoint/convert.hpp"
#include "mica/checkpoint/save.hpp"
#include "mica/core/version.hpp"
#include "mica/io/atomic_file.hpp"

#include "../checkpoint_writer.hpp"
#include "hf_source.hpp"
#include "hf_tokenizer.hpp"

namespace mica::checkpoint {
namespace {

/// The block of a parameter ("model.layers.3"); "" if it is in none.
std::string block_of(const HfArchitecture& architecture, const std::string& parameter) {
  if (!parameter.starts_with(architecture.block_prefix)) return "";
  return parameter.substr(0, parameter.find('.', architecture.block_prefix.size()));
}

/// The units of fsdp.wrap=block: the root first, with the parameters outside blocks, then the blocks.
std::vector<UnitEntry> units_of(const HfModel& model) {
  std::vector<UnitEntry> units(1);
  units[0].name = model.architecture->type;
  for (const HfTensor& tensor : model.tensors) {
    const std::string block = block_of(*model.architecture, tensor.parameter);
    if (!block.empty() && units.back().name != block) {
      units.emplace_back();
      units.back().name = block;
    }
    (block.empty() ? units.front() : units.back()).parameters.push_back({tensor.parameter, tensor.shape});
  }
  return units;
}

std::string config_text(const HfModel& model) {
  std::string text = "[model]\n";
  for (const auto& [key, value] : model.keys.all()) text += fmt::format("{} = {}\n", key, value);
  return text;
}

}  // namespace

ConvertReport hf_import(const std::string& hf_folder, const std::string& checkpoint, const ConvertOptions& options) {
  HfSource source(hf_folder, options.panel_numel);
  const HfModel& model = source.model();
  ConvertReport report{.model_type = std::string(model.architecture->type)};
  report.num_tensors = std::ssize(model.tensors);
  report.num_files = 1;
  for (const HfTensor& tensor : model.tensors) report.numel += tensor.shape.numel();
  report.bytes = report.numel * static_cast<std::int64_t>(sizeof(float));
  report.config = config_text(model);
  const HfTokenizer tokenizer = read_hf_tokenizer(hf_folder);
  const std::string held = describe(tokenizer);
  report.tokenizer = has_vocabulary(tokenizer)
                         ? fmt::format("with the tokenizer: {}", held)
                         : fmt::format("without a tokenizer: no tokenizer.json, tokenizer.model or vocab.json there{}{}",
                                       held.empty() ? "" : "; with ", held);
  io::check_new(checkpoint);
  source.check_tied_head();
  if (options.is_dry_run) return report;

  Manifest header;
  header.mica_version = full_version();
  header.run_id = make_run_id();
  header.strategy = "full_shard";
  header.kernels = "none: imported from " + hf_folder;
  header.seed = 1;
  header.model = model.keys.all();
  header.config = report.config;
  header.units = units_of(model);
  write_checkpoint(checkpoint, std::move(header), source, tokenizer, options.progress);
  return report;
}

}  // namespace mica::checkpoint
