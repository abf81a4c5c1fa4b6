// SPDX-License-Identifier: Apache-2.0
// What mica-report makes of a run's files, by the data in its page.
#include "mica/report/run_report.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "mica/io/atomic_file.hpp"

#include "support/temporary_folder.hpp"

namespace mica::report {
namespace {

using nlohmann::json;
using test::TemporaryFolder;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class Report : public ::testing::Test {
 protected:
  void add_rows(const std::string& rows) { std::ofstream(folder_ / "metrics.jsonl", std::ios::app) << rows; }
  void add_step(int step, double loss, const std::string& more = "") {
    add_rows(R"({"event":"step","step":)" + std::to_string(step) + R"(,"loss":)" + std::to_string(loss) +
             R"(,"tokens":100,"tokens_per_s":1000,"step_ms":100,"comm_wait_ms":20)" + more + "}\n");
  }
  /// The page of these runs.
  std::string page(std::vector<std::string> arguments) {
    arguments.push_back("--out=" + (folder_ / "page.html"));
    std::ostringstream said;
    EXPECT_EQ(run_report(arguments, said), ExitCode::done);
    EXPECT_THAT(said.str(), HasSubstr("page.html"));
    return io::read_file(folder_ / "page.html");
  }
  static json data_of(const std::string& page) {
    const std::string begin = R"(<script type="application/json" id="data">)";
    const std::size_t at = page.find(begin) + begin.size();
    return json::parse(page.substr(at, page.find("</script>", at) - at));
  }
  json run() { return data_of(page({folder_.path()}))["runs"][0]; }

  TemporaryFolder folder_;
};

TEST_F(Report, DropsRowsThatWereDoneAgain) {
  for (int step = 1; step <= 6; ++step) add_step(step, step);
  add_rows(R"({"event":"eval","step":6,"val_loss":9,"eval_ms":3600000})"
           "\n"
           R"({"event":"resumed","from":4,"checkpoint":"c","ranks":2})"
           "\n");
  add_step(5, 50);
  add_rows(R"({"event":"step","st)");
  const json data = run();
  EXPECT_EQ(data["loss"]["step"], json({1, 2, 3, 4, 5}));
  EXPECT_EQ(data["loss"]["loss"], json({1, 2, 3, 4, 50}));
  EXPECT_EQ(data["loss"]["tokens"], json({100, 200, 300, 400, 500}));
  EXPECT_TRUE(data["val"]["step"].empty());
  EXPECT_EQ(data["summary"]["steps"], 5);
  ASSERT_EQ(data["events"].size(), 1u);
  EXPECT_EQ(data["events"][0]["kind"], "restart");
  EXPECT_EQ(data["events"][0]["step"], 4);
}

// A spike of one step, and a dip, are seen whatever is thinned out around them.
TEST_F(Report, ALongRunKeepsItsExtremes) {
  for (int step = 1; step <= 30000; ++step) add_step(step, step == 17321 ? 99 : step == 23001 ? -7 : 3);
  const json loss = run()["loss"];
  EXPECT_LE(loss["loss"].size(), 4000u);
  EXPECT_GE(loss["loss"].size(), 2000u);
  const auto place_of = [&](double value) { return std::find(loss["loss"].begin(), loss["loss"].end(), value) - loss["loss"].begin(); };
  EXPECT_EQ(loss["step"].at(static_cast<std::size_t>(place_of(99))), 17321);
  EXPECT_EQ(loss["step"].at(static_cast<std::size_t>(place_of(-7))), 23001);
  EXPECT_TRUE(std::is_sorted(loss["step"].begin(), loss["step"].end()));
}

TEST_F(Report, PartsOfAStep) {
  add_step(1, 3, R"(,"compute_ms":50,"exposed_comm_ms":30,"optimizer_ms":15,"data_ms":5)");
  add_step(2, 3, R"(,"compute_ms":60,"exposed_comm_ms":20,"optimizer_ms":15,"data_ms":5)");
  add_rows(R"({"event":"checkpoint","step":2,"bytes":1048576,"stall_ms":40,"write_ms":9})"
           "\n");
  add_rows(R"({"event":"eval","step":2,"val_loss":2.5,"eval_ms":700})"
           "\n");
  const json data = run();
  const json& split = data["split"];
  EXPECT_EQ(split["compute"], json({50, 60}));
  EXPECT_EQ(split["exposed_comm"], json({30, 20}));
  EXPECT_EQ(split["optimizer"], json({15, 15}));
  EXPECT_EQ(split["data"], json({5, 5}));
  EXPECT_EQ(split["checkpoint"], json({0, 40}));
  EXPECT_EQ(split["evaluation"], json({0, 700}));
  EXPECT_EQ(split["is_measured"], true);
  EXPECT_EQ(data["summary"]["best_val"], 2.5);
  EXPECT_NEAR(data["val"]["hours"][0].get<double>(), (200 + 40 + 700) / 3.6e6, 1e-9);
}

TEST_F(Report, RanksThatAreWaitedFor) {
  for (int step = 1; step <= 1000; ++step) {
    add_step(step, 3);
    add_rows(R"({"event":"ranks","step":)" + std::to_string(step) +
             R"(,"min_ms":1,"median_ms":2,"max_ms":3,"slowest_rank":1,"own_ms":[10,)" +
             (step == 499 ? "70" : "12")  // the first of a column of two
             + "]}\n");
  }
  const json skew = run()["skew"];
  EXPECT_EQ(skew["ranks"], 2);
  EXPECT_LE(skew["own_ms"].size(), 400u);
  double most = 0;
  for (const json& column : skew["own_ms"]) most = std::max(most, column[1].get<double>());
  EXPECT_EQ(most, 70) << "a cell has the longest of its steps";
}

// Of two ranks in a cell the longer one counts; the median is of all ranks.
TEST_F(Report, TheMedianIsOfAllRanksWhereTheyShareRows) {
  json own = json::array();
  for (int rank = 0; rank < 256; ++rank) own.push_back(rank % 2 == 0 && rank < 140 ? 200 : 100);
  add_step(1, 3);
  add_rows(json{{"event", "ranks"}, {"step", 1}, {"own_ms", own}}.dump() + "\n");
  const json skew = run()["skew"];
  EXPECT_EQ(skew["ranks_per_row"], 2);
  EXPECT_EQ(std::ranges::count(skew["own_ms"][0], json(200.0)), 70);
  EXPECT_EQ(skew["median_ms"], json({100}));
}

// With more than 1,024 ranks a row names the slowest one alone.
TEST_F(Report, OfManyRanksTheSlowestIsShown) {
  add_rows(R"({"event":"started","ranks":2000,"steps":9})"
           "\n");
  add_step(1, 3);
  add_rows(R"({"event":"ranks","step":1,"min_ms":90,"median_ms":100,"max_ms":170,"slowest_rank":1999})"
           "\n");
  add_rows(R"({"event":"ranks","step":2,"min_ms":90,"median_ms":100,"max_ms":170,"slowest_rank":2000})"
           "\n");
  const json skew = run()["skew"];
  EXPECT_EQ(skew["has_slowest_only"], true);
  EXPECT_EQ(skew["ranks"], 2000);
  EXPECT_EQ(skew["median_ms"], json({100}));
  ASSERT_EQ(skew["own_ms"].size(), 1u) << "there is no rank 2000";
  EXPECT_EQ(skew["own_ms"][0][0], 100);
  EXPECT_EQ(skew["own_ms"][0].back(), 170);
}

// Until a launch has figures of its own, there are none beside its plan.
TEST_F(Report, MemoryIsThatOfTheLastLaunch) {
  const auto start = [&](int ranks) {
    add_rows(fmt::format(R"({{"event":"started","ranks":{},"planned_bytes":500,"planned_by_role":{{"gradients":500}}}})", ranks) + "\n");
  };
  start(8);
  add_step(1, 3, R"(,"peak_bytes":200)");
  add_rows(R"({"event":"memory","step":1,"peak_bytes":190,"peak_by_role":{"gradients":190}})"
           "\n");
  EXPECT_EQ(run()["memory"]["measured_peak"], 190);
  EXPECT_EQ(run()["memory"]["largest_rank_peak"], 200);
  add_rows(R"({"event":"resumed","from":1,"checkpoint":"c","ranks":2})"
           "\n");
  start(2);
  const json memory = run()["memory"];
  EXPECT_EQ(memory["planned_peak"], 500);
  EXPECT_EQ(memory["measured_peak"], 0);
  EXPECT_EQ(memory["largest_rank_peak"], 0);
  EXPECT_TRUE(memory["measured"].empty());
}

TEST_F(Report, NumbersThatJsonLacksAreGaps) {
  add_step(1, 3);
  add_rows(R"({"event":"step","step":2,"loss":"nan","tokens":100,"tokens_per_s":1000,"step_ms":100,"comm_wait_ms":20})"
           "\n");
  add_step(3, 2);
  add_step(4, 1e30);
  EXPECT_EQ(run()["loss"]["loss"], json({3, nullptr, 2, 1e30}));
}

TEST_F(Report, WarningsComeWithTheirStep) {
  add_step(1, 3);
  std::ofstream(folder_ / "log.txt")
      << "step     40/100  loss 3.1  lr 1e-3\nwarning: </script><b>x\nwarning: </script><b>x\nmica: error: lost\n";
  const std::string text = page({folder_.path()});
  EXPECT_THAT(text, Not(HasSubstr("</script><b>"))) << "a text of the run's ends no element of the page";
  const json events = data_of(text)["runs"][0]["events"];
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0], json({{"step", 40}, {"kind", "warning"}, {"text", "</script><b>x"}, {"times", 2}}));
  EXPECT_EQ(events[1]["kind"], "fault");
}

// However often a run saves and warns, what ends it is told; and how much is left out.
TEST_F(Report, ManyEventsLeaveRoomForRareOnes) {
  add_step(1, 3);
  for (int step = 1; step <= 450; ++step) {
    add_rows(R"({"event":"checkpoint","step":)" + std::to_string(step) +
             R"(,"bytes":1048576,"stall_ms":1,"write_ms":1})"
             "\n");
  }
  add_rows(R"({"event":"rolled_back","step":450,"bad_step":455,"what":"loss is nan"})"
           "\n");
  std::ofstream log(folder_ / "log.txt");
  for (int i = 0; i < 250; ++i) log << "warning: number " << i << "\nwarning: number 7\n";
  log << "mica: error: lost\n";
  log.close();
  const json data = run();
  std::map<std::string, int> kinds;
  for (const json& event : data["events"]) ++kinds[event["kind"].get<std::string>()];
  EXPECT_EQ(kinds, (std::map<std::string, int>{{"save", 200}, {"restart", 1}, {"warning", 200}, {"fault", 1}}));
  EXPECT_EQ(data["events"].back()["text"], "lost");
  EXPECT_EQ(data["events"][202]["text"], "number 7");
  EXPECT_EQ(data["events"][202]["times"], 251);
  EXPECT_EQ(data["more_events"], 250 + 50);
}

TEST_F(Report, WhatDiffersBetweenConfigs) {
  add_step(1, 3);
  const TemporaryFolder other;
  std::ofstream(other / "metrics.jsonl") << R"({"event":"step","step":1,"loss":1})"
                                         << "\n";
  std::ofstream(folder_ / "config.resolved.cfg") << "[optim]\nlr = 0.001\n[train]\nsteps = 7\n";
  std::ofstream(other / "config.resolved.cfg") << "[optim]\nlr = 0.002\n[train]\nsteps = 7\n";
  const json config = data_of(page({folder_.path(), other.path()}))["config"];
  EXPECT_EQ(config["rows"], json::array({json::array({"optim.lr", "0.001", "0.002"})}));
}

TEST_F(Report, ALinkIsWrittenThroughAndStays) {
  add_step(1, 3);
  std::ostringstream said;
  std::ofstream(folder_ / "page.html") << "an earlier one";
  std::filesystem::create_symlink("page.html", folder_ / "link.html");
  EXPECT_EQ(run_report({folder_.path(), "--out=" + (folder_ / "link.html")}, said), ExitCode::done);
  EXPECT_TRUE(std::filesystem::is_symlink(folder_ / "link.html"));
  EXPECT_THAT(io::read_file(folder_ / "page.html"), HasSubstr("</html>"));
  const auto error_for = [&](const std::string& out) {
    return test::error_of<IoError>([&] { run_report({folder_.path(), "--out=" + out}, said); });
  };
  EXPECT_THAT(error_for(folder_.path()), HasSubstr("cannot write " + folder_.path() + ": Is a directory"));
  EXPECT_THAT(error_for("/dev/full"), HasSubstr("cannot write /dev/full: No space left"));
  EXPECT_EQ(said.str(), "") << "only of files: it could stand behind the page";
}

TEST_F(Report, MistakesAreTold) {
  std::ostringstream out;
  const auto refused = [&](const std::vector<std::string>& arguments, const std::string& says) {
    try {
      run_report(arguments, out);
      ADD_FAILURE() << "not refused";
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), HasSubstr(says));
    }
  };
  refused({"--out=x.html"}, "got none");
  refused({folder_.path()}, "--out=FILE.html");
  refused({folder_.path(), "--out=" + (folder_ / "x.html")}, "metrics.jsonl: No such file");
  std::filesystem::create_symlink(folder_ / "loop", folder_ / "loop");
  refused({folder_ / "loop", "--out=" + (folder_ / "x.html")}, "loop/metrics.jsonl: Too many levels of symbolic links");
  refused({folder_.path(), "--out=x.html", "--gflops-per-rank=-1"}, "--gflops-per-rank=-1 is not a number above 0");
  refused({folder_.path(), "--owt=x.html"}, "--owt=x.html");
  refused({folder_.path(), "--out=" + (folder_ / "none/x.html")}, "the folder " + (folder_ / "none") + " of --out=");
}

// One file: whatever it needs is in it.
TEST_F(Report, ThePageNeedsNoOther) {
  add_step(1, 3);
  const std::string text = page({folder_.path()});
  for (const char* attribute : {" src=", "@import", "url(", "<link"}) EXPECT_THAT(text, Not(HasSubstr(attribute)));
  EXPECT_THAT(text, HasSubstr("The MIT License (MIT)"));
  EXPECT_THAT(text, Not(HasSubstr("{{")));
}

std::string slice(int row, const std::string& name, const std::string& kind, double begin, double length, int bytes = 0) {
  return ",\n" + json{{"ph", "X"},   {"pid", 3},    {"tid", row},    {"name", name},
                      {"cat", kind}, {"ts", begin}, {"dur", length}, {"args", {{"bytes", bytes}}}}
                     .dump();
}

TEST_F(Report, ATraceTellsWhatWasHidden) {
  add_step(1, 3);
  std::ofstream(folder_ / "trace-rank3.json")
      << R"({"metadata":{"first_ns":1},"traceEvents":[{"ph":"M","pid":3,"tid":0,"name":"thread_name","args":{"name":"compute"}},)"
      << R"({"ph":"M","pid":3,"tid":1,"name":"thread_name","args":{"name":"unshard"}})"
      << slice(1, "all_gather h.0", "task", 0, 400, 2 << 20) << slice(0, "wait", "wait", 0, 100) << slice(0, "matmul h.0", "task", 100, 880)
      << slice(0, "all_reduce norm", "task", 980, 20, 8) << slice(0, "step 10 whole", "range", 0, 1000)
      << slice(0, "matmul h.0", "task", 1000, 500) << "]}";
  std::ostringstream said;
  EXPECT_EQ(run_report({"traces", folder_.path()}, said), ExitCode::done);
  EXPECT_EQ(said.str(),
            "rank 3: 1.50 ms traced, 2 collectives of 2.0 MiB took 0.42 ms, exposed 0.12 ms (8.0 % of the time), hidden 71 %\n");
  const json line = run()["trace"]["timelines"][0];
  EXPECT_EQ(line["rank"], 3);
  EXPECT_EQ(line["step"], "10");
  EXPECT_EQ(line["step_us"], 1000);
  ASSERT_EQ(line["slices"].size(), 4u) << line["slices"];  // without the step itself, and what comes after it
  EXPECT_EQ(line["costly"][0], json({{"name", "all_gather h.0"}, {"num", 1}, {"kib", 2048}, {"ms", 0.4}, {"exposed_ms", 0.1}}));
}

// 70 % of the steps at 9,000 tokens/s, 20 % at 10,000 and 10 % at 4,000, in a run so long that its curves are thinned.
TEST_F(Report, TheMedianSpeedIsThatOfAllSteps) {
  std::string rows;
  for (int step = 1; step <= 5000; ++step) {
    const int speed = step % 10 == 0 ? 4000 : step % 10 < 3 ? 10000 : 9000;
    rows += fmt::format(R"({{"event":"step","step":{},"loss":3,"tokens":100,"tokens_per_s":{},"step_ms":100}})", step, speed) + "\n";
  }
  add_rows(rows);
  EXPECT_EQ(run()["summary"]["tokens_per_s"], 9000);
}

// With inline streams no task runs beside another, so nothing is hidden.
TEST_F(Report, AnInlineTraceHidesNothing) {
  add_step(1, 3);
  std::ofstream(folder_ / "trace-rank3.json")
      << R"({"metadata":{"first_ns":1},"traceEvents":[{"ph":"M","pid":3,"tid":0,"name":"thread_name","args":{"name":"compute"}},)"
      << R"({"ph":"M","pid":3,"tid":1,"name":"thread_name","args":{"name":"unshard"}})"
      << slice(1, "all_gather h.0", "task", 0, 400.001, 2 << 20) << slice(0, "wait", "wait", 400, 1)
      << slice(0, "matmul h.0", "task", 401, 579) << slice(1, "reduce_scatter h.0", "task", 980, 20, 8)
      << slice(0, "step 10 whole", "range", 0, 1000) << "]}";
  std::ostringstream said;
  EXPECT_EQ(run_report({"traces", folder_.path()}, said), ExitCode::done);
  EXPECT_EQ(said.str(),
            "rank 3: 1.00 ms traced, 2 collectives of 2.0 MiB took 0.42 ms, exposed 0.42 ms (42.0 % of the time), hidden 0 %\n");
  said.str("");
  EXPECT_EQ(run_report({"traces", folder_.path(), folder_ / "trace-rank3.json"}, said), ExitCode::done);
  EXPECT_THAT(said.str(), HasSubstr(folder_.path() + ": rank 3: 1.00 ms traced"));
  EXPECT_THAT(said.str(), HasSubstr((folder_ / "trace-rank3.json") + ": rank 3: 1.00 ms traced"));
  const json costly = run()["trace"]["timelines"][0]["costly"];
  ASSERT_EQ(costly.size(), 3u);
  EXPECT_EQ(costly[0], json({{"name", "all_gather h.0"}, {"num", 1}, {"kib", 2048}, {"ms", 0.4}, {"exposed_ms", 0.4}}));
  EXPECT_EQ(costly[1], json({{"name", "reduce_scatter h.0"}, {"num", 1}, {"kib", 1}, {"ms", 0.02}, {"exposed_ms", 0.02}}));
}

TEST_F(Report, APageDoesWithoutATraceThatCannotBeRead) {
  add_step(1, 3);
  std::ofstream(folder_ / "trace-rank0.json") << R"({"traceEvents":[{"ph":"X",)";
  const json data = run();
  EXPECT_TRUE(data["trace"].is_null());
  EXPECT_THAT(data["trace_note"].get<std::string>(), HasSubstr("trace-rank0.json: not a trace of log.trace"));
  std::ostringstream said;
  EXPECT_THROW(run_report({"traces", folder_.path()}, said), ConfigError);
  std::ofstream(folder_ / "trace-rank3.json")
      << R"({"traceEvents":[{"ph":"M","pid":3,"tid":0,"name":"thread_name","args":{"name":"compute"}})"
      << slice(0, "matmul h.0", "task", 0, 100) << "]}";
  const json partly = run();
  ASSERT_EQ(partly["trace"]["ranks"].size(), 1u) << "the others are shown";
  EXPECT_EQ(partly["trace"]["ranks"][0]["rank"], 3);
  EXPECT_THAT(partly["trace_note"].get<std::string>(), HasSubstr("trace-rank0.json: not a trace of log.trace"));
}

}  // namespace
}  // namespace mica::report
