// SPDX-License-Identifier: Apache-2.0
#include "command.hpp"

#include <charconv>
#include <sstream>
#include <utility>

#include <boost/program_options.hpp>

#include "mica/core/error.hpp"
#include "mica/generate/run_generate.hpp"

namespace mica::generate {
namespace {

namespace po = boost::program_options;

constexpr const char* kHelp = R"(mica-generate SOURCE --prompt=TEXT | --prompt-ids=5,6,7 | --prompts=FILE [--flags]
mica-generate SOURCE --perplexity=FILE | --choices=FILE.jsonl [--flags]

Generates text with a trained language model, or computes how likely the model finds a text. Runs on the CPU.

  SOURCE                   a run's folder (its newest checkpoint), one checkpoint, or a Hugging Face folder (GPT-2, Llama 2, 3)

What to do, one of
  --prompt=TEXT            continue TEXT; new text is printed as it is generated, in whole characters
  --prompt-ids=5,6,7       continue these token ids; with --print-ids no tokenizer is needed
  --prompts=FILE           continue each line of FILE that is not empty, or each object of FILE.jsonl, {"prompt": "TEXT"} or
                           {"ids": [5, 6]}. Prints one JSON line per prompt, in order: {"index", "text", "ids", "end": "stop" or
                           "length"}
  --perplexity=FILE        perplexity of a text, or of a token file of mica-tokenize, cut into stretches of --context tokens.
                           Prints one JSON line: {"tokens", "nats_per_token", "perplexity", and for text "bytes", "bits_per_byte"}
  --choices=FILE.jsonl     log-likelihoods of continuations: {"context": "TEXT", "continuations": ["A", "B"]}, or with
                           "context_ids" and "continuation_ids". Prints one JSON line each: {"index", "log_likelihoods" (sums, in
                           nats), "is_greedy" (whether greedy decoding gives it), "num_tokens", "best"}

How tokens are chosen. These flags, --print-ids and --batch-size are for text only: --perplexity and --choices ignore them
  --max-new-tokens=100     per prompt; a text also ends at the model's end token, and when its context is full
  --temperature=0          0: always the likeliest token; 1: sample from the model's distribution; lower values favour likely tokens
  --top-k=0                with a temperature above 0: sample from the k likeliest tokens; 0: from all
  --top-p=1                with a temperature above 0: sample from the smallest set of likeliest tokens whose probability reaches p
  --repetition-penalty=1   above 1: tokens that are already in the prompt or the text become less likely
  --seed=1                 the same seed gives the same tokens, on any number of ranks and in any batch of up to 16 sequences
  --ignore-end             continue after the model's end token

  --print-ids              print the new token ids, separated by commas, instead of text
  --context=0              tokens that the model sees at most, prompt included; 0: the model's own context. Long contexts take memory and
                           time, and figures of --perplexity are comparable for equal contexts only
  --vocab=V                the tokenizer, as for mica-tokenize: bytes, X/tokenizer.json or X.model. Default: the model's
                           own, if it came from a Hugging Face folder; bytes, if it has 256 ids
  --dtype=fp32             dtype of parameters and activations: fp32, or bf16, which takes half the memory and time
  --batch-size=8           prompts at a time, on each rank. With more than 16, results differ in the last bits, as they do with
                           another number of threads
  --threads=0              threads per rank; 0: OMP_NUM_THREADS if it is set, otherwise the rank's cores
  --quiet                  no figures on standard error
  -h, --help, --version

  mica-generate runs/quickstart --prompt="The " --max-new-tokens=200 --temperature=0.8 --top-k=40
  mica-generate gpt2 --prompts=prompts.txt --dtype=bf16 > texts.jsonl
  mpirun -np 4 mica-generate Llama-2-7b --choices=questions.jsonl

Several ranks share the parameters: each holds a shard, and every pass gathers them unit by unit as in training. Use this for models that
do not fit one rank. Prompts, stretches and questions are divided among the ranks.
Exit status: 0 done; 2 an error in the command or its input; 3 a failure at run time.
)";

Command::Task task_of(const po::variables_map& values, Command& command) {
  static constexpr std::pair<const char*, Command::Task> kTasks[] = {{"prompt", Command::Task::prompt},
                                                                     {"prompt-ids", Command::Task::prompt_ids},
                                                                     {"prompts", Command::Task::prompts},
                                                                     {"perplexity", Command::Task::perplexity},
                                                                     {"choices", Command::Task::choices}};
  const std::pair<const char*, Command::Task>* found = nullptr;
  for (const auto& each : kTasks) {
    if (values.count(each.first) == 0) continue;
    require<ConfigError>(found == nullptr, "--{} and --{} exclude each other: give one", found ? found->first : "", each.first);
    found = &each;
  }
  require<ConfigError>(found != nullptr,
                       "nothing to do: give --prompt, --prompt-ids, --prompts, --perplexity or --choices; see "
                       "mica-generate --help");
  command.input = values[found->first].as<std::string>();
  return found->second;
}

void check(const Command& command) {
  require<ConfigError>(!command.source.empty(),
                       "no model: mica-generate SOURCE --prompt=TEXT, where SOURCE is a run's folder, a checkpoint "
                       "or a Hugging Face folder; see mica-generate --help");
  require<ConfigError>(command.max_new_tokens >= 1, "--max-new-tokens is {}, expected 1 or more", command.max_new_tokens);
  require<ConfigError>(command.batch >= 1, "--batch-size is {}, expected 1 or more", command.batch);
  require<ConfigError>(command.context >= 0, "--context is {}, expected a number of tokens, or 0 for the model's context", command.context);
  require<ConfigError>(command.threads >= 0, "--threads is {}, expected a number of threads, or 0 for the rank's cores", command.threads);
  require<ConfigError>(command.dtype == "fp32" || command.dtype == "bf16", "--dtype is '{}', expected fp32 or bf16", command.dtype);
  command.sampling.validate();
  require<ConfigError>(
      !command.generates() || command.sampling.temperature > 0 || (command.sampling.top_k == 0 && command.sampling.top_p == 1),
      "--top-k and --top-p choose the tokens to sample from, but with --temperature=0, the default, the likeliest one is "
      "always taken: set --temperature, too, for example to 1");
}

/// Boost takes an empty value only as an argument of its own.
std::vector<std::string> with_empty_prompt_apart(const std::vector<std::string>& arguments) {
  std::vector<std::string> apart;
  for (const std::string& argument : arguments) {
    const bool is_empty_prompt = argument == "--prompt=";
    apart.push_back(is_empty_prompt ? "--prompt" : argument);
    if (is_empty_prompt) apart.emplace_back();
  }
  return apart;
}

}  // namespace

std::string generate_help(const std::vector<std::string>& /*arguments*/) { return kHelp; }

Command parse_command(const std::vector<std::string>& arguments) {
  Command command;
  std::vector<std::string> sources;
  po::options_description known;
  auto add = known.add_options();
  for (const char* task : {"prompt", "prompt-ids", "prompts", "perplexity", "choices"}) add(task, po::value<std::string>());
  add("source", po::value(&sources));
  add("max-new-tokens", po::value(&command.max_new_tokens)->default_value(100));
  add("temperature", po::value(&command.sampling.temperature)->default_value(0));
  add("top-k", po::value(&command.sampling.top_k)->default_value(0));
  add("top-p", po::value(&command.sampling.top_p)->default_value(1));
  add("repetition-penalty", po::value(&command.sampling.repetition_penalty)->default_value(1));
  add("seed", po::value(&command.sampling.seed)->default_value(1));
  add("ignore-end", po::bool_switch(&command.ignores_end));
  add("print-ids", po::bool_switch(&command.prints_ids));
  add("context", po::value(&command.context)->default_value(0));
  add("vocab", po::value(&command.vocab));
  add("dtype", po::value(&command.dtype)->default_value("fp32"));
  add("batch-size", po::value(&command.batch)->default_value(8));
  add("threads", po::value(&command.threads)->default_value(0));
  add("quiet", po::bool_switch(&command.is_quiet));
  po::positional_options_description positional;
  positional.add("source", -1);
  namespace style = po::command_line_style;
  po::variables_map values;
  try {
    po::store(po::command_line_parser(with_empty_prompt_apart(arguments))
                  .options(known)
                  .positional(positional)
                  .style(style::unix_style & ~style::allow_guessing)  // an abbreviation is a typing mistake
                  .run(),
              values);
    po::notify(values);
  } catch (const po::error& error) {
    throw ConfigError(std::string(error.what()) + "; see mica-generate --help");
  }
  require<ConfigError>(sources.size() <= 1, "two models, {} and {}: give one (and quote a --prompt of several words)",
                       sources.empty() ? "" : sources[0], sources.size() < 2 ? "" : sources[1]);
  if (!sources.empty()) command.source = sources[0];
  command.task = task_of(values, command);
  check(command);
  return command;
}

std::vector<std::int32_t> parse_ids(const std::string& flag, const std::string& text) {
  std::vector<std::int32_t> ids;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    std::int32_t id = 0;
    const auto [rest, error] = std::from_chars(part.data(), part.data() + part.size(), id);
    require<ConfigError>(error == std::errc{} && rest == part.data() + part.size() && id >= 0,
                         "--{}: '{}' is not a token id; expected whole numbers separated by commas, such as 5,6,7", flag, part);
    ids.push_back(id);
  }
  return ids;
}

}  // namespace mica::generate
