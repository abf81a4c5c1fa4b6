// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace mica {

/// Number of OpenMP threads for the kernels that this host thread enqueues from now on.
void set_openmp_threads(int num_threads);
[[nodiscard]] int openmp_threads();

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
