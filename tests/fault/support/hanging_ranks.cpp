// SPDX-License-Identifier: Apache-2.0
// A user's own training loop, in which rank 1 goes wrong in the way that the first argument names. Arguments: WAY RUN_FOLDER TIMEOUT_MS
#include <chrono>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "mica/comm/mpi_group.hpp"
#include "mica/comm/run_app.hpp"

namespace {

mica::ExitCode loop(mica::App& app) {
  const std::string &way = app.arguments.at(0), &folder = app.arguments.at(1);
  app.watchdog.set_timeout(std::chrono::milliseconds(std::stoll(app.arguments.at(2))));
  if (folder != "-") app.watchdog.set_folder(folder, folder + "/log.txt");
  const auto pool = mica::make_cpu_pool();
  const auto stream = mica::make_cpu_stream("compute", mica::StreamMode::threaded);
  const mica::Mesh mesh = make_mpi_mesh(app.world, {}, *pool);
  const bool is_wrong = app.world.rank() == 1;
  std::vector<float> data(1 << 16);
  constexpr std::int64_t numel = 1024;
  const auto communicate = [&](int block) {
    const mica::TensorView full{data.data(), mica::Shape{numel * mesh.world_size()}, mica::DType::f32};
    const std::string label = "block." + std::to_string(block);
    if (block == 2) return mesh.shard().barrier(*stream, label.c_str());
    mesh.shard().all_gather(*stream, label.c_str(), full.slice(numel * mesh.rank(), numel), full);
  };
  for (int step = 0; step < 20; ++step) {
    const bool goes_wrong = is_wrong && step == 10;
    if (goes_wrong) std::fputs("goes wrong\n", stderr);
    if (way == "waits_long" && goes_wrong) std::this_thread::sleep_for(std::chrono::seconds(2));
    for (int block = 0; block < 4; ++block) {
      if (is_wrong && way == "waits_often" && step == 0) std::this_thread::sleep_for(std::chrono::seconds(2));
      if (goes_wrong && way == "skips" && block == 1) continue;
      int which = block;
      if (goes_wrong && way == "order" && (block == 1 || block == 2)) which = 3 - block;
      communicate(which);
    }
    if (goes_wrong && way == "computes") {
      for (;;) std::this_thread::sleep_for(std::chrono::seconds(1));
    }
    if (goes_wrong && way == "host") app.world.barrier();
    stream->synchronize();
  }
  if (is_wrong && way == "stays") std::this_thread::sleep_for(std::chrono::hours(1));
  return mica::ExitCode::done;
}

}  // namespace

int main(int argc, char** argv) { return mica::run_app(argc, argv, loop); }
