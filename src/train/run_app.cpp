#include "mica/train/run_app.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <thread>

namespace mica::train {
namespace {

/// "2 text": an error as it travels between ranks; empty when there is none.
std::string encode(const std::exception& error) {
  const auto* ours = dynamic_cast<const Error*>(&error);
  return fmt::format("{} {}", static_cast<int>(ours ? ours->exit_code() : ExitCode::runtime_failure), error.what());
}

[[noreturn]] void throw_encoded(const std::string& error, const std::string& prefix) {
  throw SharedError(prefix + error.substr(error.find(' ') + 1), static_cast<ExitCode>(std::stoi(error)));
}

void print_error(const std::string& text, const std::string& log_file) {
  // One line: whatever a library put into the text.
  std::string line = text;
  std::ranges::replace(line, '\n', ' ');
  std::fprintf(stderr, "mica: error: %s\n", line.c_str());
  std::fflush(stderr);
  if (!log_file.empty()) std::ofstream(log_file, std::ios::app) << "mica: error: " << line << '\n';
}

}  // namespace

void together(const mpi::Communicator& world, const std::function<void()>& work) {
  std::string mine;
  try {
    work();
  } catch (const SharedError&) {
    throw;  // every rank has it already
  } catch (const std::exception& error) {
    mine = encode(error);
  }
  // The common case costs one small reduction.
  if (world.all_max(mine.empty() ? 0 : 1) == 0) return;
  const std::vector<std::string> errors = world.gather_strings(mine);
  const auto first = std::ranges::find_if(errors, [](const std::string& e) { return !e.empty(); });
  const bool all_alike = std::ranges::all_of(errors, [&](const std::string& e) { return e == *first; });
  throw_encoded(*first, all_alike ? "" : fmt::format("rank {}: ", first - errors.begin()));
}

std::string from_rank_0(const mpi::Communicator& world, const std::function<std::string()>& work) {
  constexpr char kDone = '+', kFailed = '!';
  std::string told;
  if (world.rank() == 0) {
    try {
      told = kDone + work();
    } catch (const std::exception& error) {
      told = kFailed + encode(error);
    }
  }
  told = world.broadcast_string(told, 0);
  if (told[0] == kFailed) throw_encoded(told.substr(1), "");
  return told.substr(1);
}

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
      App app{session, world, {argv + 1, argv + argc}, log_file};
      try {
        code = body(app);
      } catch (const SharedError& error) {
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
