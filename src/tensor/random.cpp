#include "mica/tensor/random.hpp"

#include <bit>
#include <cmath>

#include "mica/core/error.hpp"

namespace mica {
namespace {
struct ScalarMath {
  using Float = float;
  using Word = std::uint32_t;
  static Float to_float(Word w) { return static_cast<float>(static_cast<std::int32_t>(w)); }
  static Word bits(Float x) { return std::bit_cast<Word>(x); }
  static Float from_bits(Word w) { return std::bit_cast<Float>(w); }
  static Float sqrt(Float x) { return std::sqrt(x); }
};
}  // namespace

float random_normal(const RandomKey& key, std::uint64_t element) {
  return normal_from_word<ScalarMath>(random_word(key, element));
}

std::uint32_t dropout_threshold(double p) {
  require<ConfigError>(p >= 0 && p < 1, "dropout probability {} is outside [0, 1): choose one inside, 0 for no dropout",
                       p);
  return static_cast<std::uint32_t>(std::fmin(std::nearbyint(p * 0x1p32), 0x1p32 - 1));
}

}  // namespace mica
