#include "mica/train/run_app.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <thread>

namespace mica::train {
namespace {

void print_error(const std::string& text, const std::string& log_file) {
  // One line: whatever a library put into the text.
  std::string line = text;
  std::ranges::replace(line, '\n', ' ');
  std::fprintf(stderr, "mica: error: %s\n", line.c_str());
  std::fflush(stderr);
  if (!log_file.empty()) std::ofstream(log_file, std::ios::app) << "mica: error: " << line << '\n';
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
      const auto comm = make_mpi_comm(world);
      App app{session, world, *comm, {argv + 1, argv + argc}, log_file};
      try {
        code = body(app);
      } catch (const Error& error) {
        if (!comm->is_shared(error)) throw;
        if (rank == 0) print_error(error.what(), log_file);
        code = error.exit_code();
      }
    }
    session.close();
    return static_cast<int>(code);
  } catch (const std::exception& error) {
    abort_job(error, rank, num_ranks, log_file);
  }
}

}  // namespace mica::train
