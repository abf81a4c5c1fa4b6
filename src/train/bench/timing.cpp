// SPDX-License-Identifier: Apache-2.0
#include "timing.hpp"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>
#include <string>

namespace mica::train::bench {

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : 0.5 * (values[half - 1] + values[half]);
}

double slowest(const mpi::Communicator& world, double seconds) {
  return static_cast<double>(world.all_max(std::llround(seconds * 1e9))) * 1e-9;
}

double timed_together(const mpi::Communicator& world, const std::function<void()>& work) {
  world.barrier();
  const double begin = now_s();
  work();
  return slowest(world, now_s() - begin);
}

double median_call(const mpi::Communicator& world, double seconds, const std::function<void()>& work) {
  work();
  const double once = timed_together(world, work);
  const int repeats = static_cast<int>(std::clamp(seconds / once, 3.0, 1000.0));
  std::vector<double> times;
  world.barrier();
  for (int i = 0; i < repeats; ++i) {
    const double begin = now_s();
    work();
    times.push_back(now_s() - begin);
  }
  return slowest(world, median(times));
}

std::int64_t process_bytes(const char* field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (!line.starts_with(std::string(field) + ":")) continue;
    std::istringstream words(line.substr(line.find(':') + 1));
    std::int64_t kib = 0;
    words >> kib;
    return kib * 1024;
  }
  return 0;
}

std::vector<std::int64_t> gather_numbers(const mpi::Communicator& world, std::int64_t mine) {
  std::vector<std::int64_t> numbers;
  for (const std::string& text : world.gather_strings(std::to_string(mine))) numbers.push_back(std::stoll(text));
  return numbers;
}

}  // namespace mica::train::bench
