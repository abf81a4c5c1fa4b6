// SPDX-License-Identifier: Apache-2.0
#include "mica/comm/run_app.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <thread>

#include <mpi.h>

namespace mica {
namespace {

using Clock = std::chrono::steady_clock;

/// How long a rank that failed waits for others that did, too.
constexpr std::chrono::milliseconds kPatience{1000};

void print_error(const std::string& text, const std::string& log_file) {
  // One line: whatever a library put into the text.
  std::string line = text;
  std::ranges::replace(line, '\n', ' ');
  std::fprintf(stderr, "mica: error: %s\n", line.c_str());
  std::fflush(stderr);
  if (!log_file.empty()) std::ofstream(log_file, std::ios::app) << "mica: error: " << line << '\n';
}

/// Whether all ranks call this within kPatience of one another. If not, the communicator is of no more use.
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

/// Tells of an error that all ranks throw, or ends the job. To be called where it is caught.
/// @param of_failures  the ranks of `app`; nothing else uses it.
ExitCode end_of(const std::exception& error, const App& app, const mpi::Communicator& of_failures) {
  const auto tell = [&](const Error& shared) {
    if (app.comm.rank() == 0) print_error(shared.what(), app.log_file);
    return shared.exit_code();
  };
  if (app.comm.is_shared(error)) return tell(dynamic_cast<const Error&>(error));
  // Of an MPI that has failed nothing more is asked: it may still read messages whose memory is gone.
  const bool can_agree = dynamic_cast<const MpiError*>(&error) == nullptr;
  try {
    if (can_agree && all_come(of_failures)) make_mpi_comm(of_failures)->agree([] { throw; });
  } catch (const Error& agreed) {
    if (app.comm.is_shared(agreed)) return tell(agreed);
    // MPI has failed, too, which is not the cause.
  }
  abort_job(error, app.comm.rank(), app.comm.num_ranks(), app.log_file);
}

}  // namespace

void abort_job(const std::exception& error, int rank, int num_ranks, const std::string& log_file) {
  std::this_thread::sleep_for(std::chrono::milliseconds(std::min(rank * 20, 1000)));
  print_error(num_ranks > 1 ? fmt::format("rank {}: {}", rank, error.what()) : error.what(), log_file);
  const auto* ours = dynamic_cast<const Error*>(&error);
  mpi::Session::abort(static_cast<int>(ours ? ours->exit_code() : ExitCode::runtime_failure));
}

int run_app(int argc, char** argv, const std::function<ExitCode(App&)>& body) {
  mpi::Session session(&argc, &argv);
  int rank = 0;
  int num_ranks = 1;
  std::string log_file;
  try {
    ExitCode code = ExitCode::done;
    {
      mpi::Communicator world = mpi::Communicator::world();
      rank = world.rank();
      num_ranks = world.num_ranks();
      const mpi::Communicator of_failures = world.duplicate();
      const auto comm = make_mpi_comm(world);
      App app{session, world, *comm, {argv + 1, argv + argc}, log_file};
      try {
        code = body(app);
      } catch (const std::exception& error) {
        code = end_of(error, app, of_failures);
      }
    }
    session.close();
    return static_cast<int>(code);
  } catch (const std::exception& error) {
    abort_job(error, rank, num_ranks, log_file);
  }
}

}  // namespace mica
