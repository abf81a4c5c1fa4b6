// SPDX-License-Identifier: Apache-2.0
// The program as users meet it: exit statuses, one line of error, files.

#include <array>
#include <csignal>
#include <cstdio>
#include <filesystem>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/wait.h>

#include "mica/data/token_file.hpp"
#include "mica/data/tokenizer.hpp"

#include "byte_level_json.hpp"
#include "data_files.hpp"
#include "support/paths.hpp"
#include "support/temporary_folder.hpp"

namespace mica::data {
namespace {

using namespace mica::test;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

struct Outcome {
  int status = -1;
  std::string text;  ///< standard output and error together
};

Outcome shell(const std::string& command) {
  Outcome outcome;
  FILE* pipe = ::popen(fmt::format("( {} ) 2>&1 < /dev/null", command).c_str(), "r");
  if (pipe == nullptr) return outcome;
  std::array<char, 4096> piece{};
  for (std::size_t n = 0; (n = ::fread(piece.data(), 1, piece.size(), pipe)) > 0;) outcome.text.append(piece.data(), n);
  const int status = ::pclose(pipe);
  outcome.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return outcome;
}

Outcome run(const std::string& arguments) { return shell(fmt::format("{}/mica-tokenize {}", test::program_folder(), arguments)); }

void expect_mistake(const std::string& arguments, const std::string& what) {
  const Outcome outcome = run(arguments);
  EXPECT_EQ(outcome.status, 2) << arguments;
  EXPECT_THAT(outcome.text, AllOf(StartsWith("mica: error: "), HasSubstr(what))) << arguments;
  EXPECT_EQ(std::count(outcome.text.begin(), outcome.text.end(), '\n'), 1) << outcome.text;
}

TEST(MicaTokenize, MakesATrainingAndAValidationFile) {
  const TemporaryFolder folder;
  write_text(folder / "book.txt", std::string(900, 'a') + "\n\n" + std::string(98, 'b'));
  const Outcome outcome = run(fmt::format("--out={0}/corpus.h5 {0}/book.txt", folder.path()));
  EXPECT_EQ(outcome.status, 0) << outcome.text;
  EXPECT_THAT(outcome.text,
              AllOf(HasSubstr("corpus.train.h5: 902 tokens"), HasSubstr("corpus.val.h5: 98 tokens"), HasSubstr("model.vocab_size=256")));
  EXPECT_EQ(TokenFile::open(folder / "corpus.train.h5").num_tokens(), 902);
  EXPECT_EQ(TokenFile::open(folder / "corpus.val.h5").num_tokens(), 98);
}

TEST(MicaTokenize, TellsOfEmptyFiles) {
  const TemporaryFolder folder;
  write_text(folder / "a.txt", "To be, or not to be.\n");
  write_text(folder / "b.txt", "");
  const Outcome outcome = run(fmt::format("--val-fraction=0 --out={0}/c.h5 {0}/a.txt {0}/b.txt", folder.path()));
  EXPECT_EQ(outcome.status, 0) << outcome.text;
  EXPECT_THAT(outcome.text, HasSubstr("1 empty file skipped"));
}

TEST(MicaTokenize, TokenFilesSayWhichTokenizerMadeThem) {
  const TemporaryFolder folder;
  write_text(folder / "a.txt", "To be, or not to be: that is the question.\n");
  write_text(folder / "b.txt", "Whether 'tis nobler");
  const std::string vocab = test::reference_path("tokenizers/llama3.tokenizer.json");
  const Outcome outcome = run(fmt::format("--vocab={1} --val-fraction=0 --out={0}/c.h5 {0}/a.txt {0}/b.txt", folder.path(), vocab));
  EXPECT_EQ(outcome.status, 0) << outcome.text;
  EXPECT_THAT(outcome.text, AllOf(HasSubstr("each document begins with token 3000 <|begin_of_text|>"),
                                  HasSubstr("ends with token 3001 <|endoftext|>"), HasSubstr("model.vocab_size=3003")));
  const auto file = TokenFile::open(folder / "c.train.h5");
  const auto tokenizer = make_tokenizer(vocab);
  EXPECT_EQ(file.vocab_size(), 3003);
  EXPECT_EQ(file.tokenizer(), "llama3.tokenizer.json");
  EXPECT_EQ(file.tokenizer_hash(), tokenizer->hash());
  std::vector<std::int32_t> ids(static_cast<std::size_t>(file.num_tokens()));
  file.read(0, ids);
  EXPECT_EQ(tokenizer->decode(ids),
            "<|begin_of_text|>To be, or not to be: that is the question.\n<|endoftext|>"
            "<|begin_of_text|>Whether 'tis nobler<|endoftext|>");
  EXPECT_LT(ids.size(), 40U);
}

TEST(MicaTokenize, SaysWhenNoTokenEndsADocument) {
  const TemporaryFolder folder;
  write_text(folder / "a.txt", "ab");
  nlohmann::json json = test::byte_level_json();
  json["model"]["vocab"]["<|endoftext|>"] = 256;  // a token like others
  write_text(folder / "tokenizer.json", json.dump());
  const auto tokenize = [&](const std::string& vocab) {
    return run(fmt::format("--vocab={1} --val-fraction=0 --overwrite --out={0}/c.h5 {0}/a.txt", folder.path(), vocab)).text;
  };
  EXPECT_THAT(tokenize(folder / "tokenizer.json"), HasSubstr("no token ends a document: the vocabulary names none"));
  EXPECT_THAT(tokenize("bytes"), ::testing::Not(HasSubstr("no token")));
}

TEST(MicaTokenize, WarnsOfTextThatTheVocabularyDoesNotKnow) {
  const TemporaryFolder folder;
  write_text(folder / "a.txt", "To be \xe6\xb5\xb7 or \xe6\xb5\xb7 not to be");
  write_text(folder / "b.txt", "To be or not to be");
  const auto tokenize = [&](const std::string& vocab, const std::string& texts) {
    return run(fmt::format("--vocab={} --val-fraction=0 --overwrite --out={}/c.h5 {}", test::reference_path("tokenizers/" + vocab),
                           folder.path(), texts));
  };
  const Outcome outcome = tokenize("unigram.model", (folder / "a.txt") + " " + (folder / "b.txt"));
  EXPECT_EQ(outcome.status, 0) << outcome.text;
  const std::int64_t num_tokens = TokenFile::open(folder / "c.train.h5").num_tokens();
  EXPECT_THAT(outcome.text, HasSubstr(fmt::format("mica: warning: 2 of {} tokens are <unk>: the vocabulary does not", num_tokens)));
  EXPECT_EQ(tokenize("unigram.model", folder / "b.txt").text.find("warning"), std::string::npos);
  EXPECT_EQ(tokenize("llama_bpe.model", folder / "a.txt").text.find("warning"), std::string::npos) << "it has ids for all bytes";
}

TEST(MicaTokenize, HelpTeachesAndVersionSaysWhatIsIn) {
  const Outcome help = run("--help");
  EXPECT_EQ(help.status, 0);
  EXPECT_THAT(help.text, AllOf(HasSubstr("--val-fraction"), HasSubstr("Example"), HasSubstr("mica-train")));
  const Outcome version = run("--version");
  EXPECT_EQ(version.status, 0);
  EXPECT_THAT(version.text, AllOf(StartsWith("mica-tokenize 0."), HasSubstr("HDF5 1."), HasSubstr("bytes, tokenizer.json, "),
                                  HasSubstr("SentencePiece")));
}

TEST(MicaTokenize, MistakesEndWithStatus2AndOneLine) {
  const TemporaryFolder folder;
  write_text(folder / "t", "text\n");
  write_text(folder / "empty", "");
  const std::string out = fmt::format("--out={}/x.h5 ", folder.path());
  expect_mistake("", "--out is missing");
  expect_mistake(out, "no input");
  expect_mistake(out + (folder / "absent"), "No such file");
  expect_mistake(out + (folder / "empty"), "0 bytes");
  expect_mistake(out + "--val-fraction=1 " + (folder / "t"), "--val-fraction=1");
  expect_mistake(out + "--val-fraction=nan " + (folder / "t"), "--val-fraction=");
  expect_mistake(out + "--val-fraction=x " + (folder / "t"), "'--val-fraction'");
  for (const char* vocab : {"other.model", "other.json", "other"}) {
    expect_mistake(out + "--vocab=" + vocab + " " + (folder / "t"), std::string("--vocab=") + vocab);
  }
  write_text(folder / "tokenizer.json", "{}");
  expect_mistake(out + "--vocab=" + folder.path() + " " + (folder / "t"), "/tokenizer.json");
  expect_mistake(out + "--vocab=" + (folder / "tokenizer.json") + " " + (folder / "t"), "has no key model");
  expect_mistake(out + "--val=0.1 " + (folder / "t"), "--val");  // no abbreviations
  expect_mistake("--out=/no/such/x.h5 " + (folder / "t"), "/no/such");
}

TEST(MicaTokenize, AnUnwritableStandardOutputIsAFailure) { EXPECT_EQ(run("--help > /dev/full").status, 3); }

// As by timeout(1), a batch system or the end of a terminal's session. The spool may be as large as the output.
TEST(MicaTokenize, ASignalEndsItAndLeavesNothing) {
  const TemporaryFolder folder;
  std::string text;
  for (std::uint32_t i = 0; text.size() < 20'000'000; ++i) text += fmt::format("word{} ", i * 2654435761U);  // takes seconds
  write_text(folder / "t", text);
  for (const std::string signal : {"TERM", "HUP"}) {
    const Outcome outcome =
        shell(fmt::format("{0}/mica-tokenize --vocab={1} --out={2}/x.h5 {2}/t & "
                          "while [ ! -e {2}/x.train.h5.spool.tmp ] && kill -0 $!; do sleep 0.01; done; kill -{3} $!; wait $!; "
                          "echo status $?; ls {2}",
                          test::program_folder(), test::reference_path("tokenizers/llama3.tokenizer.json"), folder.path(), signal));
    EXPECT_THAT(outcome.text, AllOf(StartsWith("mica: error: stopped before the end: no token file was written\n"),
                                    HasSubstr(fmt::format("status {}\nt\n", 128 + (signal == "TERM" ? SIGTERM : SIGHUP)))));
  }
}

/// Mounts a small or read-only tmpfs at folder/disk in a mount namespace of its own and runs the program there.
Outcome run_on_disk(const TemporaryFolder& folder, const std::string& mount_options) {
  // In a user namespace for ordinary users, in a plain one for a root that may have no user namespaces.
  std::string unshare = "unshare -Urm";
  if (shell(unshare + " true").status != 0) unshare = "unshare -m";
  std::filesystem::create_directory(folder / "disk");
  return shell(
      fmt::format("{0} sh -c 'mount -t tmpfs -o {1} tmpfs {2}/disk && {3}/mica-tokenize --out={2}/disk/x.h5 {2}/t; "
                  "status=$?; ls {2}/disk; exit $status'",
                  unshare, mount_options, folder.path(), test::program_folder()));
}

TEST(MicaTokenize, AFullDiskEndsWithStatus3AndLeavesNothingThere) {
  const TemporaryFolder folder;
  write_text(folder / "t", std::string(1'000'000, 'x'));
  for (const std::string size : {"200k", "3000k"}) {  // full while spooling, full while writing the token file
    const Outcome outcome = run_on_disk(folder, "size=" + size);
    EXPECT_EQ(outcome.status, 3) << outcome.text;
    EXPECT_THAT(outcome.text, AllOf(StartsWith("mica: error: "), HasSubstr("No space left on device"), HasSubstr("bytes free"),
                                    HasSubstr("x.train.h5"), HasSubstr("free space")));
    EXPECT_EQ(std::count(outcome.text.begin(), outcome.text.end(), '\n'), 1) << outcome.text;
  }
}

TEST(MicaTokenize, AnUnwritableFolderIsTheUsersMistake) {
  const TemporaryFolder folder;
  write_text(folder / "t", "0123456789");
  const Outcome outcome = run_on_disk(folder, "ro");
  EXPECT_EQ(outcome.status, 2) << outcome.text;
  EXPECT_THAT(outcome.text, AllOf(StartsWith("mica: error: "), HasSubstr("Read-only"), HasSubstr("--out=")));
}

}  // namespace
}  // namespace mica::data
