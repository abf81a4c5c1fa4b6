// SPDX-License-Identifier: Apache-2.0
#include "pair_tiles.hpp"

#include <optional>

#include "loops.hpp"
#include "onednn_product.hpp"

namespace mica::cpu {

#if defined(__x86_64__)
namespace v4 {
void install_pair_tiles(PairTiles& tiles);
void install_amx_tiles(PairTiles& tiles);
}  // namespace v4
#endif

const PairTiles* pair_tiles() {
  static const std::optional<PairTiles> tiles = []() -> std::optional<PairTiles> {
#if defined(__x86_64__)
    if (loops().isa == Isa::v4 && __builtin_cpu_supports("avx512bf16")) {
      PairTiles made{};
      v4::install_pair_tiles(made);
#if defined(MICA_WITH_AMX_TILES)
      // oneDNN has asked the system to let this process use AMX's registers.
      if (onednn_uses(dnnl::cpu_isa::avx512_core_amx)) v4::install_amx_tiles(made);
#endif
      return made;
    }
#endif
    return std::nullopt;
  }();
  return tiles ? &*tiles : nullptr;
}

}  // namespace mica::cpu
