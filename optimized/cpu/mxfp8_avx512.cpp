// SPDX-License-Identifier: Apache-2.0
// bf16 to MXFP8 with AVX-512BW. A bf16 number divided by a power of two is a subtraction in its
// exponent field, and rounding to 3 or 2 mantissa bits a shift, so that no floating-point number is
// needed. Blocks at the ends of the exponent range, where subnormal or infinite numbers matter, go
// through the general code.
#include "optimized/cpu/mxfp8_avx512.h"

#if DROPLESS_CPU_X86
#include <immintrin.h>

#include "optimized/cpu/mxfp8_blocks.h"

namespace dropless::cpu {
namespace {

// Exponent fields of amax that the integer path can do: subnormal elements of such a block are
// coded as zero, and there is no infinity.
constexpr int least_field = 32, most_field = 254;

// Blocks that are asked for ahead of time: measured, the hardware alone leaves the long chain from
// a block to its codes waiting for memory.
constexpr Index row_ahead = 24, columns_ahead = 2;

constexpr __mmask32 all_lanes = 0xFFFFFFFFu;

DROPLESS_AVX512 inline __m512i broadcast(int value) {
  return _mm512_set1_epi16(static_cast<short>(value));
}

// |x| as integers, NaN as 0.
DROPLESS_AVX512 inline __m512i magnitudes(__m512i x) {
  const __m512i bits = _mm512_and_si512(x, broadcast(0x7FFF));
  return _mm512_maskz_mov_epi16(_mm512_cmple_epu16_mask(bits, broadcast(0x7F80)), bits);
}

// Codes of 32 elements whose scales have the exponents k, given as k << 7 in each lane.
template <dropless_dtype dtype>
DROPLESS_AVX512 inline __m256i encode(__m512i x, __m512i shifted_k) {
  using Format = CodeFormat<dtype>;
  constexpr int dropped = 7 - Format::mantissa_bits;
  constexpr int smallest_field = 128 - Format::bias;  // of the smallest normal number
  const __m512i one = broadcast(1);
  const __m512i bits = _mm512_and_si512(x, broadcast(0x7FFF));
  const __m512i scaled = _mm512_sub_epi16(bits, shifted_k);

  const __m512i odd = _mm512_and_si512(_mm512_srli_epi16(scaled, dropped), one);
  const __m512i up = _mm512_add_epi16(odd, broadcast((1 << (dropped - 1)) - 1));
  const __m512i normal = _mm512_sub_epi16(_mm512_srli_epi16(_mm512_add_epi16(scaled, up), dropped),
                                          broadcast((127 - Format::bias) << Format::mantissa_bits));

  // Below the smallest normal number the significand is shifted further; counts of 16 and more give
  // zero.
  const __m512i significand =
      _mm512_or_si512(_mm512_and_si512(bits, broadcast(0x7F)), broadcast(0x80));
  const __m512i shift =
      _mm512_sub_epi16(broadcast(dropped + smallest_field), _mm512_srai_epi16(scaled, 7));
  const __m512i half = _mm512_sllv_epi16(one, _mm512_sub_epi16(shift, one));
  const __m512i odd_below = _mm512_and_si512(_mm512_srlv_epi16(significand, shift), one);
  const __m512i up_below = _mm512_add_epi16(_mm512_sub_epi16(half, one), odd_below);
  const __m512i subnormal = _mm512_srlv_epi16(_mm512_add_epi16(significand, up_below), shift);

  const __mmask32 below = _mm512_cmplt_epi16_mask(scaled, broadcast(smallest_field << 7));
  __m512i code = _mm512_mask_mov_epi16(normal, below, subnormal);
  code = _mm512_min_epu16(code, broadcast(Format::largest));
  const __mmask32 nan = _mm512_cmpgt_epu16_mask(bits, broadcast(0x7F80));
  code = _mm512_mask_mov_epi16(code, nan, broadcast(Format::nan));
  const __m512i sign = _mm512_and_si512(_mm512_srli_epi16(x, 8), broadcast(0x80));
  return _mm512_maskz_cvtepi16_epi8(all_lanes, _mm512_or_si512(code, sign));
}

DROPLESS_AVX512 inline std::uint32_t largest_lane(__m512i values) {
  // The masked forms: GCC 12 warns of its own undefined operand in the plain ones.
  const __m256i half = _mm256_max_epu16(_mm512_maskz_extracti64x4_epi64(0xFF, values, 0),
                                        _mm512_maskz_extracti64x4_epi64(0xFF, values, 1));
  const __m128i quarter =
      _mm_max_epu16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
  // The machine has a minimum over lanes, of which this is the complement.
  const __m128i flipped = _mm_xor_si128(quarter, _mm_set1_epi16(-1));
  return 0xFFFFu - static_cast<std::uint32_t>(_mm_extract_epi16(_mm_minpos_epu16(flipped), 0));
}

template <dropless_dtype dtype>
DROPLESS_AVX512 void quantize_row(const std::uint16_t* x, Index blocks, const std::uint32_t* tiles,
                                  std::uint8_t* codes, std::uint8_t* bytes) {
  for (Index b = 0; b < blocks; ++b, x += block_width, codes += block_width) {
    _mm_prefetch(reinterpret_cast<const char*>(x + row_ahead * block_width), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(codes + row_ahead * block_width), _MM_HINT_T0);
    const __m512i values = _mm512_loadu_si512(x);
    const std::uint32_t amax = tiles != nullptr ? tiles[b] : largest_lane(magnitudes(values)) << 16;
    const std::uint32_t byte = scale_byte<dtype>(amax);
    const int field = static_cast<int>(amax >> 23);
    bytes[b] = static_cast<std::uint8_t>(byte);
    if (field >= least_field && field <= most_field) {
      const __m512i k = broadcast((static_cast<int>(byte) - 127) * 128);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes), encode<dtype>(values, k));
    } else {
      encode_block<dtype>(x, inverse_scale(byte), codes);
    }
  }
}

template <dropless_dtype dtype>
DROPLESS_AVX512 void quantize_columns(const std::uint16_t* x, Index row_stride, Index rows,
                                      const std::uint32_t* tile, std::uint8_t* codes,
                                      Index code_stride, std::uint8_t* bytes) {
  __m512i amax = _mm512_setzero_si512();
  if (tile != nullptr) {
    amax = broadcast(static_cast<int>(*tile >> 16));
  } else {
    for (Index i = 0; i < rows; ++i) {
      const std::uint16_t* ahead = x + i * row_stride + columns_ahead * block_width;
      _mm_prefetch(reinterpret_cast<const char*>(ahead), _MM_HINT_T0);
      amax = _mm512_max_epu16(amax, magnitudes(_mm512_loadu_si512(x + i * row_stride)));
    }
  }
  // The scale rule, lane by lane: scale_byte in 16 bits.
  const __m512i field = _mm512_srli_epi16(amax, 7);
  const __mmask32 up =
      _mm512_cmpgt_epu16_mask(_mm512_and_si512(amax, broadcast(0x7F)), broadcast(0x60));
  const __m512i raw = _mm512_sub_epi16(field, broadcast(CodeFormat<dtype>::largest_exponent));
  const __m512i byte =
      _mm512_max_epi16(_mm512_mask_add_epi16(raw, up, raw, broadcast(1)), _mm512_setzero_si512());
  const __mmask32 ordinary = _mm512_cmpge_epu16_mask(field, broadcast(least_field)) &
                             _mm512_cmple_epu16_mask(field, broadcast(most_field));
  if (ordinary == all_lanes) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(bytes),
                        _mm512_maskz_cvtepi16_epi8(all_lanes, byte));
    const __m512i k = _mm512_slli_epi16(_mm512_sub_epi16(byte, broadcast(127)), 7);
    for (Index i = 0; i < rows; ++i) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes + i * code_stride),
                          encode<dtype>(_mm512_loadu_si512(x + i * row_stride), k));
    }
    return;
  }
  std::uint16_t largest[block_width];
  float inverse[block_width];
  _mm512_storeu_si512(largest, amax);
  for (Index j = 0; j < block_width; ++j) {
    const std::uint32_t one = scale_byte<dtype>(static_cast<std::uint32_t>(largest[j]) << 16);
    bytes[j] = static_cast<std::uint8_t>(one);
    inverse[j] = inverse_scale(one);
  }
  encode_columns<dtype>(x, row_stride, rows, inverse, codes, code_stride);
}

}  // namespace

void quantize_row_avx512(dropless_dtype dtype, const std::uint16_t* x, Index blocks,
                         const std::uint32_t* tiles, std::uint8_t* codes, std::uint8_t* bytes) {
  const auto run =
      dtype == DROPLESS_E4M3 ? quantize_row<DROPLESS_E4M3> : quantize_row<DROPLESS_E5M2>;
  run(x, blocks, tiles, codes, bytes);
}

void quantize_columns_avx512(dropless_dtype dtype, const std::uint16_t* x, Index row_stride,
                             Index rows, const std::uint32_t* tile, std::uint8_t* codes,
                             Index code_stride, std::uint8_t* bytes) {
  const auto run =
      dtype == DROPLESS_E4M3 ? quantize_columns<DROPLESS_E4M3> : quantize_columns<DROPLESS_E5M2>;
  run(x, row_stride, rows, tile, codes, code_stride, bytes);
}

}  // namespace dropless::cpu
#endif
