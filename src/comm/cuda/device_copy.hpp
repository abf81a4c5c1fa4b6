#pragma once

#include "mica/device/cuda/check.hpp"
#include "mica/tensor/tensor_view.hpp"

namespace mica::cuda {

/// Bytes between any two places of the GPU's memory and page-locked memory of the host, on the stream.
inline void enqueue_memcpy(Stream& s, const char* what, ConstTensorView src, TensorView dst) {
  s.submit(what, {reads(src), writes(dst)}, [src, dst, stream = native(s)] {
    check(cudaMemcpyAsync(dst.data, src.data, static_cast<std::size_t>(src.bytes()), cudaMemcpyDefault, stream), "cudaMemcpyAsync");
  });
}

}  // namespace mica::cuda
