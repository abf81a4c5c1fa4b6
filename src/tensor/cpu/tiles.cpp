// SPDX-License-Identifier: Apache-2.0
#include "tiles.hpp"

#include "loops.hpp"

namespace mica::cpu {

#if defined(__x86_64__)
namespace v4 {
void install_tiles(Tiles& tiles);
void install_tile_rows(Tiles& tiles);
}  // namespace v4
namespace v3 {
void install_tiles(Tiles& tiles);
void install_tile_rows(Tiles& tiles);
}  // namespace v3
#endif
namespace v2 {
void install_tiles(Tiles& tiles);
void install_tile_rows(Tiles& tiles);
}  // namespace v2

namespace {

using Install = void (*)(Tiles&);
#if defined(__x86_64__)
constexpr Install kInstalls[][2] = {
    {v2::install_tiles, v2::install_tile_rows}, {v3::install_tiles, v3::install_tile_rows}, {v4::install_tiles, v4::install_tile_rows}};
#else
constexpr Install kInstalls[][2] = {{v2::install_tiles, v2::install_tile_rows}};
#endif

}  // namespace

Tiles tiles_of(Isa isa) {
  Tiles made{};
  for (const Install install : kInstalls[static_cast<int>(isa)]) install(made);
  return made;
}

const Tiles& tiles() {
  static const Tiles chosen = tiles_of(loops().isa);
  return chosen;
}

}  // namespace mica::cpu
