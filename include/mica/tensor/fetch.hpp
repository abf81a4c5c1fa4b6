// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "mica/tensor/kernels.hpp"

namespace mica {

/// Copies a tensor's values to the host, wherever its memory is. The host first waits for the stream, because a GPU's driver
/// copies into pageable memory inside the call and must not wait there for work that needs other host threads
/// (mesh.backend=staged). Not for use inside a step.
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
