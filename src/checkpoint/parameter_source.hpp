#pragma once

#include <cstdint>
#include <string>

namespace mica::checkpoint {

/// Whoever can give any range of any parameter, or of its optimizer state: a checkpoint, or a foreign format.
class ParameterSource {
 public:
  virtual ~ParameterSource() = default;

  /// @param kind  "master" (the parameter itself), "exp_avg", ... False for state that is not there.
  [[nodiscard]] virtual bool has(const std::string& parameter, const std::string& kind) const = 0;
  /// Elements [begin, begin + numel) of the row-major flattened parameter, as f32. Forward reading is fastest.
  /// One thread at a time. @throws CheckpointError.
  virtual void read(const std::string& parameter, const std::string& kind, std::int64_t begin, std::int64_t numel,
                    float* data) = 0;
};

}  // namespace mica::checkpoint
