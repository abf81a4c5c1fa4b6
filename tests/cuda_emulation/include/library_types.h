// SPDX-License-Identifier: Apache-2.0
#pragma once

// Element types of CUDA's libraries; see [Note: emulated headers] in vector_types.h.
enum cudaDataType { CUDA_R_32F = 0, CUDA_R_64F = 1, CUDA_R_16F = 2, CUDA_R_8I = 3, CUDA_R_32I = 10, CUDA_R_16BF = 14 };
using cudaDataType_t = enum cudaDataType;
