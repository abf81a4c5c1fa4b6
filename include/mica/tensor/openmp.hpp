// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace mica {

/// Number of OpenMP threads for the kernels that this host thread enqueues from now on. OMP_DYNAMIC has no effect on them: oneDNN's
/// products are made for a number of threads, and give wrong results with fewer.
void set_openmp_threads(int num_threads);
[[nodiscard]] int openmp_threads();
/// @throws ConfigError if OpenMP would start fewer than openmp_threads(), because of OMP_THREAD_LIMIT or OMP_MAX_ACTIVE_LEVELS
void check_openmp_threads();

/// The same until the end of the scope.
class OpenMpThreads {
 public:
  explicit OpenMpThreads(int num_threads) : outer_(openmp_threads()) { set_openmp_threads(num_threads); }
  ~OpenMpThreads() { set_openmp_threads(outer_); }
  OpenMpThreads(const OpenMpThreads&) = delete;
  OpenMpThreads& operator=(const OpenMpThreads&) = delete;

 private:
  int outer_;
};

}  // namespace mica
