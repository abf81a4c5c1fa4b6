// SPDX-License-Identifier: Apache-2.0
// What mica-train writes into metrics.jsonl is what PyTorch computes (tests/reference/make_training_reference.py), on any
// number of ranks; and it evaluates, saves, deletes and prints at the steps that its config names.

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <regex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "fault/support/training.hpp"
#include "support/paths.hpp"
#include "support/temporary_folder.hpp"

namespace mica::test {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;

const std::regex kPeaks("peak of a rank ([0-9.]+) (.*) measured, ([0-9.]+) (.*) planned");
constexpr double kTolerance = 2e-5;  // relative: fp32 over six steps, against float64

/// How the sequences of a step are dealt out; the global batch is the reference's.
struct Layout {
  int num_ranks;
  std::int64_t micro_batch;
  std::vector<std::string> flags = {};
};

/// The validation file's sequences that an evaluation takes: batches of 16 from its start, 0 for all, however many ranks.
std::vector<std::size_t> evaluated_sequences(std::size_t eval_batches, std::size_t num_sequences) {
  std::vector<std::size_t> sequences(eval_batches == 0 ? num_sequences : std::min(16 * eval_batches, num_sequences));
  std::iota(sequences.begin(), sequences.end(), std::size_t{0});
  return sequences;
}

double mean_over(const json& values, const std::vector<std::size_t>& indices) {
  double sum = 0;
  for (const std::size_t index : indices) sum += values.at(index).get<double>();
  return sum / static_cast<double>(indices.size());
}

class Figures : public ::testing::Test {
 protected:
  Figures() : reference_(json::parse(read_text(reference_path("training.json")))) {
    for (const char* part : {"train", "val"}) {
      std::ofstream file(folder_ / (std::string(part) + ".bin"), std::ios::binary);
      for (const std::uint16_t token : reference_[part].get<std::vector<std::uint16_t>>()) {
        file.write(reinterpret_cast<const char*>(&token), sizeof token);
      }
    }
    write_text(folder_ / "run.cfg",
               "[model]\ntype = gpt2\nlayers = 2\nheads = 3\nwidth = 24\nvocab_size = 61\ncontext = 17\ntie_embeddings = true\n"
               "init_from = " +
                   reference_path("hf_gpt2") +
                   "\n"
                   "[data]\ntrain = " +
                   (folder_ / "train.bin") + "\nval = " + (folder_ / "val.bin") +
                   "\norder = sequential\n"
                   "[train]\nsteps = 6\nglobal_batch = 8\nseq_len = 12\nlog_interval = 4\neval_interval = 4\neval_batches = 1\n");
  }

  /// Lines of metrics.jsonl of a run that ends well, in a folder of its own.
  std::vector<json> train(const Layout& layout, std::vector<std::string> flags) {
    run_folder_ = folder_ / ("run" + std::to_string(num_runs_++));
    flags.insert(flags.end(), layout.flags.begin(), layout.flags.end());
    flags.push_back("--train.micro_batch=" + std::to_string(layout.micro_batch));
    flags.push_back("--run.dir=" + run_folder_);
    return go_on(layout.num_ranks, flags);
  }
  /// The same, in whatever folder the flags say.
  std::vector<json> go_on(int num_ranks, const std::vector<std::string>& flags) {
    finished_ = test::run(training(num_ranks, folder_ / "run.cfg", flags));
    EXPECT_EQ(finished_.status, 0) << finished_.output;
    std::vector<json> lines;
    std::ifstream file(run_folder_ + "/metrics.jsonl");
    for (std::string line; std::getline(file, line);) lines.push_back(json::parse(line));
    return lines;
  }
  static std::vector<json> of_event(const std::vector<json>& lines, const std::string& event) {
    std::vector<json> found;
    std::ranges::copy_if(lines, std::back_inserter(found), [&](const json& line) { return line.at("event") == event; });
    return found;
  }
  static std::vector<std::int64_t> steps_of(const std::vector<json>& lines, const std::string& event) {
    std::vector<std::int64_t> steps;
    for (const json& line : of_event(lines, event)) steps.push_back(line.at("step"));
    return steps;
  }
  /// Steps of the progress lines.
  [[nodiscard]] std::vector<std::int64_t> steps_printed() const {
    static const std::regex kStep("step +([0-9]+)/[0-9]+ +loss");
    std::vector<std::int64_t> steps;
    for (std::sregex_iterator match(finished_.output.begin(), finished_.output.end(), kStep), end; match != end; ++match) {
      steps.push_back(std::stoll((*match)[1]));
    }
    return steps;
  }

  static std::vector<std::string> flags_of(const json& run) {
    std::vector<std::string> flags;
    for (const auto& [key, value] : run.at("flags").items()) {
      flags.push_back("--" + key + "=" + (value.is_string() ? value.get<std::string>() : value.dump()));
    }
    return flags;
  }

  void expect_run(const std::string& name, const Layout& layout) {
    SCOPED_TRACE(name + " on " + std::to_string(layout.num_ranks) + " ranks, micro_batch " + std::to_string(layout.micro_batch) + " " +
                 ::testing::PrintToString(layout.flags));
    const json& run = reference_["runs"][name];
    const std::vector<json> lines = train(layout, flags_of(run));
    const std::vector<json> steps = of_event(lines, "step");
    ASSERT_EQ(steps.size(), 6u);
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const auto near = [&](const char* field, double tolerance) {
        const double expected = run[field][i];
        EXPECT_NEAR(steps[i].at(field).get<double>(), expected, tolerance * expected) << field << " of step " << i + 1;
      };
      EXPECT_EQ(steps[i].at("step"), i + 1);
      near("lr", 1e-14);
      near("loss", kTolerance);
      near("grad_norm", 5 * kTolerance);
      EXPECT_EQ(steps[i].at("tokens"), 8 * 12);
    }
    // What the run took is what it was said to take.
    std::smatch peaks;
    ASSERT_TRUE(std::regex_search(finished_.output, peaks, kPeaks)) << finished_.output;
    EXPECT_EQ(peaks[2], peaks[4]) << "one unit";
    EXPECT_NEAR(std::stod(peaks[1]), std::stod(peaks[3]), 0.002 * std::stod(peaks[3])) << finished_.output;
    const std::vector<json> evals = of_event(lines, "eval");
    EXPECT_THAT(steps_of(lines, "eval"), ElementsAre(4, 6));
    for (const json& eval : evals) {
      const json& each = run["val"][eval.at("step").dump()];
      const double expected = mean_over(each, evaluated_sequences(1, each.size()));
      EXPECT_NEAR(eval.at("val_loss").get<double>(), expected, kTolerance * expected) << "after step " << eval.at("step");
    }
  }

  TemporaryFolder folder_;
  json reference_;
  std::string run_folder_;  // of the latest run
  Finished finished_;       // that run
  int num_runs_ = 0;
};

// SGD shows every factor in front of a gradient; Adam's steps hardly change with it.
TEST_F(Figures, SgdIsPyTorchsHoweverABatchIsDealtOut) {
  for (const char* name : {"sgd, clipped", "sgd, not clipped"}) {
    expect_run(name, {1, 8});
    expect_run(name, {1, 2});
    expect_run(name, {2, 2});
    expect_run(name, {2, 1, {"--train.gradient_sync=no_sync"}});
    expect_run(name, {4, 2});
    expect_run(name, {4, 1});
  }
}

TEST_F(Figures, SgdIsPyTorchsInOtherWaysToReduce) {
  expect_run("sgd, clipped", {2, 2, {"--train.deterministic=true"}});
  expect_run("sgd, clipped", {4, 1, {"--fsdp.strategy=hybrid_shard", "--mesh.shard_size=2", "--fsdp.sharding=per_parameter"}});
  expect_run("sgd, not clipped", {2, 2, {"--fsdp.strategy=no_shard", "--fsdp.cpu_offload=parameters"}});
}

TEST_F(Figures, AdamIsPyTorchsHoweverABatchIsDealtOut) {
  for (const char* name : {"adamw", "adam"}) {
    expect_run(name, {1, 8});
    expect_run(name, {2, 2});
    expect_run(name, {4, 1, {"--train.gradient_sync=no_sync"}});
  }
}

// 20 sequences: 16 of them, or all, in batches that do not come out even on ranks or micro-batches.
TEST_F(Figures, AnEvaluationTakesTheSameSequencesHoweverTheyAreDealtOut) {
  const json& each = reference_["start"]["val"];
  for (const Layout& layout : {Layout{1, 3}, Layout{2, 4}, Layout{3, 4}, Layout{3, 8}}) {
    for (const std::size_t eval_batches : {0u, 1u}) {
      const std::vector<json> lines = train(
          layout, {"--optim.lr=0", "--train.steps=1", "--train.global_batch=24", "--train.eval_batches=" + std::to_string(eval_batches)});
      const double expected = mean_over(each, evaluated_sequences(eval_batches, each.size()));
      ASSERT_THAT(steps_of(lines, "eval"), ElementsAre(1));
      EXPECT_NEAR(of_event(lines, "eval")[0].at("val_loss").get<double>(), expected, kTolerance * expected)
          << eval_batches << " batches on " << layout.num_ranks << " ranks, micro_batch " << layout.micro_batch;
    }
  }
}

// fp16 rounds to three digits; a wrong factor would be 2 or more. The first scale overflows, and its steps change nothing.
TEST_F(Figures, Fp16IsCloseToPyTorchOnceTheLossScaleFits) {
  const json& run = reference_["runs"]["sgd, clipped"];
  std::vector<std::string> flags = flags_of(run);
  flags.push_back("--fsdp.param_dtype=fp16");
  std::vector<std::string> fitting = flags;
  fitting.push_back("--optim.loss_scale=64");
  const std::vector<json> close = of_event(train({2, 2}, fitting), "step");
  ASSERT_EQ(close.size(), 6u);
  for (std::size_t i = 0; i < close.size(); ++i) {
    const double loss = run["loss"][i], norm = run["grad_norm"][i];
    EXPECT_NEAR(close[i].at("loss").get<double>(), loss, 0.004 * loss) << "step " << i + 1;
    EXPECT_NEAR(close[i].at("grad_norm").get<double>(), norm, 0.03 * norm) << "step " << i + 1;
    EXPECT_EQ(close[i].at("loss_scale"), 64);
    EXPECT_EQ(close[i].at("skipped"), false);
  }
  flags.insert(flags.end(), {"--optim.loss_scale=4294967296", "--train.steps=4"});
  const std::vector<json> skipped = of_event(train({2, 2}, flags), "step");
  ASSERT_EQ(skipped.size(), 4u);
  for (std::size_t i = 0; i < skipped.size(); ++i) {
    std::vector<std::size_t> sequences(8);
    std::iota(sequences.begin(), sequences.end(), 8 * i);
    const double loss = mean_over(reference_["start"]["train"], sequences);
    EXPECT_NEAR(skipped[i].at("loss").get<double>(), loss, 0.004 * loss) << "no step has changed anything";
    EXPECT_EQ(skipped[i].at("skipped"), true);
    EXPECT_EQ(skipped[i].at("loss_scale").get<double>(), 4294967296. / static_cast<double>(1 << i)) << "halved by each overflow";
  }
}

// A learning rate of 0 leaves the parameters as they are: dropout changes the training loss, and not the validation loss.
TEST_F(Figures, DropoutIsOfTrainingAlone) {
  const Layout layout{2, 2};
  const std::vector<json> lines = train(layout, {"--optim.lr=0", "--model.dropout=0.5", "--train.steps=2", "--train.eval_interval=1"});
  const json& each = reference_["start"]["val"];
  const double expected = mean_over(each, evaluated_sequences(1, each.size()));
  const std::vector<json> evals = of_event(lines, "eval");
  ASSERT_EQ(evals.size(), 2u);
  for (const json& eval : evals) EXPECT_NEAR(eval.at("val_loss").get<double>(), expected, kTolerance * expected);
  for (const json& step : of_event(lines, "step")) {
    const std::int64_t first = (step.at("step").get<std::int64_t>() - 1) * 8;
    std::vector<std::size_t> sequences(8);
    std::iota(sequences.begin(), sequences.end(), static_cast<std::size_t>(first));
    EXPECT_GT(std::abs(step.at("loss").get<double>() - mean_over(reference_["start"]["train"], sequences)), 0.01);
  }
}

TEST_F(Figures, AnEvaluationLeavesTrainingAlone) {
  const auto steps_with = [&](const std::string& interval) {
    std::vector<std::pair<double, double>> steps;
    for (const json& step : of_event(train({2, 2}, {"--model.dropout=0.5", "--train.eval_interval=" + interval}), "step")) {
      steps.emplace_back(step.at("loss"), step.at("grad_norm"));
    }
    return steps;
  };
  const auto without = steps_with("0");
  ASSERT_EQ(without.size(), 6u);
  EXPECT_EQ(steps_with("1"), without);
}

// Masters are fp32: an evaluation may compute with them although training computes in bf16.
TEST_F(Figures, AnEvaluationMayBeInFullPrecision) {
  const json& each = reference_["start"]["val"];
  const double expected = mean_over(each, evaluated_sequences(1, each.size()));
  const auto error_of = [&](const std::string& full_precision) {
    const std::vector<json> lines =
        train({2, 4}, {"--optim.lr=0", "--train.steps=1", "--fsdp.param_dtype=bf16", "--fsdp.full_precision_in_eval=" + full_precision});
    return std::abs(of_event(lines, "eval").at(0).at("val_loss").get<double>() - expected);
  };
  EXPECT_LT(error_of("true"), kTolerance * expected);
  EXPECT_GT(error_of("false"), kTolerance * expected);
}

// With a sequence a step, the loss tells which sequence it was.
TEST_F(Figures, TheSeedDecidesTheOrderOfTheData) {
  const std::vector<double> losses = reference_["start"]["train"];
  const auto order_of = [&](const std::vector<std::string>& more) {
    std::vector<std::string> flags{"--optim.lr=0", "--train.steps=80", "--train.global_batch=1", "--data.order=shuffled", "--data.val="};
    flags.insert(flags.end(), more.begin(), more.end());
    std::vector<std::size_t> order;
    for (const json& step : of_event(train({1, 1}, flags), "step")) {
      const double loss = step.at("loss");
      const auto nearest = std::ranges::min_element(losses, {}, [&](double each) { return std::abs(each - loss); });
      EXPECT_NEAR(loss, *nearest, kTolerance * loss);
      order.push_back(static_cast<std::size_t>(nearest - losses.begin()));
    }
    return order;
  };
  std::vector<std::size_t> in_order(losses.size());
  std::iota(in_order.begin(), in_order.end(), 0u);
  const auto epoch_of = [](const std::vector<std::size_t>& order, std::ptrdiff_t epoch) {
    return std::vector<std::size_t>(order.begin() + 40 * epoch, order.begin() + 40 * (epoch + 1));
  };
  std::vector<std::vector<std::size_t>> epochs;
  for (const char* seed : {"1", "2"}) {
    const std::vector<std::size_t> order = order_of({std::string("--run.seed=") + seed});
    ASSERT_EQ(order.size(), 80u);
    for (const std::ptrdiff_t epoch : {0, 1}) {
      epochs.push_back(epoch_of(order, epoch));
      EXPECT_THAT(epochs.back(), ::testing::UnorderedElementsAreArray(in_order)) << "each sequence once";
      EXPECT_NE(epochs.back(), in_order);
    }
  }
  for (std::size_t a = 0; a < epochs.size(); ++a) {
    for (std::size_t b = 0; b < a; ++b) EXPECT_NE(epochs[a], epochs[b]) << "seeds and epochs have orders of their own";
  }
  // Two ranks share out the same order.
  const std::vector<json> steps = of_event(
      train({2, 1}, {"--optim.lr=0", "--train.steps=20", "--train.global_batch=2", "--data.order=shuffled", "--data.val=", "--run.seed=2"}),
      "step");
  ASSERT_EQ(steps.size(), 20u);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const double expected = (losses[epochs[2][2 * i]] + losses[epochs[2][2 * i + 1]]) / 2;
    EXPECT_NEAR(steps[i].at("loss").get<double>(), expected, kTolerance * expected) << "step " << i + 1;
  }
}

TEST_F(Figures, StepsOfEvaluationsSavesAndProgress) {
  const auto checkpoints = [&] { return checkpoints_of(run_folder_); };
  const std::vector<std::string> flags{"--train.steps=10", "--train.eval_interval=4", "--train.log_interval=3", "--checkpoint.interval=3"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), flags.begin(), flags.end());
    return more;
  };
  std::vector<json> lines = train({2, 4}, with({"--checkpoint.keep=2"}));
  EXPECT_THAT(steps_of(lines, "step"), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 9, 10));
  EXPECT_THAT(steps_of(lines, "eval"), ElementsAre(4, 8, 10));
  EXPECT_THAT(steps_of(lines, "checkpoint"), ElementsAre(3, 6, 9, 10));
  EXPECT_THAT(steps_printed(), ElementsAre(3, 6, 9, 10));
  EXPECT_THAT(checkpoints(), ElementsAre("step-00000009", "step-00000010"));
  // It goes on from the newest one, in the same file of metrics.
  lines = go_on(2, with({"--train.steps=12", "--train.micro_batch=4", "--checkpoint.keep=3", "--run.dir=" + run_folder_}));
  EXPECT_THAT(steps_of(lines, "step"), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12));
  EXPECT_THAT(steps_of(lines, "eval"), ElementsAre(4, 8, 10, 12));
  EXPECT_THAT(steps_of(lines, "checkpoint"), ElementsAre(3, 6, 9, 10, 12));
  EXPECT_THAT(checkpoints(), ElementsAre("step-00000009", "step-00000010", "step-00000012"));

  lines = train({1, 8}, with({"--checkpoint.keep=0", "--checkpoint.interval=4", "--train.eval_interval=0"}));
  EXPECT_THAT(steps_of(lines, "eval"), ElementsAre(10));
  EXPECT_THAT(checkpoints(), ElementsAre("step-00000004", "step-00000008", "step-00000010"));
  lines = train({1, 8}, with({"--checkpoint.keep=1", "--data.val=", "--log.metrics=false"}));
  EXPECT_THAT(lines, ::testing::IsEmpty());
  EXPECT_THAT(checkpoints(), ElementsAre("step-00000010"));
  lines = train({1, 8}, with({"--checkpoint.interval=0", "--data.val="}));
  EXPECT_THAT(steps_of(lines, "eval"), ::testing::IsEmpty());
  EXPECT_THAT(checkpoints(), ElementsAre("step-00000010"));
}

// Times are not known beforehand, but they hang together.
TEST_F(Figures, TimesHangTogether) {
  const std::vector<json> lines = train({2, 2}, {"--train.steps=60", "--train.log_interval=30", "--train.eval_interval=0",
                                                 "--mesh.streams=inline", "--log.tensorboard=true"});
  double ms = 0, comm_ms = 0;
  for (const json& step : of_event(lines, "step")) {
    const double step_ms = step.at("step_ms");
    ms += step_ms;
    comm_ms += step.at("comm_wait_ms").get<double>();
    EXPECT_NEAR(step.at("tokens_per_s").get<double>() * step_ms / 1e3, 8 * 12, 0.5);
    EXPECT_GT(step.at("peak_bytes").get<std::int64_t>(), 0);
    double parts_ms = 0;
    for (const char* part : {"compute_ms", "exposed_comm_ms", "optimizer_ms", "data_ms"}) {
      EXPECT_GE(step.at(part).get<double>(), 0) << part;
      parts_ms += step.at(part).get<double>();
    }
    EXPECT_NEAR(parts_ms, step_ms, 0.01) << step;
    EXPECT_NEAR(step.at("exposed_comm_ms").get<double>(), step.at("comm_wait_ms").get<double>(), 0.01) << "inline streams hide nothing";
    EXPECT_GT(step.at("optimizer_ms").get<double>(), 0);
    EXPECT_GT(step.at("gflop_per_s").get<double>(), 0);
  }
  EXPECT_THAT(steps_of(lines, "ranks"), ElementsAre(30, 60));
  for (const json& row : of_event(lines, "ranks")) {
    EXPECT_EQ(row.at("own_ms").size(), 2u);
    EXPECT_NEAR(row.at("max_ms").get<double>(), std::max(row.at("own_ms")[0].get<double>(), row.at("own_ms")[1].get<double>()), 0.01)
        << row;
  }
  const json started = of_event(lines, "started").at(0), memory = of_event(lines, "memory").at(0);
  EXPECT_EQ(started.at("ranks"), 2);
  EXPECT_EQ(started.at("planned_by_role").at("sharded_param"), memory.at("peak_by_role").at("sharded_param"));
  std::vector<std::string> event_files;
  for (const auto& entry : std::filesystem::directory_iterator(run_folder_ + "/tensorboard")) event_files.push_back(entry.path().string());
  ASSERT_EQ(event_files.size(), 1u);
  EXPECT_THAT(read_text(event_files[0]), ::testing::AllOf(::testing::HasSubstr("brain.Event:2"), ::testing::HasSubstr("train/loss"),
                                                          ::testing::HasSubstr("speed/step_ms")));
  EXPECT_GT(ms, 0);
  EXPECT_LT(ms, finished_.seconds * 1e3) << "steps take no longer than the whole run";
  EXPECT_GT(comm_ms, 0) << "two ranks communicate";
  EXPECT_LT(comm_ms, ms) << "inline streams communicate within a step's time";
}

}  // namespace
}  // namespace mica::test
