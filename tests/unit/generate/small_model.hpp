// SPDX-License-Identifier: Apache-2.0
#pragma once

// A small language model on one rank, and what its plain forward says.

#include <algorithm>
#include <vector>

#include "mica/nn/models/gpt2.hpp"

#include "unit/nn/nn_testing.hpp"

namespace mica::generate::testing {

inline constexpr std::int64_t kVocab = 17, kContext = 16;

struct SmallModel {
  explicit SmallModel(std::int64_t vocab = kVocab)
      : model(nn::Gpt2Config{.layers = 2, .heads = 3, .width = 9, .context = kContext, .vocab_size = vocab}), storage(model, rig.context) {
    // Large enough that the likeliest tokens differ.
    model.for_each_parameter([&](const std::string&, nn::Parameter& parameter) {
      if (parameter.shape.num_dims() == 2) rig.kernels->scale(*rig.stream, parameter.data, 25, parameter.data, Write::overwrite);
    });
  }

  /// Logits of the tokens, [ids.size(), kVocab], by a forward as in training.
  std::vector<float> logits(std::vector<std::int32_t> ids) {
    const Tensor borrowed(TensorView(ids.data(), {1, std::ssize(ids)}, DType::i32));
    return nn::testing::floats(rig, model.forward(rig.context, {borrowed}, nullptr).at(0));
  }

  nn::testing::Rig rig;
  nn::Gpt2 model;
  nn::PlainParameters storage;
};

inline std::vector<float> row(const std::vector<float>& logits, std::size_t i) {
  const auto begin = logits.begin() + static_cast<std::ptrdiff_t>(i * kVocab);
  return {begin, begin + kVocab};
}

}  // namespace mica::generate::testing
