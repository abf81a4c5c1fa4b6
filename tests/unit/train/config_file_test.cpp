// SPDX-License-Identifier: Apache-2.0
// Config files: comments, quotes, what is refused, and that what is written reads back ([Note: config files]).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/core/error.hpp"
#include "mica/train/config.hpp"

namespace mica::train {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pair;

Config parsed(const std::string& text, const std::vector<std::string>& flags = {}) { return parse_config({"x.cfg", text}, flags); }

std::string refusal(const std::string& text, const std::vector<std::string>& flags = {}) {
  try {
    static_cast<void>(parsed(text, flags));
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "not refused";
}

TEST(ConfigFile, AHashBeginsACommentOnlyAfterWhiteSpace) {
  const Config config = parsed(
      "# a line\n  # another\n[run] # the run\ndir = out#1  # with a comment\nname = a # b # c\n\n[train]\nsteps=7\t# seven\n#steps=8\n");
  EXPECT_EQ(config.run.dir, "out#1");
  EXPECT_EQ(config.run.name, "a");
  EXPECT_EQ(config.train.steps, 7);
  EXPECT_EQ(parsed("", {"--run.dir=out #1"}).run.dir, "out #1") << "a flag has no comments";
}

TEST(ConfigFile, ValuesAndItemsMayStandInQuotes) {
  const Config config =
      parsed("[run]\ndir = \" a # \\\"b\\\" \\\\ \"  # comment\n[data]\ntrain = \"a,b.h5\", c.h5 ,\"d#.h5\"\nval = e\\f.h5\n");
  EXPECT_EQ(config.run.dir, " a # \"b\" \\ ");
  EXPECT_THAT(config.data.train, ElementsAre("a,b.h5", "c.h5", "d#.h5"));
  EXPECT_THAT(config.data.val, ElementsAre("e\\f.h5"));
  EXPECT_THAT(parsed("", {"--data.train=\"a,b.h5\",c.h5"}).data.train, ElementsAre("a,b.h5", "c.h5"));
  for (const char* wrong : {"\"a", "\"a\"b", "\"a\\\""}) {
    EXPECT_THAT(refusal(std::string("[run]\ndir = ") + wrong + "\n"), AllOf(HasSubstr("x.cfg:2: run.dir is "), HasSubstr("quotes")));
    EXPECT_THAT(refusal(std::string("[data]\ntrain = ") + wrong + ",c\n"), HasSubstr("x.cfg:2: data.train is "));
  }
}

TEST(ConfigFile, WhatIsWrittenReadsBack) {
  for (const std::string value :
       {"plain", "out#1", "out #1", "#", " ends ", "a,b", "\"", "a\"b", "\\", "a\\\"", "[x]", "a = b", "\t", ""}) {
    SCOPED_TRACE("<" + value + ">");
    Config config;
    config.run.dir = config.checkpoint.resume = config.model.init_from = value;
    config.data.train = {value, "b.h5"};
    config.fsdp.freeze = {"*.bias", value};
    if (value.empty()) config.data.train = config.fsdp.freeze = {};
    const std::string text = to_ini(config, IniKeys::explained);
    const Config again = parsed(text);
    EXPECT_EQ(again.run.dir, value);
    EXPECT_EQ(again.data.train, config.data.train);
    EXPECT_EQ(again.fsdp.freeze, config.fsdp.freeze);
    EXPECT_TRUE(compare_configs(config, again).empty());
    EXPECT_EQ(to_ini(again, IniKeys::explained), text);
    EXPECT_TRUE(compare_configs(config, parsed(to_ini(config, IniKeys::changed))).empty());
  }
  EXPECT_THAT(refusal("", {"--run.dir=a\nb"}), AllOf(HasSubstr("run.dir"), HasSubstr("line break")));
}

TEST(ConfigFile, AKeyThatIsSetTwiceIsNamedWithBothLines) {
  EXPECT_THAT(refusal("[train]\nsteps = 5\n[run]\nname = a\n[train]\n\nsteps = 6\n"),
              AllOf(HasSubstr("x.cfg:7: 'train.steps'"), HasSubstr("line 2")));
  EXPECT_EQ(parsed("[train]\nsteps = 5\n[run]\n[train]\nmicro_batch = 3\n").train.micro_batch, 3) << "a section may come again";
  EXPECT_EQ(parsed("", {"--train.steps=5", "--train.steps=6"}).train.steps, 6) << "the last flag wins";
}

TEST(ConfigFile, EditorsOfOtherSystems) {
  const Config config = parsed("\xEF\xBB\xBF[run]\r\nname = a\r\ndir = b\r\n\r\n[train]\r\nsteps = 3\r\n");
  EXPECT_EQ(config.run.name, "a");
  EXPECT_EQ(config.run.dir, "b");
  EXPECT_EQ(config.train.steps, 3);
}

TEST(ConfigFile, LinesThatAreNone) {
  for (const char* wrong : {"[run", "run]", "[]", "steps", "= 3", "[a=b"}) {
    EXPECT_THAT(refusal(std::string("\n") + wrong + "\n"), AllOf(HasSubstr("x.cfg:2: "), HasSubstr("'key = value'"))) << wrong;
  }
}

TEST(ConfigFile, ARunsNameIsOneFolder) {
  for (const char* wrong : {"", ".", "..", "a/b", "../x", "/"}) {
    EXPECT_THAT(refusal("", {std::string("--run.name=") + wrong}), HasSubstr("expected a name without /")) << wrong;
  }
  EXPECT_EQ(parsed("", {"--run.name=..a"}).run_folder(), "runs/..a");
}

TEST(ConfigFile, KeysThatTheUserSetAreKnown) {
  Config config = parsed("[model]\nlayers = 4\n[optim]\nlr = 0.1\n", {"--model.width=128"});
  EXPECT_THAT(config.set_by_user, ElementsAre("model.layers", "model.width", "optim.lr"));
  // 4 and 128 are the defaults, too: it counts that they were said.
  apply_defaults(config, {"folder", "[model]\nlayers = 9\nwidth = 9\nheads = 9\n"});
  EXPECT_EQ(config.model.layers, 4);
  EXPECT_EQ(config.model.width, 128);
  EXPECT_EQ(config.model.heads, 9);
  EXPECT_FALSE(config.set_by_user.contains("model.heads"));
}

// Only AdamW's decay is decoupled: L2 in the gradient is not added unless it is asked for, as in PyTorch.
TEST(ConfigFile, AdamAndSgdDecayOnlyIfAskedTo) {
  const auto decay = [](const std::vector<std::string>& flags) { return parse_config({}, flags).optim.weight_decay; };
  EXPECT_EQ(decay({}), 0.1);
  EXPECT_EQ(decay({"--optim.type=adam"}), 0);
  EXPECT_EQ(decay({"--optim.type=sgd"}), 0);
  EXPECT_EQ(decay({"--optim.type=sgd", "--optim.weight_decay=0.1"}), 0.1);
}

TEST(ConfigFile, OldNamesAreReadAndNewOnesWritten) {
  const Config config = parsed("[model]\nhidden = 24\n", {"--train.accumulate=no_sync"});
  EXPECT_EQ(config.model.intermediate_size, 24);
  EXPECT_EQ(config.train.gradient_sync, "no_sync");
  EXPECT_THAT(config.set_by_user, ElementsAre("model.intermediate_size", "train.gradient_sync"));
  EXPECT_THAT(config.old_names,
              ElementsAre(Pair("model.hidden", "model.intermediate_size"), Pair("train.accumulate", "train.gradient_sync")));
  EXPECT_EQ(to_ini(config, IniKeys::changed), "[model]\nintermediate_size = 24\n\n[train]\ngradient_sync = no_sync\n");
  EXPECT_TRUE(parsed(to_ini(config)).old_names.empty());
  EXPECT_THAT(config_help(), AllOf(HasSubstr("--model.intermediate_size=0"), Not(HasSubstr("model.hidden"))));
  EXPECT_THAT(refusal("[model]\nhidden = x\n"), HasSubstr("x.cfg:2: model.hidden is 'x'")) << "the name that the user wrote";
  // What a checkpoint says does not replace it, by either name.
  Config filled = config;
  for (const char* name : {"intermediate_size", "hidden"}) {
    apply_defaults(filled, {"folder", fmt::format("[model]\n{} = 9\n", name)});
    EXPECT_EQ(filled.model.intermediate_size, 24) << name;
  }
}

TEST(ConfigFile, AKeyByBothItsNamesIsRefused) {
  EXPECT_THAT(refusal("[model]\nintermediate_size = 5\nheads = 2\nhidden = 5\n"),
              AllOf(HasSubstr("x.cfg:4: model.hidden and model.intermediate_size (x.cfg:2) are the same key"),
                    HasSubstr("model.hidden is its old name")));
  EXPECT_THAT(refusal("[model]\nhidden = 5\nintermediate_size = 6\n"),
              HasSubstr("x.cfg:3: model.intermediate_size and model.hidden (x.cfg:2)"));
  EXPECT_THAT(refusal("", {"--model.hidden=5", "--model.intermediate_size=6"}), HasSubstr("are the same key, and model.hidden is its old "
                                                                                          "name"));
  // A flag wins over a file, as always: an old config.resolved.cfg holds every key.
  EXPECT_EQ(parsed("[model]\nhidden = 5\n", {"--model.intermediate_size=6"}).model.intermediate_size, 6);
  EXPECT_EQ(parsed("[model]\nintermediate_size = 5\n", {"--model.hidden=6", "--model.hidden=7"}).model.intermediate_size, 7);
}

// A time in milliseconds, say.
TEST(ConfigFile, ASeedMayBeAnyPositiveWholeNumberOf63Bits) {
  EXPECT_EQ(parse_config({}, {"--run.seed=9223372036854775807"}).run.seed, 9223372036854775807U);
  EXPECT_THAT(refusal("", {"--run.seed=9223372036854775808"}), HasSubstr("expected a whole number from 0 to 9223372036854775807"));
}

TEST(ConfigFile, OnlyWhatDiffersFromTheDefaults) {
  EXPECT_EQ(to_ini(Config(), IniKeys::changed), "");
  EXPECT_EQ(to_ini(parsed("", {"--train.steps=100", "--optim.lr=0.5", "--run.name=a", "--train.seq_len=7"}), IniKeys::changed),
            "[run]\nname = a\n\n[optim]\nlr = 0.5\n\n[train]\nseq_len = 7\n");
  EXPECT_THAT(to_ini(Config(), IniKeys::all), AllOf(HasSubstr("\nsteps = 100\n"), Not(HasSubstr("#"))));
}

}  // namespace
}  // namespace mica::train
