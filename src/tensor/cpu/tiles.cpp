#include "tiles.hpp"

#include "loops.hpp"

namespace mica::cpu {

#if defined(__x86_64__)
namespace v4 {
void install_tiles(Tiles& tiles);
}
namespace v3 {
void install_tiles(Tiles& tiles);
}
#endif
namespace v2 {
void install_tiles(Tiles& tiles);
}

namespace {

using Install = void (*)(Tiles&);
#if defined(__x86_64__)
constexpr Install kInstalls[] = {v2::install_tiles, v3::install_tiles, v4::install_tiles};
#else
constexpr Install kInstalls[] = {v2::install_tiles};
#endif

}  // namespace

Tiles tiles_of(Isa isa) {
  Tiles made{};
  kInstalls[static_cast<int>(isa)](made);
  return made;
}

const Tiles& tiles() {
  static const Tiles chosen = tiles_of(loops().isa);
  return chosen;
}

}  // namespace mica::cpu
