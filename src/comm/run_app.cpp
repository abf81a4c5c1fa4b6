// SPDX-License-Identifier: Apache-2.0
#include "mica/comm/run_app.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>
#include <thread>

#include <mpi.h>

#include "mica/core/bus_error.hpp"
#include "mica/core/error_text.hpp"
#include "mica/launch/first_exchange.hpp"
#include "mica/launch/init_watch.hpp"
#include "mica/launch/world_size.hpp"

namespace mica {
namespace {

using Clock = std::chrono::steady_clock;

/// How long a rank that failed waits to see whether all others fail, too.
constexpr std::chrono::milliseconds kPatience{1000};

void print_error(const std::string& text, const std::string& log_file) {
  // One line, even if a library put line breaks into the text.
  std::string line = text;
  std::ranges::replace(line, '\n', ' ');
  std::fprintf(stderr, "mica: error: %s\n", line.c_str());
  std::fflush(stderr);
  if (!log_file.empty()) std::ofstream(log_file, std::ios::app) << "mica: error: " << line << '\n';
}

/// Whether all ranks call this within kPatience of one another. If not, the communicator must not be used again.
bool all_come(const mpi::Communicator& comm) {
  MPI_Request request = MPI_REQUEST_NULL;
  mpi::check(MPI_Ibarrier(comm.get(), &request), "MPI_Ibarrier");
  const auto deadline = Clock::now() + kPatience;
  for (int have_come = 0; Clock::now() < deadline; std::this_thread::sleep_for(std::chrono::milliseconds(1))) {
    mpi::check(MPI_Test(&request, &have_come, MPI_STATUS_IGNORE), "MPI_Test");
    if (have_come != 0) return true;
  }
  return false;
}

/// Prints the error and aborts the job with its status: the other ranks wait for this one, so they cannot agree. If several ranks fail
/// at once, the lowest one is first to print. After an MpiError, a watchdog that sees a dead rank ends the job: it names the rank.
[[noreturn]] void abort_job(const std::exception& error, int rank, int num_ranks, const std::string& log_file, Watchdog* watchdog) {
  if (watchdog != nullptr && dynamic_cast<const MpiError*>(&error) != nullptr) watchdog->let_finish();
  if (watchdog != nullptr) watchdog->note_end();
  std::this_thread::sleep_for(std::chrono::milliseconds(std::min(rank * 20, 1000)));
  print_error(num_ranks > 1 ? fmt::format("rank {}: {}", rank, message_for_user(error)) : message_for_user(error), log_file);
  const auto* ours = dynamic_cast<const Error*>(&error);
  mpi::Session::abort(static_cast<int>(ours ? ours->exit_code() : ExitCode::runtime_failure));
}

/// Prints an error that all ranks throw, or aborts the job. Called in the catch block.
ExitCode end_of(const std::exception& error, const App& app) {
  try {
    share_or_abort(error, app);
  } catch (const Error& shared) {
    if (app.comm.rank() == 0) print_error(shared.what(), app.log_file);
    return shared.exit_code();
  }
}

}  // namespace

void share_or_abort(const std::exception& error, const App& app) {
  if (app.comm.is_shared(error)) throw;
  // After an MpiError, make no more MPI calls: MPI may still use buffers of messages whose memory is gone.
  const bool can_agree = dynamic_cast<const MpiError*>(&error) == nullptr;
  try {
    if (can_agree && all_come(app.failing)) make_mpi_comm(app.failing)->agree([] { throw; });
  } catch (const Error& agreed) {
    if (app.comm.is_shared(agreed)) throw;
    // an error of the agreement itself, which is not the cause
  }
  abort_job(error, app.comm.rank(), app.comm.num_ranks(), app.log_file, &app.watchdog);
}

int run_app(int argc, char** argv, const std::function<ExitCode(App&)>& body) {
  std::jthread init_watch = launch::watch_init();
  mpi::Session session(&argc, &argv);
  init_watch = {};  // ends it
  int rank = 0;
  int num_ranks = 1;
  std::string log_file;
  std::unique_ptr<Watchdog> watchdog;
  try {
    ExitCode code = ExitCode::done;
    {
      mpi::check(MPI_Comm_rank(MPI_COMM_WORLD, &rank), "MPI_Comm_rank");
      mpi::check(MPI_Comm_size(MPI_COMM_WORLD, &num_ranks), "MPI_Comm_size");
      launch::check_world_size(num_ranks);
      tell_bus_errors(num_ranks > 1 ? fmt::format("rank {}: ", rank) : "");
      const bool is_one_program = launch::first_exchange();  // before anything that blocks
      watchdog = std::make_unique<Watchdog>(mpi::Communicator::world());
      mpi::Communicator world = mpi::Communicator::world();
      const mpi::Communicator failing = world.duplicate();
      const auto comm = make_mpi_comm(world);
      App app{session, world, *comm, {argv + 1, argv + argc}, log_file, failing, *watchdog};
      try {
        if (!is_one_program) launch::refuse_programs(world);
        code = body(app);
      } catch (const std::exception& error) {
        code = end_of(error, app);
      }
      watchdog->note_closing();
      world.barrier();  // in this one, unlike close()'s, the watchdog sees who is missing
    }
    session.close();
    watchdog->note_end();
    return static_cast<int>(code);
  } catch (const std::exception& error) {
    abort_job(error, rank, num_ranks, log_file, watchdog.get());
  }
}

}  // namespace mica
