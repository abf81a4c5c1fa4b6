#pragma once

namespace mica {

/// OpenMP threads that the calling host thread's kernels use from now on.
void set_openmp_threads(int num_threads);
[[nodiscard]] int openmp_threads();

}  // namespace mica
