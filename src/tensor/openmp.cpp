// SPDX-License-Identifier: Apache-2.0
#include "mica/tensor/openmp.hpp"

#include <omp.h>

namespace mica {

void set_openmp_threads(int num_threads) { omp_set_num_threads(num_threads); }
int openmp_threads() { return omp_get_max_threads(); }

}  // namespace mica
