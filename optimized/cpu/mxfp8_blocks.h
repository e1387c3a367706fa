// SPDX-License-Identifier: Apache-2.0
// Whole blocks of MXFP8: their scale bytes and codes (MXFP8-1 to 4). The loops are written so that
// the compiler vectorises them under with_simd.
#pragma once

#include "optimized/cpu/mxfp8_elements.h"
#include "optimized/cpu/values.h"

namespace dropless::cpu {

inline constexpr Index block_width = DROPLESS_BLOCK_SIZE;

// `blocks` blocks of 32 elements of one row, fp32 or bf16: codes[32 * blocks] and bytes[blocks].
// tiles: amax of each block as fp32 bits, or null to take it from the block itself. format: e4m3 or
// e5m2.
void quantize_row(dropless_dtype format, const float* x, Index blocks, const std::uint32_t* tiles,
                  std::uint8_t* codes, std::uint8_t* bytes);
void quantize_row(dropless_dtype format, const std::uint16_t* x, Index blocks,
                  const std::uint32_t* tiles, std::uint8_t* codes, std::uint8_t* bytes);

// 32 columns of at most 32 rows: codes with code_stride bytes a row, and bytes[32]. tile: amax of
// the tile, or null to take it from each column.
void quantize_columns(dropless_dtype format, const float* x, Index row_stride, Index rows,
                      const std::uint32_t* tile, std::uint8_t* codes, Index code_stride,
                      std::uint8_t* bytes);
void quantize_columns(dropless_dtype format, const std::uint16_t* x, Index row_stride, Index rows,
                      const std::uint32_t* tile, std::uint8_t* codes, Index code_stride,
                      std::uint8_t* bytes);

// Largest magnitude of a tile of at most 32 rows and exactly 32 columns, as fp32 bits, NaN left
// out.
std::uint32_t tile_magnitude(const float* x, Index row_stride, Index rows);
std::uint32_t tile_magnitude(const std::uint16_t* x, Index row_stride, Index rows);

DROPLESS_INLINE float as_float(float x) {
  return x;
}
DROPLESS_INLINE float as_float(std::uint16_t bits) {
  return widen_bf16(bits);
}

// fp32 bits of |x|, 0 for NaN: integers of the same order as the magnitudes (MXFP8-4, policy
// "element").
DROPLESS_INLINE std::uint32_t magnitude_bits(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x) & 0x7FFFFFFFu;
  return bits > 0x7F800000u ? 0 : bits;
}

// Largest magnitude of a block, lane by lane first.
template <class Source>
DROPLESS_INLINE std::uint32_t block_amax(const Source* x) {
  constexpr Index lanes = 16;
  std::uint32_t largest[lanes] = {};
  for (Index i = 0; i < block_width; i += lanes) {
    for (Index l = 0; l < lanes; ++l) {
      const std::uint32_t here = magnitude_bits(as_float(x[i + l]));
      largest[l] = here > largest[l] ? here : largest[l];
    }
  }
  for (Index half = lanes / 2; half > 0; half /= 2) {
    for (Index l = 0; l < half; ++l) {
      largest[l] = largest[l + half] > largest[l] ? largest[l + half] : largest[l];
    }
  }
  return largest[0];
}

template <dropless_dtype format, class Source>
DROPLESS_INLINE void encode_block(const Source* x, float inverse, std::uint8_t* codes) {
  for (Index i = 0; i < block_width; ++i)
    codes[i] = encode_element<format>(as_float(x[i]), inverse);
}

// amax[j] = largest magnitude of column j of 32 over `rows` rows.
template <class Source>
DROPLESS_INLINE void column_amax(const Source* x, Index row_stride, Index rows,
                                 std::uint32_t* amax) {
  for (Index j = 0; j < block_width; ++j) amax[j] = 0;
  for (Index i = 0; i < rows; ++i) {
    const Source* row = x + i * row_stride;
    for (Index j = 0; j < block_width; ++j) {
      const std::uint32_t here = magnitude_bits(as_float(row[j]));
      amax[j] = here > amax[j] ? here : amax[j];
    }
  }
}

template <dropless_dtype format, class Source>
DROPLESS_INLINE void encode_columns(const Source* x, Index row_stride, Index rows,
                                    const float* inverse, std::uint8_t* codes, Index code_stride) {
  for (Index i = 0; i < rows; ++i) {
    const Source* row = x + i * row_stride;
    std::uint8_t* to = codes + i * code_stride;
    for (Index j = 0; j < block_width; ++j)
      to[j] = encode_element<format>(as_float(row[j]), inverse[j]);
  }
}

}  // namespace dropless::cpu
