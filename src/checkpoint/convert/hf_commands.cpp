// SPDX-License-Identifier: Apache-2.0
#include <ostream>

#include "mica/checkpoint/convert.hpp"
#include "mica/checkpoint/folder.hpp"

#include "../figures.hpp"
#include "../progress_line.hpp"
#include "subcommand.hpp"

namespace mica::checkpoint {
namespace {

constexpr std::string_view kExportHelp =
    R"(Writes a checkpoint's parameters as a folder that Hugging Face's transformers loads:

  from transformers import AutoModelForCausalLM
  model = AutoModelForCausalLM.from_pretrained("HF_FOLDER")

The folder gets config.json, model.safetensors (or model-00001-of-00002.safetensors ... and model.safetensors.index.json) and
checksums.crc32c, for mica-inspect verify HF_FOLDER. Optimizer state is not exported: a run resumes from Mica's own checkpoint.

A checkpoint of a model that came from a Hugging Face folder (hf-import, model.init_from) keeps that folder's tokenizer files and
special token ids, also through training. They are written here: tokenizer.json, tokenizer_config.json ..., and bos_token_id,
eos_token_id and pad_token_id in config.json and generation_config.json. The last line of output says what is missing. Without a
tokenizer, a GPT-2 with a vocabulary of 50257 to 50304 ids gets GPT-2's, 50256; others get none.

  --tokenizer=HF_FOLDER
                       Takes the tokenizer files and special token ids of this folder instead. It must be the tokenizer that the
                       model was trained with. If its config.json has no ids, or there is none, they come from its
                       generation_config.json, else from the tokens that tokenizer_config.json and
                       special_tokens_map.json name, else from what begins and ends a text in tokenizer.json.
  --dtype=fp32         fp32 is exact; bf16 and fp16 are half as large and round to nearest. A value outside fp16's range is
                       an error.
  --max-shard=5GB      Largest size of one file (5GB, 200MB, 1GiB ...); a larger tensor gets a file of its own.
)";

constexpr std::string_view kImportHelp =
    R"(Writes the parameters of a Hugging Face folder as a Mica checkpoint (fp32, step 0, no optimizer state), to start training from
with --model.init_from=CHECKPOINT. (init_from also takes the folder itself.)

The folder holds config.json and model.safetensors, or several files with model.safetensors.index.json; weights in fp32, bf16 or
fp16. Models: gpt2 (GPT2LMHeadModel) and llama (LlamaForCausalLM, Llama 2 and 3). Nothing is skipped silently: a setting that
Mica's model does not support, or a tensor that is missing, unexpected or of another shape, is an error that names it.
The folder's tokenizer files and special token ids are kept in the checkpoint, for hf-export.
At the end the program prints the [model] section that a config for this model needs.
)";

void print_report(const ConvertCall& call, const ConvertReport& report, const std::string& dtype) {
  call.out << fmt::format("{} {} with {} as {}: {}, {} in {}: {}\n", call.is_dry_run ? "would write" : "wrote", report.model_type,
                          count_text(report.numel, "parameter"), dtype, count_text(report.num_tensors, "tensor"), bytes_text(report.bytes),
                          count_text(report.num_files, "file"), call.paths[1]);
  for (const std::string& warning : report.warnings) call.out << "warning: " << warning << '\n';
  if (!report.tokenizer.empty()) call.out << report.tokenizer << '\n';
  if (!report.config.empty()) call.out << report.config;
}

ExitCode run_export(const ConvertCall& call) {
  const std::string dtype = call.option("dtype", "fp32");
  require<ConfigError>(dtype == "fp32" || dtype == "bf16" || dtype == "fp16", "--dtype is '{}', expected fp32, bf16 or fp16", dtype);
  const HfExportOptions hf{.dtype = dtype_from_name(dtype),
                           .max_shard_bytes = parse_bytes("max-shard", call.option("max-shard", "5GB")),
                           .tokenizer = call.option("tokenizer", "")};
  ConvertOptions options;
  options.is_dry_run = call.is_dry_run;
  ConvertReport report;
  {
    ProgressLine line(call.progress, "exporting");
    options.progress = [&](std::int64_t done, std::int64_t total) { line.draw(done, total); };
    report = hf_export(resolve_checkpoint(call.paths[0]), call.paths[1], hf, options);
  }
  print_report(call, report, dtype);
  return ExitCode::done;
}

ExitCode run_import(const ConvertCall& call) {
  ConvertOptions options;
  options.is_dry_run = call.is_dry_run;
  ConvertReport report;
  {
    ProgressLine line(call.progress, "importing");
    options.progress = [&](std::int64_t done, std::int64_t total) { line.draw(done, total); };
    report = hf_import(call.paths[0], call.paths[1], options);
  }
  print_report(call, report, "fp32");
  return ExitCode::done;
}

}  // namespace

const Subcommand kHfImportCommand{
    .name = "hf-import",
    .synopsis = "HF_FOLDER CHECKPOINT",
    .summary = "imports a Hugging Face folder (config.json and safetensors) as a checkpoint, to start training from",
    .help = kImportHelp,
    .num_paths = 2,
    .options = {},
    .run = run_import};

const Subcommand kHfExportCommand{.name = "hf-export",
                                  .synopsis = "CHECKPOINT HF_FOLDER [--dtype=fp32|bf16|fp16] [--max-shard=SIZE] [--tokenizer=HF_FOLDER]",
                                  .summary = "exports a checkpoint's parameters as a Hugging Face folder (config.json and safetensors)",
                                  .help = kExportHelp,
                                  .num_paths = 2,
                                  .options = {"dtype", "max-shard", "tokenizer"},
                                  .run = run_export};

}  // namespace mica::checkpoint
