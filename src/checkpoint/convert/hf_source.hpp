// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "mica/checkpoint/convert.hpp"

#include "../parameter_source.hpp"
#include "hf_config.hpp"
#include "hf_tensors.hpp"

namespace mica::checkpoint {

/// Reads any range of any parameter from a Hugging Face folder, under Mica's names and in Mica's orientation. One thread. Memory: at
/// most three panels of a matrix (transpose.hpp), however large the matrix is.
class HfSource final : public ParameterSource {
 public:
  /// Checks config.json, every header and every tensor's name, shape and dtype. @throws ConfigError, CheckpointError.
  explicit HfSource(const std::string& folder, std::int64_t panel_numel = kPanelNumel)
      : HfSource{read_hf_model(folder), HfTensors(folder), panel_numel} {}  // this order: a missing config.json is reported first
  HfSource(HfModel model, HfTensors tensors, std::int64_t panel_numel = kPanelNumel);

  [[nodiscard]] const HfModel& model() const { return model_; }
  [[nodiscard]] const HfTensors& tensors() const { return tensors_; }
  /// Parameters only.
  [[nodiscard]] bool has(const std::string& parameter, const std::string& kind) const override;
  [[nodiscard]] DType dtype(const std::string& /*parameter*/, const std::string& /*kind*/) const override { return DType::f32; }
  void read(const std::string& kind, std::span<const Range> ranges) override;
  using ParameterSource::read;
  void finish() override {}  // the format has no checksums
  /// The files of a tied model may also hold the head. @throws CheckpointError unless it equals the embedding bit by bit.
  void check_tied_head();

 private:
  void read_transposed(std::size_t index, std::int64_t begin, std::int64_t numel, float* data);
  /// Rows [begin, end) of parameter `index`, in Mica's orientation.
  struct Panel {
    std::size_t index = 0;
    std::int64_t begin = 0, end = 0;
    std::vector<float> rows;
  };
  const Panel& panel_with(std::size_t index, std::int64_t row);
  void load(Panel& panel, std::size_t index, std::int64_t row);

  std::int64_t panel_numel_;
  HfModel model_;
  HfTensors tensors_;
  HfMatch match_;
  std::map<std::string, std::size_t> index_;  // of parameters in model_.tensors
  std::array<Panel, 2> panels_;               // the last two: with two worker threads, reads are slightly out of order
  std::size_t newest_ = 0;
};

}  // namespace mica::checkpoint
