#pragma once

#include <cstdint>

namespace mica::cpu {

enum class Isa : std::uint8_t;  // loops.hpp

/// Columns of C and B that tiles work on are padded to a multiple of this many floats.
inline constexpr std::int64_t kTilePad = 16;
/// Keys of one panel of attention, and queries of one tile.
inline constexpr std::int64_t kPanel = 64;

/// Small f32 products for attention, where the operands are in cache and a library's per-call cost would show.
/// Single-threaded, any alignment. One set per instruction set, as Loops.
struct Tiles {
  /// One operand: element (row, col) is data[row * row_stride + col * col_stride].
  struct Left {
    const float* data;
    std::int64_t row_stride, col_stride;
  };
  /// C[rows, cols] (+)= A[rows, depth] B[depth, cols]; cols a multiple of kTilePad.
  void (*multiply)(Left a, const float* b, std::int64_t ldb, float* c, std::int64_t ldc, std::int64_t rows,
                   std::int64_t cols, std::int64_t depth, bool accumulate);
  /// panel[cols][kPanel] = transpose of x[rows, cols] (stride ld), rows <= kPanel; the columns past `rows` become zero.
  void (*transpose_to_panel)(const float* x, std::int64_t ld, std::int64_t rows, std::int64_t cols, float* panel);
};

/// For the same instruction set as loops().
[[nodiscard]] const Tiles& tiles();
/// For a certain one, which this processor must be able to run (tests).
[[nodiscard]] Tiles tiles_of(Isa isa);

}  // namespace mica::cpu
