#pragma once

#include <vector>

#include "mica/tensor/kernels.hpp"

namespace mica {

/// A tensor's values on the host, wherever its memory is. The host waits for the stream, first of all: a GPU's driver copies
/// into memory that is not page-locked while the host stands inside the call, and there it must not wait for work that
/// waits for other threads of the host (mesh.backend=staged). So not for use inside a step.
/// @param kernels  of the stream's device  @throws the stream's sticky error
template <class T>
[[nodiscard]] std::vector<T> fetch(Kernels& kernels, Stream& s, ConstTensorView from) {
  std::vector<T> values(static_cast<std::size_t>(from.numel()));
  s.synchronize();
  if (!values.empty()) kernels.copy(s, from, {values.data(), from.shape, dtype_of<T>::value});
  s.synchronize();
  return values;
}

/// The only element of a [1] f32 tensor.
[[nodiscard]] inline float fetch_scalar(Kernels& kernels, Stream& s, ConstTensorView from) {
  return fetch<float>(kernels, s, from).front();
}

}  // namespace mica
