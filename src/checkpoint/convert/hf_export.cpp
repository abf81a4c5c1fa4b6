// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <map>

#include "mica/checkpoint/convert.hpp"
#include "mica/io/atomic_file.hpp"
#include "mica/io/safetensors.hpp"

#include "../checksum_list.hpp"
#include "../parameter_reader.hpp"
#include "../tokenizer_files.hpp"
#include "hf_config.hpp"
#include "hf_tensors.hpp"
#include "hf_tokenizer.hpp"
#include "transpose.hpp"

namespace mica::checkpoint {
namespace {

constexpr std::int64_t kExportNumel = std::int64_t{4} << 20;  // 16 MiB
constexpr float kHalfOverflow = 65520;                        // rounds to infinity in fp16

/// Tensors [begin, end) of the model make up one file.
struct Shard {
  std::string name;
  std::size_t begin, end;
};

std::vector<Shard> plan_shards(const std::vector<HfTensor>& tensors, const HfExportOptions& hf) {
  std::vector<Shard> shards;
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::int64_t mine = tensors[i].shape.numel() * dtype_bytes(hf.dtype);
    if (shards.empty() || bytes + mine > hf.max_shard_bytes) {
      shards.push_back({"", i, i});
      bytes = 0;
    }
    shards.back().end = i + 1;
    bytes += mine;
  }
  for (std::size_t s = 0; s < shards.size(); ++s) {
    shards[s].name = shards.size() == 1 ? kHfSingleFile : fmt::format("model-{:05}-of-{:05}.safetensors", s + 1, shards.size());
  }
  return shards;
}

/// The model's keys; each 0 is replaced by the number that it stands for.
ModelKeys keys_of(const Manifest& manifest, const std::string& checkpoint) {
  const ModelKeys keys = normalized({manifest.model, checkpoint});
  if (!keys.has("intermediate_size") || keys.integer("intermediate_size") != 0) return keys;
  std::map<std::string, std::string> all = keys.all();
  for (const UnitEntry& unit : manifest.units) {
    for (const fsdp::ParameterSpec& p : unit.parameters) {
      if (p.name == "model.layers.0.mlp.up_proj.weight") all["intermediate_size"] = std::to_string(p.shape[0]);
    }
  }
  return {all, checkpoint};
}

/// Requires that the checkpoint holds exactly the parameters that the model has by its keys.
void check_parameters(const std::vector<HfTensor>& tensors, const Manifest& manifest, const std::string& checkpoint) {
  std::map<std::string, Shape> held;
  for (const UnitEntry& unit : manifest.units) {
    if (unit.role == UnitRole::buffer) continue;
    for (const fsdp::ParameterSpec& p : unit.parameters) held.emplace(p.name, p.shape);
  }
  for (const HfTensor& tensor : tensors) {
    const auto found = held.find(tensor.parameter);
    require<ConfigError>(found != held.end(), "{}: has no parameter {}, which its model has", checkpoint, tensor.parameter);
    require<CheckpointError>(found->second == tensor.shape, "{}: parameter {} has the shape {}, but the model's keys imply {}", checkpoint,
                             tensor.parameter, found->second.to_string(), tensor.shape.to_string());
    held.erase(found);
  }
  require<ConfigError>(held.empty(), "{}: parameter {} has no counterpart in Hugging Face's model", checkpoint,
                       held.empty() ? "" : held.begin()->first);
}

std::string index_text(const std::vector<HfTensor>& tensors, const std::vector<Shard>& shards, std::int64_t bytes) {
  std::map<std::string, std::string> weight_map;
  for (const Shard& shard : shards) {
    for (std::size_t i = shard.begin; i < shard.end; ++i) weight_map[tensors[i].hf_name] = shard.name;
  }
  const Json json = {{"metadata", {{"total_size", bytes}}}, {"weight_map", weight_map}};
  return json.dump(2) + "\n";
}

/// The tokenizer to write: --tokenizer's, or the checkpoint's. @throws ConfigError if the former has no vocabulary.
HfTokenizer tokenizer_for(const HfExportOptions& hf, const std::string& checkpoint, const Manifest& manifest) {
  if (hf.tokenizer.empty()) return read_tokenizer(checkpoint, manifest.tokenizer);
  HfTokenizer tokenizer = read_hf_tokenizer(hf.tokenizer);
  require<ConfigError>(has_vocabulary(tokenizer),
                       "--tokenizer={}: no tokenizer.json, tokenizer.model or vocab.json there; name the folder of the vocabulary that "
                       "the model was trained with",
                       hf.tokenizer);
  return tokenizer;
}

std::string tokenizer_report(const HfTokenizer& tokenizer) {
  constexpr const char* kAdvice = "to include them, give --tokenizer=HF_FOLDER";
  const std::string held = describe(tokenizer);
  if (tokenizer.source.empty() && held.empty()) {
    return fmt::format("without a tokenizer and its special token ids, which this checkpoint does not hold; {}", kAdvice);
  }
  if (tokenizer.source.empty()) {
    return fmt::format("without a tokenizer, which this checkpoint does not hold; {}; with GPT-2's {}", kAdvice, held);
  }
  if (has_vocabulary(tokenizer)) return fmt::format("with the tokenizer of {}: {}", tokenizer.source, held);
  return fmt::format("without a tokenizer, since {} had none; {}{}{}", tokenizer.source, kAdvice, held.empty() ? "" : "; with ", held);
}

/// That config.json names no end token, where a user might expect one; else empty. @param is_chosen  by --tokenizer
std::string warning_of_no_end(const HfTokenizer& tokenizer, const HfArchitecture& architecture, std::int64_t vocab_size, bool is_chosen) {
  if (const auto end = tokenizer.token_ids.find("eos_token_id"); end != tokenizer.token_ids.end() && !end->second.empty()) return "";
  constexpr const char* kEffect = "so config.json names no end token, at which transformers' generate() would stop";
  if (is_chosen) return fmt::format("no file of {} tells its eos_token_id, {}", tokenizer.source, kEffect);
  if (!tokenizer.source.empty() || architecture.own_vocab_size == 0 || vocab_size <= architecture.padded_vocab_size) return "";
  return fmt::format("its vocabulary of {} ids is not GPT-2's ({}, padded to {} at most), {}", vocab_size, architecture.own_vocab_size,
                     architecture.padded_vocab_size, kEffect);
}

/// Copies parameters from the checkpoint into files.
class Exporter {
 public:
  Exporter(ParameterReader& reader, const HfExportOptions& hf, std::int64_t total, const ConvertOptions& options)
      : reader_(reader), hf_(hf), total_(total), options_(options) {}

  void copy(const HfTensor& tensor, io::SafetensorsWriter& writer) {
    if (tensor.is_transposed)
      copy_transposed(tensor, writer);
    else
      copy_straight(tensor, writer);
  }
  [[nodiscard]] std::int64_t num_not_finite() const { return num_not_finite_; }

 private:
  void read(const HfTensor& tensor, std::int64_t begin, std::int64_t numel) {
    from_.resize(static_cast<std::size_t>(std::max<std::int64_t>(numel, std::ssize(from_))));
    reader_.read_f32(tensor.parameter, std::string(kMasterKind), begin, numel, from_.data());
    if (hf_.dtype == DType::f16) check_range(tensor, begin, numel);
    num_not_finite_ += std::count_if(from_.data(), from_.data() + numel, [](float value) { return !std::isfinite(value); });
    done_ += numel;
    if (options_.progress) options_.progress(done_, total_);
  }
  void check_range(const HfTensor& tensor, std::int64_t begin, std::int64_t numel) const {
    for (std::int64_t i = 0; i < numel; ++i) {
      const float value = from_[static_cast<std::size_t>(i)];
      require<ConfigError>(std::abs(value) < kHalfOverflow || !std::isfinite(value),
                           "element {} of {} is {}, outside fp16's range: use --dtype=bf16 or fp32", begin + i, tensor.parameter, value);
    }
  }
  void copy_straight(const HfTensor& tensor, io::SafetensorsWriter& writer) {
    const std::int64_t numel = tensor.shape.numel();
    for (std::int64_t at = 0; at < numel; at += kExportNumel) {
      const std::int64_t count = std::min(kExportNumel, numel - at);
      read(tensor, at, count);
      writer.write(tensor.hf_name, at, count, from_.data());
    }
  }
  /// `count` rows of Mica's matrix are `count` columns of the file's: a run of `count` elements in each row there.
  void copy_transposed(const HfTensor& tensor, io::SafetensorsWriter& writer) {
    const std::int64_t rows = tensor.shape[0];
    const std::int64_t cols = tensor.shape[1];
    for (std::int64_t row = 0; row < rows;) {
      const std::int64_t count = std::min(panel_rows(rows, cols, options_.panel_numel), rows - row);
      read(tensor, row * cols, count * cols);
      to_.resize(static_cast<std::size_t>(std::max(count * cols, std::ssize(to_))));
      transpose(from_.data(), count, cols, to_.data());
      if (count == rows) {
        writer.write(tensor.hf_name, 0, rows * cols, to_.data());
      } else {
        for (std::int64_t c = 0; c < cols; ++c) writer.write(tensor.hf_name, c * rows + row, count, to_.data() + c * count);
      }
      row += count;
    }
  }

  ParameterReader& reader_;
  const HfExportOptions& hf_;
  std::int64_t total_, done_ = 0, num_not_finite_ = 0;
  const ConvertOptions& options_;
  std::vector<float> from_, to_;
};

}  // namespace

ConvertReport hf_export(const std::string& checkpoint, const std::string& hf_folder, const HfExportOptions& hf,
                        const ConvertOptions& options) {
  require<ConfigError>(hf.max_shard_bytes > 0, "the largest size of a file is {} bytes, expected more than 0", hf.max_shard_bytes);
  ParameterReader reader(checkpoint);
  const ModelKeys keys = keys_of(reader.manifest(), checkpoint);
  const HfArchitecture& architecture = architecture_of_type(keys);
  const std::vector<HfTensor> tensors = model_tensors(architecture, keys);
  check_parameters(tensors, reader.manifest(), checkpoint);
  HfTokenizer tokenizer = tokenizer_for(hf, checkpoint, reader.manifest());
  const std::int64_t vocab_size = keys.integer("vocab_size");
  if (tokenizer.source.empty()) tokenizer.token_ids = own_token_ids(architecture, vocab_size);
  const Json config = hf_config_json(architecture, keys, hf.dtype, tokenizer.token_ids);
  const std::vector<Shard> shards = plan_shards(tensors, hf);
  ConvertReport report{.model_type = std::string(architecture.type)};
  report.num_tensors = std::ssize(tensors);
  report.num_files = std::ssize(shards);
  for (const HfTensor& tensor : tensors) report.numel += tensor.shape.numel();
  report.bytes = report.numel * dtype_bytes(hf.dtype);
  report.tokenizer = tokenizer_report(tokenizer);
  if (const std::int64_t width = keys.integer("width"), heads = keys.integer("heads"); width % heads != 0) {
    report.warnings.push_back(
        fmt::format("transformers 5 refuses to load it: its width {} is not a multiple of its {} heads", width, heads));
  }
  const std::string no_end = warning_of_no_end(tokenizer, architecture, vocab_size, !hf.tokenizer.empty());
  if (!no_end.empty()) report.warnings.push_back(no_end);
  io::check_new(hf_folder);
  if (options.is_dry_run) return report;

  io::Publication folder = io::new_folder(hf_folder);
  std::string checksums;
  const auto add_checksum = [&](const std::string& name) { checksums += checksum_line(folder.temporary() + "/" + name, name); };
  const auto add_file = [&](const std::string& name, const std::string& content) {
    io::write_file_atomically(folder.temporary() + "/" + name, content);
    add_checksum(name);
  };
  if (const Json generation = hf_generation_json(config); !generation.is_null()) {
    tokenizer.files.try_emplace("generation_config.json", generation.dump(2) + "\n");
  }
  for (const auto& [name, content] : tokenizer.files) add_file(name, content);
  Exporter exporter(reader, hf, report.numel, options);
  for (const Shard& shard : shards) {
    std::vector<io::SafetensorsSpec> specs;
    for (std::size_t i = shard.begin; i < shard.end; ++i) specs.push_back({tensors[i].hf_name, hf.dtype, tensors[i].hf_dims()});
    io::SafetensorsWriter writer(folder.temporary() + "/" + shard.name, std::move(specs), {{"format", "pt"}});
    for (std::size_t i = shard.begin; i < shard.end; ++i) exporter.copy(tensors[i], writer);
    writer.finish();
    add_checksum(shard.name);
  }
  reader.finish();
  if (exporter.num_not_finite() > 0) {
    report.warnings.push_back(
        fmt::format("{} of its values are NaN or infinite: the training had diverged. mica-inspect RUN lists the run's other checkpoints",
                    exporter.num_not_finite()));
  }
  if (shards.size() > 1) add_file(kHfIndexFile, index_text(tensors, shards, report.bytes));
  add_file("config.json", config.dump(2) + "\n");
  io::write_file_atomically(checksum_list_path(folder.temporary()), checksums);
  folder.publish();
  return report;
}

}  // namespace mica::checkpoint
