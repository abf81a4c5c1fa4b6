// SPDX-License-Identifier: Apache-2.0
// mica-tokenize: text files -> token files.

#include <cmath>
#include <csignal>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include <boost/program_options.hpp>
#include <unistd.h>

#include "mica/data/tokenize.hpp"
#include "mica/io/hdf5.hpp"

#include "program.hpp"

namespace {

namespace options = boost::program_options;

constexpr const char* kHelp =
    R"(mica-tokenize [--vocab=bytes|tokenizer.json|X.model] --out=corpus.h5 [--val-fraction=0.1] FILE...

Turns text files into token files for mica-train: corpus.train.h5 for training and corpus.val.h5 for validation.

  --vocab=...           The tokenizer; the program prints the model.vocab_size to set in the config.
       bytes            one token per byte, 256 ids, any encoding (the default)
       X/tokenizer.json Hugging Face's byte-level BPE (GPT-2, Llama 3); the ids are those of the tokenizers package. Each file
                        begins and ends with the special tokens of the post_processor; if that has no end token, with
                        <|endoftext|>, <|end_of_text|> or </s> if one of them is a special added token.
       X.model          SentencePiece; the whole file is one sentence and ends with the model's </s>, if it has one
  --out=corpus.h5       Output; .h5 becomes .train.h5 and .val.h5. The folder must exist.
  --val-fraction=0.1    Share of each file, at its end, that becomes validation data; cut at the end of a paragraph or
                        line. 0: no validation file; an old one must be deleted first.
  --overwrite           Replaces existing token files. Runs that were trained on them then refuse to resume.
  --quiet               No progress line.
  -h, --help, --version

Example: a book, then 200 steps on 4 ranks
  mica-tokenize --out=book.h5 book.txt
  mpirun -np 4 mica-train configs/gpt2-tiny-text.cfg --data.train=book.train.h5 --data.val=book.val.h5 --train.steps=200
Example: with the tokenizer of a Hugging Face model
  mica-tokenize --vocab=gpt2/tokenizer.json --out=corpus.h5 *.txt

The output is HDF5: a dataset /tokens (uint16 up to 65536 ids, else uint32) with the attributes vocab_size, tokenizer and
tokenizer_hash; h5dump -A book.train.h5 shows them. The same input always gives the same bytes.
Exit status: 0 done; 2 an error in the command or its input; 3 a failure while writing, e.g. a full disk.
)";

volatile std::sig_atomic_t g_signal = 0;  // what a handler may write

void note_signal(int signal) {
  g_signal = signal;
  std::signal(signal, SIG_DFL);  // a second one ends the program at once
}

/// Signals that end a program are noted, so that it can delete what it has written so far. Those that it was started to ignore (nohup) stay
/// so.
void note_signals() {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    if (std::signal(signal, note_signal) == SIG_IGN) std::signal(signal, SIG_IGN);
  }
}

struct Command {
  std::string vocab;
  mica::data::TokenizeOptions tokenize;
  bool is_quiet = false;
};

Command parse(const std::vector<std::string>& arguments) {
  Command command;
  options::options_description known;
  known.add_options()("vocab", options::value(&command.vocab)->default_value("bytes"))("out", options::value(&command.tokenize.out))(
      "val-fraction", options::value(&command.tokenize.val_fraction)->default_value(0.1))(
      "overwrite", options::bool_switch(&command.tokenize.overwrite))("quiet", options::bool_switch(&command.is_quiet))(
      "file", options::value(&command.tokenize.files));
  options::positional_options_description files;
  files.add("file", -1);
  namespace style = options::command_line_style;
  try {
    options::variables_map values;
    options::store(options::command_line_parser(arguments)
                       .options(known)
                       .positional(files)
                       .style(style::unix_style & ~style::allow_guessing)  // an abbreviation is a typing mistake
                       .run(),
                   values);
    options::notify(values);
  } catch (const options::error& error) {
    throw mica::ConfigError(std::string(error.what()) + "; see mica-tokenize --help");
  }
  mica::require<mica::ConfigError>(!command.tokenize.out.empty(),
                                   "--out is missing: say where to write, e.g. --out=corpus.h5; see mica-tokenize --help");
  return command;
}

void show_progress(std::int64_t done, std::int64_t total) {
  std::cerr << fmt::format("\rtokenizing {:5.1f} % of {:.1f} MB", 100.0 * static_cast<double>(done) / static_cast<double>(total),
                           static_cast<double>(total) / 1e6)
            << (done == total ? "\n" : "") << std::flush;
}

void print_result(const mica::data::TokenizeResult& result, const mica::data::Tokenizer& tokenizer) {
  std::cout << fmt::format("{}: {} tokens\n", result.train_path, result.train_tokens);
  if (!result.val_path.empty()) std::cout << fmt::format("{}: {} tokens\n", result.val_path, result.val_tokens);
  if (result.num_empty_files > 0)
    std::cout << fmt::format("{} empty file{} skipped\n", result.num_empty_files, result.num_empty_files == 1 ? "" : "s");
  const auto print_mark = [&](const char* does, std::optional<std::int32_t> id) {
    if (!id) return;
    const std::string text = tokenizer.decode({&*id, 1});  // "" for a control token of SentencePiece
    std::cout << fmt::format("each document {} with token {}{}{}\n", does, *id, text.empty() ? "" : " ", text);
  };
  print_mark("begins", tokenizer.start_of_document());
  print_mark("ends", tokenizer.end_of_document());
  if (!tokenizer.end_of_document() && tokenizer.name() != "bytes") std::cout << "no token ends a document: the vocabulary names none\n";
  std::cout << fmt::format("vocabulary '{}': model.vocab_size={}\n", tokenizer.name(), tokenizer.vocab_size()) << std::flush;
  if (result.num_unknown > 0) {
    std::cerr << fmt::format("mica: warning: {} of {} tokens are <unk>: the vocabulary does not know this text\n", result.num_unknown,
                             result.train_tokens + result.val_tokens);
  }
}

std::string help_text(const std::vector<std::string>& /*arguments*/) { return kHelp; }

std::string build_text() {
  return fmt::format("  HDF5 {}\n  vocabularies: {}\n", mica::io::hdf5_version(), mica::data::supported_vocabularies());
}

mica::ExitCode run(const std::vector<std::string>& arguments) {
  Command command = parse(arguments);
  const auto tokenizer = mica::data::make_tokenizer(command.vocab);
  if (!command.is_quiet && ::isatty(STDERR_FILENO) != 0) command.tokenize.progress = show_progress;
  command.tokenize.is_stopped = [] { return g_signal != 0; };
  note_signals();
  print_result(mica::data::tokenize_files(*tokenizer, command.tokenize), *tokenizer);
  return mica::ExitCode::done;
}

}  // namespace

int main(int argc, char** argv) {
  const int status = mica::apps::run_program(argc, argv, {"mica-tokenize", help_text, build_text}, run);
  if (status != 0 && g_signal != 0) std::raise(g_signal);  // so that a shell sees it; the handler has gone
  return status;
}
