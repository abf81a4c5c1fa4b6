// SPDX-License-Identifier: Apache-2.0
#include "mica/tensor/openmp.hpp"

#include <omp.h>

#include "mica/core/error.hpp"

namespace mica {

void set_openmp_threads(int num_threads) {
  omp_set_dynamic(0);
  omp_set_num_threads(num_threads);
}

int openmp_threads() { return omp_get_max_threads(); }

void check_openmp_threads() {
  const int wanted = openmp_threads();
  const int most = omp_get_max_active_levels() < 1 ? 1 : omp_get_thread_limit();
  require<ConfigError>(
      wanted <= most,
      "OpenMP may start {} of {} threads per rank: unset OMP_THREAD_LIMIT and OMP_MAX_ACTIVE_LEVELS, or set mesh.threads={} "
      "(set_openmp_threads() in a program of your own)",
      most, wanted, most);
}

}  // namespace mica
