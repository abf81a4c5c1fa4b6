// SPDX-License-Identifier: Apache-2.0
#include "mica/train/start_times.hpp"

#include <algorithm>
#include <array>
#include <ctime>

#include <fmt/format.h>
#include <unistd.h>

#include "mica/core/process_stat.hpp"

namespace mica::train {
namespace {

constexpr std::array<std::string_view, 6> kLaunchers{"mpirun", "mpiexec", "orterun", "prterun", "mpiexec.hydra", "hydra_pmi_proxy"};

double ms_between_ticks(unsigned long begin, double end) {
  return std::max(0.0, (end - static_cast<double>(begin)) * 1e3 / static_cast<double>(sysconf(_SC_CLK_TCK)));
}

/// Since the machine booted.
double ticks_now() {
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return (static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9) * static_cast<double>(sysconf(_SC_CLK_TCK));
}

}  // namespace

StartTimes::StartTimes(const mpi::Session& session)
    : mpi_init_at_(last_ - std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double, std::milli>(session.init_ms()))) {
  if (const auto self = process_stat(getpid())) {
    const auto parent = process_stat(self->parent);
    if (parent && std::ranges::find(kLaunchers, parent->program) != kLaunchers.end()) {
      begin_ = parent->program;
      add("launcher", ms_between_ticks(parent->start_ticks, static_cast<double>(self->start_ticks)));
    }
    add("loading the program", std::max(0.0, ms_between_ticks(self->start_ticks, ticks_now()) - session.init_ms()));
  }
  add("MPI_Init", session.init_ms());
}

void StartTimes::end(std::string_view phase) {
  const Clock::time_point now = Clock::now();
  add(phase, std::chrono::duration<double, std::milli>(now - last_).count());
  last_ = now;
}

void StartTimes::add(std::string_view phase, double ms) {
  const auto found = std::ranges::find(phases_, phase, &Phase::name);
  if (found == phases_.end()) {
    phases_.push_back({std::string(phase), ms});
  } else {
    found->ms += ms;
  }
}

std::string StartTimes::table() const {
  double sum = 0;
  for (const Phase& phase : phases_) sum += phase.ms;
  std::string text = fmt::format("start    {:.0f} ms from {} to the end of the first optimizer step", sum, begin_);
  for (const Phase& phase : phases_) text += fmt::format("\n  {:<24}{:>9.1f} ms", phase.name, phase.ms);
  return text;
}

}  // namespace mica::train
