// SPDX-License-Identifier: Apache-2.0
#include "mica/checkpoint/convert.hpp"
#include "mica/checkpoint/save.hpp"
#include "mica/fsdp/layout_by_name.hpp"
#include "mica/io/atomic_file.hpp"

#include "../checkpoint_writer.hpp"
#include "../parameter_reader.hpp"
#include "../tokenizer_files.hpp"

namespace mica::checkpoint {
namespace {

/// The name of the layout for --sharding: flat, or every parameter by rows, or as before.
std::string layout_name(const UnitEntry& unit, const std::string& sharding) {
  if (sharding == "flat") return "flat";
  if (sharding.empty()) return unit.layout;
  std::string name = "per_parameter ";
  for (std::size_t i = 0; i < unit.parameters.size(); ++i) name += i == 0 ? "0" : ",0";
  return name;
}

}  // namespace

ConvertReport reshard(const std::string& checkpoint, const std::string& out, int num_ranks, const std::string& sharding,
                      const ConvertOptions& options) {
  require<ConfigError>(num_ranks >= 1, "--ranks is {}, expected at least 1", num_ranks);
  ParameterReader reader(checkpoint);
  Manifest header = reader.manifest();
  header.parent = header.id();
  header.run_id = make_run_id();  // its files must not be mistaken for the original's
  header.world_size = header.shard_size = num_ranks;
  header.replicas = 1;
  header.strategy = "full_shard";
  header.files.clear();
  header.index = {};
  ConvertReport report;
  for (UnitEntry& unit : header.units) {
    if (!unit.is_whole()) {
      unit.shard_size = num_ranks;
      unit.layout = layout_name(unit, sharding);
    }
    (void)fsdp::make_layout(unit.layout, unit.parameters, unit.shard_size);  // throws if it cannot be cut that way
    for (const fsdp::ParameterSpec& p : unit.parameters) {
      std::vector<std::string> kinds = header.state_kinds;
      kinds.emplace_back(kMasterKind);
      for (const std::string& kind : kinds) {
        if (!reader.has(p.name, kind)) continue;
        ++report.num_tensors;
        report.numel += p.shape.numel();
        report.bytes += p.shape.numel() * dtype_bytes(reader.dtype(p.name, kind));
      }
    }
  }
  report.num_files = num_ranks;
  if (const auto type = header.model.find("type"); type != header.model.end()) report.model_type = type->second;
  if (options.is_dry_run) {
    io::check_new(out);
    return report;
  }
  const HfTokenizer tokenizer = read_tokenizer(checkpoint, reader.manifest().tokenizer);
  write_checkpoint(out, std::move(header), reader, tokenizer, options.progress);
  return report;
}

}  // namespace mica::checkpoint
