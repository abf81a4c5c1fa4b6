// SPDX-License-Identifier: Apache-2.0
#include "mica/mpi/session.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <thread>

#include <mpi.h>
#include <unistd.h>

#include "mica/core/error.hpp"
#include "mica/core/error_text.hpp"
#include "mica/mpi/communicator.hpp"

#include "init_variables.hpp"

namespace mica::mpi {
namespace {

/// After an uncaught exception, each rank prints one line, the lowest rank first, and the job ends with the exception's exit status;
/// without this, the ranks' stack traces would be printed, interleaved.
[[noreturn]] void end_job() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  std::this_thread::sleep_for(std::chrono::milliseconds(std::min(rank * 20, 1000)));
  ExitCode code = ExitCode::runtime_failure;
  try {
    if (const std::exception_ptr thrown = std::current_exception()) std::rethrow_exception(thrown);
    std::fprintf(stderr, "mica: error: rank %d: std::terminate was called\n", rank);
    std::abort();
  } catch (const Error& error) {
    std::fprintf(stderr, "mica: error: rank %d: %s\n", rank, error.what());
    code = error.exit_code();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "mica: error: rank %d: %s\n", rank, message_for_user(error).c_str());
  } catch (...) {
    std::fprintf(stderr, "mica: error: rank %d: an exception of an unknown type\n", rank);
  }
  Session::abort(static_cast<int>(code));
}

}  // namespace

Session::Session(int* argc, char*** argv, SessionOptions options) {
  int initialized = 0;
  int finalized = 0;
  check(MPI_Initialized(&initialized), "MPI_Initialized");
  check(MPI_Finalized(&finalized), "MPI_Finalized");
  require<MpiError>(initialized == 0 && finalized == 0,
                    "MPI was already {} in this process; expected: one mpi::Session per process, and no other call of MPI_Init",
                    finalized != 0 ? "finalized" : "initialized");
  // A thread that waits inside MPI must not take half a core from a computing thread: on one core, a matrix product beside a blocking
  // wait gets 50 % of the core without this, and 99 % with it.
  setenv("OMPI_MCA_mpi_yield_when_idle", "1", /*overwrite=*/0);
  int granted = MPI_THREAD_SINGLE;
  {
    const InitVariables variables;
    const auto begin = std::chrono::steady_clock::now();
    check(MPI_Init_thread(argc, argv, options.want_thread_multiple ? MPI_THREAD_MULTIPLE : MPI_THREAD_FUNNELED, &granted),
          "MPI_Init_thread");
    init_ms_ = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  }
  thread_multiple_ = granted >= MPI_THREAD_MULTIPLE;
  // Without this the default handler ends the job before any check sees the return code. dup and split inherit it.
  check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler(world)");
  check(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler(self)");
  before_ = std::set_terminate(end_job);
}

Session::~Session() {
  if (!open_) return;
  if (std::uncaught_exceptions() == 0) std::fputs("mica: error: an MPI session was destroyed without close()\n", stderr);
  // Other ranks may be inside a collective that this rank will never join: MPI_Finalize would hang.
  abort(static_cast<int>(ExitCode::runtime_failure));
}

std::string Session::library_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  check(MPI_Get_library_version(text, &length), "MPI_Get_library_version");
  std::string version(text, static_cast<std::size_t>(length));
  // Open MPI: "Open MPI v4.1.4, package: ..."; MPICH: "MPICH Version:\t4.0.2\nMPICH Release date: ...".
  version.resize(std::min(version.find_first_of(",\n"), version.size()));
  for (char& c : version) {
    if (c == '\t') c = ' ';
  }
  return version;
}

void Session::close() {
  require<MpiError>(open_, "mpi::Session::close() was called twice");
  check(MPI_Barrier(MPI_COMM_WORLD), "MPI_Barrier");
  open_ = false;
  std::set_terminate(before_);
  check(MPI_Finalize(), "MPI_Finalize");
}

void Session::abort(int exit_code) {
  std::cout.flush();  // has a buffer of its own if sync_with_stdio is off
  std::fflush(nullptr);
  int initialized = 0;
  int finalized = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  if (initialized != 0 && finalized == 0) {
    // MPICH's launcher ends a job with what ranks have written and it has not read yet: the error that explains the end.
    constexpr auto kForwarding = std::chrono::milliseconds(200);
    std::this_thread::sleep_for(kForwarding);
    MPI_Abort(MPI_COMM_WORLD, exit_code);
  }
  _exit(exit_code);  // without MPI, or if MPI_Abort has returned
}

}  // namespace mica::mpi
