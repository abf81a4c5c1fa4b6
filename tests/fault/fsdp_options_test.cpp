// SPDX-License-Identifier: Apache-2.0
// What keys of [fsdp] do to a whole run: which parameters move, how units are cut, what is gathered again. That a strategy changes
// no figure is fault.figures'.

#include <filesystem>
#include <map>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "fault/support/training.hpp"
#include "support/temporary_folder.hpp"

namespace mica::test {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

class FsdpOptions : public ::testing::Test {
 protected:
  FsdpOptions() {
    write_tokens(folder_ / "tokens.bin", 4000);
    write_text(folder_ / "run.cfg",
               "[model]\ntype = gpt2\nlayers = 2\nheads = 2\nwidth = 16\nvocab_size = 16\ncontext = 16\n"
               "[data]\ntrain = " +
                   (folder_ / "tokens.bin") +
                   "\n"
                   "[train]\nsteps = 3\nmicro_batch = 2\nglobal_batch = 8\nseq_len = 16\nlog_interval = 1\n"
                   "[optim]\nlr = 0.01\nschedule = constant\n[checkpoint]\ninterval = 1\nkeep = 0\n"
                   "[run]\ndir = " +
                   run_folder() + "\n");
  }
  [[nodiscard]] std::string run_folder() const { return folder_ / "run"; }
  /// In a fresh folder.
  [[nodiscard]] Finished train(int num_ranks, const std::vector<std::string>& flags) const {
    fs::remove_all(run_folder());
    return test::run(training(num_ranks, folder_ / "run.cfg", flags));
  }
  /// How often each unit's collective of this kind stands in rank 0's trace.
  [[nodiscard]] std::map<std::string, int> traced(const std::string& kind) const {
    std::map<std::string, int> times;
    const auto trace = nlohmann::json::parse(read_text(run_folder() + "/trace-rank0.json"));
    for (const auto& event : trace.at("traceEvents")) {
      const std::string name = event.at("name");
      if (event.at("ph") != "X" || !name.starts_with(kind + " ")) continue;
      const std::string unit = name.substr(kind.size() + 1);
      if (unit == "root" || unit.starts_with("transformer.")) ++times[unit];
    }
    return times;
  }
  /// Names of the parameters that steps 2 and 3 have changed, and of those they have not.
  struct Moved {
    std::set<std::string> changed, same;
  };
  [[nodiscard]] Moved moved() const {
    const Finished diff = test::run({program("mica-inspect"), "diff", "--json", run_folder() + "/checkpoints/step-00000001",
                                     run_folder() + "/checkpoints/step-00000003"});
    EXPECT_EQ(diff.status, 1) << diff.output;
    Moved moved;
    const auto compared = nlohmann::json::parse(diff.output);
    for (const auto& array : compared.at("arrays")) {
      if (array.at("kind") == "master") (array.at("result") == "equal" ? moved.same : moved.changed).insert(array.at("parameter"));
    }
    return moved;
  }

  TemporaryFolder folder_;
};

TEST_F(FsdpOptions, FrozenParametersKeepTheirBits) {
  for (const int num_ranks : {1, 2}) {
    SCOPED_TRACE(num_ranks);
    const Finished run = train(num_ranks, {"--fsdp.freeze=*wpe*,*ln_1.weight", "--fsdp.use_orig_params=true"});
    ASSERT_EQ(run.status, 0) << run.output;
    const Moved some = moved();
    EXPECT_THAT(some.same, UnorderedElementsAre("transformer.wpe.weight", "transformer.h.0.ln_1.weight", "transformer.h.1.ln_1.weight"));
    EXPECT_EQ(some.changed.size(), 25u) << "12 of each block, and 4";
  }
}

// Nothing is reduced for a unit without gradients, and the optimizer has no state for it.
TEST_F(FsdpOptions, AFrozenUnitIsNeitherReducedNorStepped) {
  const Finished run = train(2, {"--fsdp.freeze=transformer.h.0.*", "--log.trace=2-2"});
  ASSERT_EQ(run.status, 0) << run.output;
  EXPECT_THAT(traced("reduce_scatter"), ElementsAre(Pair("root", 2), Pair("transformer.h.1", 2))) << "of two micro-batches";
  const Moved one = moved();
  EXPECT_EQ(one.same.size(), 12u);
  for (const std::string& name : one.same) EXPECT_TRUE(name.starts_with("transformer.h.0.")) << name;
  // It is trained later, from where it is: a run goes on with other parameters frozen.
  const Finished thawed = test::run(training(2, folder_ / "run.cfg", {"--train.steps=5"}));
  ASSERT_EQ(thawed.status, 0) << thawed.output;
  const Finished diff = test::run({program("mica-inspect"), "diff", "--json", run_folder() + "/checkpoints/step-00000003",
                                   run_folder() + "/checkpoints/step-00000005"});
  ASSERT_EQ(diff.status, 1) << diff.output;
  std::set<std::string> only_now;  // state of the optimizer
  const auto compared = nlohmann::json::parse(diff.output);
  for (const auto& array : compared.at("arrays")) {
    if (array.at("result") == "only_in_b") only_now.insert(array.at("parameter"));
  }
  EXPECT_EQ(only_now, one.same);
}

TEST_F(FsdpOptions, ParametersAreGatheredAgainWhereTheyWereGivenBack) {
  // The root's are kept from its forward to its backward, whatever the strategy.
  const std::map<std::string, int> once{{"root", 1}, {"transformer.h.0", 1}, {"transformer.h.1", 1}};
  const std::map<std::string, int> twice{{"root", 1}, {"transformer.h.0", 2}, {"transformer.h.1", 2}};
  struct Case {
    int num_ranks;
    std::vector<std::string> flags;
    std::map<std::string, int> gathers;
  };
  std::vector<std::vector<StepLine>> lines;
  for (const Case& c :
       {Case{2, {"--fsdp.reshard_after_forward=true"}, twice}, Case{2, {}, twice},
        Case{2, {"--fsdp.strategy=shard_grad_op", "--fsdp.reshard_after_forward=false"}, once}, Case{4, {"--train.micro_batch=1"}, twice},
        Case{4, {"--train.micro_batch=1", "--fsdp.reshard_after_forward=2"}, twice}}) {
    SCOPED_TRACE(::testing::PrintToString(c.flags));
    std::vector<std::string> flags = c.flags;
    flags.insert(flags.end(), {"--train.global_batch=4", "--log.trace=2-2", "--mesh.backend=mpi"});
    const Finished run = train(c.num_ranks, flags);
    ASSERT_EQ(run.status, 0) << run.output;
    EXPECT_EQ(traced("all_gather"), c.gathers);
    lines.push_back(step_lines(run_folder()));
    ASSERT_EQ(lines.back().size(), 3u);
  }
  EXPECT_EQ(lines[1], lines[0]) << "full_shard's own";
  EXPECT_EQ(lines[2], lines[0]) << "the same bits, gathered or kept";
  EXPECT_EQ(lines[4], lines[3]) << "the same bits, gathered from all or from a neighbour";
}

// Modules of at least so many elements are units: a block has 3280, a product of its mlp 1088 or 1040, its attention 1088.
TEST_F(FsdpOptions, UnitsAreCutBySize) {
  const std::string block = "transformer.h.";
  const std::vector<std::string> parts{"attn", "mlp.c_fc", "mlp.c_proj"};
  std::set<std::string> blocks{"root"}, small{"root"};
  for (const std::string layer : {"0", "1"}) {
    blocks.insert(block + layer);
    for (const std::string& part : parts) small.insert(block + layer + "." + part);
  }
  std::vector<std::vector<StepLine>> lines;
  for (const auto& [flags, expected] :
       std::vector<std::pair<std::vector<std::string>, std::set<std::string>>>{{{"--fsdp.wrap=block"}, blocks},
                                                                               {{"--fsdp.wrap=size", "--fsdp.min_numel=3000"}, blocks},
                                                                               {{"--fsdp.wrap=size", "--fsdp.min_numel=1000"}, small},
                                                                               {{"--fsdp.wrap=size"}, {"root"}}}) {
    SCOPED_TRACE(::testing::PrintToString(flags));
    std::vector<std::string> all = flags;
    all.emplace_back("--log.trace=2-2");
    const Finished run = train(2, all);
    ASSERT_EQ(run.status, 0) << run.output;
    std::set<std::string> reduced;
    for (const auto& [unit, times] : traced("reduce_scatter")) reduced.insert(unit);
    EXPECT_EQ(reduced, expected);
    lines.push_back(step_lines(run_folder()));
  }
  EXPECT_EQ(lines[1], lines[0]) << "the same units";
  for (const std::vector<StepLine>& other : {lines[2], lines[3]}) {
    ASSERT_EQ(other.size(), 3u);
    for (std::size_t i = 0; i < other.size(); ++i) {
      EXPECT_NEAR(other[i].loss, lines[0][i].loss, 1e-4);
      EXPECT_NEAR(other[i].grad_norm, lines[0][i].grad_norm, 1e-3) << "summed in another order";
    }
  }
}

}  // namespace
}  // namespace mica::test
