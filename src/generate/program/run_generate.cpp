// SPDX-License-Identifier: Apache-2.0
#include "mica/generate/run_generate.hpp"

#include <algorithm>
#include <memory>
#include <optional>

#include "mica/checkpoint/init_from.hpp"
#include "mica/comm/watchdog.hpp"
#include "mica/device/gpu.hpp"
#include "mica/train/config.hpp"

#include "command.hpp"
#include "inputs.hpp"
#include "loaded_model.hpp"
#include "outputs.hpp"
#include "vocabulary.hpp"

namespace mica::generate {
namespace {

/// Whether a tokenizer is required; otherwise it is optional.
bool needs_tokenizer(const Command& command) { return command.writes_text() || has_text(command) || !command.vocab.empty(); }

FoundTokenizer open_tokenizer(const Command& command, std::int64_t vocab_size, const checkpoint::HfTokenizer& files) {
  FoundTokenizer found;
  try {
    found.tokenizer = find_tokenizer(command.source, command.vocab, vocab_size);
  } catch (const ConfigError& error) {
    if (needs_tokenizer(command)) throw;
    found.why_none = error.what();
    return found;
  }
  found.start = start_id(files, *found.tokenizer);
  return found;
}

std::string speed_text(double tokens, double ms) { return ms > 0 ? fmt::format("{:.1f} tokens/s", tokens * 1e3 / ms) : "no time"; }

void tell(const GeneratorFigures& f, const App& app, const Logger& logger) {
  logger.info("prompts {} tokens in {:.3f} s, {}; text {} tokens, those after the first in {:.3f} s, {}{}", f.prompt_tokens,
              f.prompt_ms / 1e3, speed_text(static_cast<double>(f.prompt_tokens), f.prompt_ms), f.new_tokens, f.new_ms / 1e3,
              speed_text(static_cast<double>(f.new_tokens - f.first_tokens), f.new_ms),
              app.comm.num_ranks() > 1 ? fmt::format(" (rank 0 of {})", app.comm.num_ranks()) : "");
}

/// This rank's share of the prompts.
std::vector<NumberedPrompt> own_prompts(const Inputs& inputs, const HostComm& comm) {
  std::vector<NumberedPrompt> own;
  for (std::size_t i = static_cast<std::size_t>(comm.rank()); i < inputs.prompts.size(); i += static_cast<std::size_t>(comm.num_ranks())) {
    own.push_back({static_cast<std::int64_t>(i), inputs.prompts[i]});
  }
  return own;
}

std::int64_t longest(const std::vector<NumberedPrompt>& prompts) {
  std::int64_t tokens = 1;
  for (const NumberedPrompt& prompt : prompts) tokens = std::max(tokens, std::ssize(prompt.ids));
  return tokens;
}

/// Tokens that the model sees at most.
std::int64_t context_of(const Command& command, std::int64_t of_model) {
  require<ConfigError>(command.context <= of_model, "--context is {}, but the model's context is {} tokens: give at most that",
                       command.context, of_model);
  return command.context == 0 ? of_model : command.context;
}

void write_text(App& app, const Command& command, const Inputs& inputs, std::int64_t context, const data::Tokenizer* tokenizer,
                LoadedModel& model, const Logger& logger) {
  std::vector<NumberedPrompt> own = own_prompts(inputs, app.comm);
  const std::int64_t slots = std::clamp<std::int64_t>(std::ssize(own), 1, command.batch);
  const std::int64_t given = longest(own), capacity = given + std::min(context - given, command.max_new_tokens);
  ModelPass pass(model.module(), model.context(), slots, capacity);
  Generator generator(pass, {.max_new_tokens = command.max_new_tokens, .sampling = command.sampling, .stop_ids = inputs.stop_ids},
                      std::move(own));
  std::unique_ptr<TokenPrinter> printer;
  if (app.comm.rank() == 0) printer = std::make_unique<TokenPrinter>(command, inputs, tokenizer);
  std::int64_t num_cut_off = 0;
  generate_all(generator, app.comm, [&](const GeneratedToken& token) {
    printer->take(token);
    const std::int64_t room = context - std::ssize(inputs.prompts.at(static_cast<std::size_t>(token.prompt)));
    if (token.is_last && room < command.max_new_tokens && !inputs.stop_ids.contains(token.id)) ++num_cut_off;
  });
  tell(generator.figures(), app, logger);
  if (num_cut_off > 0) {
    logger.warn("the context of {} tokens, prompt included, was full before --max-new-tokens={}: {} of {} texts end there", context,
                command.max_new_tokens, num_cut_off, inputs.prompts.size());
  }
}

}  // namespace

ExitCode run_generate(App& app) {
  Command command;
  app.comm.agree([&] { command = parse_command(app.arguments); });
  const bool is_first = app.comm.rank() == 0;
  const Logger logger = Logger::to_stderr(is_first && !command.is_quiet ? LogLevel::info : LogLevel::warn,
                                          is_first ? "" : fmt::format("rank {}", app.comm.rank()));
  const train::Config config = config_of(app.comm, command.source, command.dtype, command.threads);
  std::int64_t context = 0;
  app.comm.agree([&] { context = context_of(command, config.model.context); });
  std::optional<Watchdog::Patience> patience(app.watchdog);  // with files
  FoundTokenizer found;                                      // rank 0's
  const Inputs inputs = unpack(app.comm.from_first_rank([&] {
    const checkpoint::HfTokenizer files = checkpoint::read_model_tokenizer(command.source);
    found = open_tokenizer(command, config.model.vocab_size, files);
    Inputs read = read_inputs(command, found, {.vocab_size = config.model.vocab_size, .context = context});
    if (command.generates() && !command.ignores_end) read.stop_ids = end_ids(files, found.tokenizer.get());
    return pack(read);
  }));
  if (!list_gpus().empty()) logger.info("this machine has a GPU; mica-generate computes on the CPU");
  LoadedModel model(app, config, logger);
  patience.reset();
  logger.info("{}: {:.1f} M parameters in {}, read in {:.1f} s; {}", model.report().source, static_cast<double>(model.report().numel) / 1e6,
              command.dtype, model.report().ms / 1e3, model.device().describe());
  if (command.task == Command::Task::perplexity) {
    ModelPass pass(model.module(), model.context(), 1, 1);
    const TextLikelihood result = rate_text(pass, inputs.text, inputs.before_text, context, app.comm);
    if (is_first) print_text_likelihood(result, inputs.text_bytes);
  } else if (command.task == Command::Task::choices) {
    ModelPass pass(model.module(), model.context(), 1, std::min(context, longest_input(inputs.questions)));
    const std::vector<std::vector<Likelihood>> answers = answer(pass, inputs.questions, app.comm);
    if (is_first) print_answers(inputs.questions, answers);
  } else {
    write_text(app, command, inputs, context, found.tokenizer.get(), model, logger);
  }
  return ExitCode::done;
}

}  // namespace mica::generate
