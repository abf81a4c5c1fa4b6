// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "arguments.hpp"

// What every device requires of the arguments of activations, norms, embeddings and dropout. @throws Error naming the argument
namespace mica::arguments {

/// Names of activation() and activation_backward() in tasks and errors: "gelu", "gelu_backward".
struct ActivationName {
  const char *forward, *backward;
};
ActivationName activation_name(Activation f);
/// The returned numbers are elements of x or gate.
std::int64_t check_activation(Activation f, ConstTensorView x, ConstTensorView y);
std::int64_t check_activation_backward(Activation f, ConstTensorView x, ConstTensorView dy, ConstTensorView dx);
std::int64_t check_swiglu(ConstTensorView gate, ConstTensorView up, ConstTensorView y);
std::int64_t check_swiglu_backward(ConstTensorView gate, ConstTensorView up, ConstTensorView dy, ConstTensorView dgate,
                                   ConstTensorView dup);

/// Arguments of a norm's forward; y has x's shape.
struct NormTensors {
  ConstTensorView x, gamma, beta{}, y, mean{}, rstd;
};
struct NormGradients {
  ConstTensorView dy, x, gamma, mean{}, rstd, dx, dgamma, dbeta{};
};
struct NormDims {
  std::int64_t rows, cols;
};
NormDims check_layer_norm(std::string_view what, const NormTensors& t);
NormDims check_layer_norm_backward(const NormGradients& t);
NormDims check_rms_norm(std::string_view what, const NormTensors& t);
NormDims check_rms_norm_backward(const NormGradients& t);
/// Arguments of a sum = a + b whose norm follows.
void check_norm_sum(std::string_view what, ConstTensorView a, ConstTensorView b, ConstTensorView sum);

void check_embedding(ConstTensorView ids, ConstTensorView tokens, ConstTensorView positions, ConstTensorView y);
void check_embedding_backward(ConstTensorView dy, ConstTensorView ids, ConstTensorView dtokens, ConstTensorView dpositions);
void check_dropout(ConstTensorView x, double p, std::int64_t num_sequences, ConstTensorView y);

}  // namespace mica::arguments
