// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <string>

namespace mica::mpi {

struct SessionOptions {
  /// false requests MPI_THREAD_FUNNELED, to test what happens if MPI grants no more.
  bool want_thread_multiple = true;
};

/// MPI's lifetime: initialised here with MPI_ERRORS_RETURN and the highest thread level it grants, finalised by close(). Sets
/// OMPI_MCA_mpi_yield_when_idle=1 before MPI_Init unless the user set it, so that a waiting rank yields its core; others are set
/// only during MPI_Init ([Note: MPI_Init on one node]). While it is open, an uncaught exception ends the job with a line
/// `mica: error: ...` and the error's exit status (core/error.hpp). One per process.
class Session {
 public:
  Session(int* argc, char*** argv, SessionOptions options = {});
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  /// Never finalises while unwinding: aborts the job if close() was not called.
  ~Session();

  /// Whether MPI granted MPI_THREAD_MULTIPLE. If not, one thread makes all calls (comm_stream_mode() in comm/mpi_group.hpp).
  [[nodiscard]] bool has_thread_multiple() const { return thread_multiple_; }
  /// How long MPI_Init took this rank.
  [[nodiscard]] double init_ms() const { return init_ms_; }
  /// "Open MPI v4.1.4"
  [[nodiscard]] static std::string library_version();
  /// Whether this MPI accepts pointers to GPU memory ("CUDA-aware"), as Open MPI and MPICH report it; false for other libraries. Any
  /// time after the session was opened.
  [[nodiscard]] static bool is_cuda_aware();
  /// A last barrier, then MPI_Finalize. No Communicator may be left. @collective
  void close();
  /// Ends the job on all ranks with this status.
  [[noreturn]] static void abort(int exit_code);

 private:
  bool thread_multiple_ = false;
  double init_ms_ = 0;
  bool open_ = true;
  std::terminate_handler before_ = nullptr;  ///< the handler to restore
};

}  // namespace mica::mpi
