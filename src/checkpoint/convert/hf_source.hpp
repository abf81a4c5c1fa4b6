#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "mica/checkpoint/convert.hpp"

#include "hf_config.hpp"
#include "hf_tensors.hpp"

namespace mica::checkpoint {

/// Reads any range of any parameter out of a Hugging Face folder, under Mica's names and in Mica's orientation. One
/// thread; holds at most two panels of a matrix (transpose.hpp), whatever its size.
class HfSource {
 public:
  /// Checks config.json, every header and every tensor's name, shape and dtype. @throws ConfigError, CheckpointError.
  explicit HfSource(const std::string& folder, std::int64_t panel_numel = kPanelNumel);

  [[nodiscard]] const HfModel& model() const { return model_; }
  [[nodiscard]] const HfTensors& tensors() const { return tensors_; }
  /// Elements [begin, begin + numel) of the row-major flattened parameter. Forward reading is fastest.
  void read(const std::string& parameter, std::int64_t begin, std::int64_t numel, float* data);
  /// A tied model's file may hold its head once more. @throws CheckpointError unless it equals the embedding bit by
  /// bit.
  void check_tied_head();

 private:
  void read_transposed(std::size_t index, std::int64_t begin, std::int64_t numel, float* data);
  void load_panel(std::size_t index, std::int64_t row);

  std::int64_t panel_numel_;
  HfModel model_;
  HfTensors tensors_;
  HfMatch match_;
  std::map<std::string, std::size_t> index_;  // of parameters in model_.tensors
  std::vector<float> panel_;  // rows [panel_begin_, panel_end_) of parameter panel_index_, as Mica has them
  std::size_t panel_index_ = 0;
  std::int64_t panel_begin_ = 0, panel_end_ = 0;
};

}  // namespace mica::checkpoint
