// SPDX-License-Identifier: Apache-2.0
// NVTX ranges, which nobody looks at here.
#pragma once

inline int nvtxRangePushA(const char*) { return 0; }
inline int nvtxRangePop() { return 0; }
