// SPDX-License-Identifier: Apache-2.0
// Whole blocks of MXFP8 for every source type and instruction set.
#include "optimized/cpu/mxfp8_blocks.h"

#include "optimized/cpu/mxfp8_avx512.h"

namespace dropless::cpu {
namespace {

template <dropless_dtype format, class Source>
DROPLESS_INLINE void row_of_blocks(const Source* x, Index blocks, const std::uint32_t* tiles,
                                   std::uint8_t* codes, std::uint8_t* bytes) {
  constexpr Index ahead = 24;  // blocks asked for early, as in the AVX-512 code
  for (Index b = 0; b < blocks; ++b) {
    const Source* block = x + b * block_width;
    __builtin_prefetch(block + ahead * block_width);
    __builtin_prefetch(block + ahead * block_width + 64 / sizeof(Source));
    __builtin_prefetch(codes + (b + ahead) * block_width, 1);
    const std::uint32_t amax = tiles != nullptr ? tiles[b] : block_amax(block);
    const std::uint32_t byte = scale_byte<format>(amax);
    bytes[b] = static_cast<std::uint8_t>(byte);
    encode_block<format>(block, inverse_scale(byte), codes + b * block_width);
  }
}

template <dropless_dtype format, class Source>
DROPLESS_INLINE void block_of_columns(const Source* x, Index row_stride, Index rows,
                                      const std::uint32_t* tile, std::uint8_t* codes,
                                      Index code_stride, std::uint8_t* bytes) {
  std::uint32_t amax[block_width];
  float inverse[block_width];
  if (tile == nullptr) {
    column_amax(x, row_stride, rows, amax);
  } else {
    for (Index j = 0; j < block_width; ++j) amax[j] = *tile;
  }
  for (Index j = 0; j < block_width; ++j) {
    const std::uint32_t byte = scale_byte<format>(amax[j]);
    bytes[j] = static_cast<std::uint8_t>(byte);
    inverse[j] = inverse_scale(byte);
  }
  encode_columns<format>(x, row_stride, rows, inverse, codes, code_stride);
}

template <class Source>
void row_any(dropless_dtype format, const Source* x, Index blocks, const std::uint32_t* tiles,
             std::uint8_t* codes, std::uint8_t* bytes) {
  with_simd([=]() DROPLESS_INLINE_LAMBDA {
    if (format == DROPLESS_E4M3) {
      row_of_blocks<DROPLESS_E4M3>(x, blocks, tiles, codes, bytes);
    } else {
      row_of_blocks<DROPLESS_E5M2>(x, blocks, tiles, codes, bytes);
    }
  });
}

template <class Source>
void columns_any(dropless_dtype format, const Source* x, Index row_stride, Index rows,
                 const std::uint32_t* tile, std::uint8_t* codes, Index code_stride,
                 std::uint8_t* bytes) {
  with_simd([=]() DROPLESS_INLINE_LAMBDA {
    if (format == DROPLESS_E4M3) {
      block_of_columns<DROPLESS_E4M3>(x, row_stride, rows, tile, codes, code_stride, bytes);
    } else {
      block_of_columns<DROPLESS_E5M2>(x, row_stride, rows, tile, codes, code_stride, bytes);
    }
  });
}

template <class Source>
std::uint32_t tile_any(const Source* x, Index row_stride, Index rows) {
  std::uint32_t amax[block_width];
  with_simd([=, &amax]() DROPLESS_INLINE_LAMBDA { column_amax(x, row_stride, rows, amax); });
  return *std::max_element(amax, amax + block_width);
}

}  // namespace

void quantize_row(dropless_dtype format, const float* x, Index blocks, const std::uint32_t* tiles,
                  std::uint8_t* codes, std::uint8_t* bytes) {
  row_any(format, x, blocks, tiles, codes, bytes);
}

void quantize_row(dropless_dtype format, const std::uint16_t* x, Index blocks,
                  const std::uint32_t* tiles, std::uint8_t* codes, std::uint8_t* bytes) {
#if DROPLESS_CPU_X86
  if (isa() == Isa::avx512) return quantize_row_avx512(format, x, blocks, tiles, codes, bytes);
#endif
  row_any(format, x, blocks, tiles, codes, bytes);
}

void quantize_columns(dropless_dtype format, const float* x, Index row_stride, Index rows,
                      const std::uint32_t* tile, std::uint8_t* codes, Index code_stride,
                      std::uint8_t* bytes) {
  columns_any(format, x, row_stride, rows, tile, codes, code_stride, bytes);
}

void quantize_columns(dropless_dtype format, const std::uint16_t* x, Index row_stride, Index rows,
                      const std::uint32_t* tile, std::uint8_t* codes, Index code_stride,
                      std::uint8_t* bytes) {
#if DROPLESS_CPU_X86
  if (isa() == Isa::avx512) {
    return quantize_columns_avx512(format, x, row_stride, rows, tile, codes, code_stride, bytes);
  }
#endif
  columns_any(format, x, row_stride, rows, tile, codes, code_stride, bytes);
}

std::uint32_t tile_magnitude(const float* x, Index row_stride, Index rows) {
  return tile_any(x, row_stride, rows);
}
std::uint32_t tile_magnitude(const std::uint16_t* x, Index row_stride, Index rows) {
  return tile_any(x, row_stride, rows);
}

}  // namespace dropless::cpu
