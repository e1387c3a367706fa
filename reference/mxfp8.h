// SPDX-License-Identifier: Apache-2.0
// MXFP8 block scaling, text-book form: MXFP8-1 to 9. Everything here is of class exact.
#pragma once

#include <dropless/contract.h>

#include "reference/value.h"

namespace dropless::reference {

inline constexpr Index kBlock = 32;

// Groups of rows. Empty offsets: the whole matrix is one group; empty counts: zones are full.
struct Groups {
  Indices offsets;  // [G+1]
  Indices counts;   // [G]
};

// Rows first .. end of a group; those before real_end hold data, the others are padding.
struct Zone {
  Index first, real_end, end;
};
// One zone per group of a buffer with `rows` rows. Throws Refused for offsets that do not begin at
// 0, fall, or end beyond the buffer, and for counts outside 0 .. zone size (GENERAL-3).
std::vector<Zone> zones(Index rows, const Groups& groups);

// Offsets [E+1] that make a weight tensor [E,O,I], seen as the matrix [E*O,I], one group per expert
// (the layout of GROUPED_GEMM-7: packed scales are padded per expert, column-wise blocks along O).
std::vector<Index> weight_offsets(Index num_experts, Index out);

// MXFP8-2 and 4: the scale byte of a block whose largest magnitude is amax (finite, >= 0, or +inf).
std::uint8_t scale_byte(double amax, dropless_dtype format, int scale_rule);

// Code of one element under a scale byte, to nearest even, saturating (MXFP8-3). NaN, and anything
// under byte 255, gives a NaN code.
std::uint8_t encode(double x, std::uint8_t byte, dropless_dtype format);
// Value of a code under a scale byte, rounded to fp32 once (MXFP8-5).
double decode(std::uint8_t code, std::uint8_t byte, dropless_dtype format);

struct QuantizeSettings {
  dropless_dtype row_format = DROPLESS_E4M3;
  dropless_dtype column_format = DROPLESS_E4M3;
  int scale_layout = DROPLESS_SCALES_LINEAR;
  bool square_tiles = false;
};

struct Quantized {
  std::vector<std::uint8_t> row_codes;   // [rows,columns]; rows beyond offsets[G] are not judged
  std::vector<std::uint8_t> row_scales;  // linear or packed
  std::vector<std::uint8_t> column_codes;
  std::vector<std::uint8_t> column_scales;
  std::vector<bool> row_judged;     // [rows,columns]: false under the "block" NaN policy and
  std::vector<bool> column_judged;  //   beyond offsets[G]
};

Quantized quantize(const QuantizeSettings& settings, const dropless_profile& profile, Index rows,
                   Index columns, Input x, const Groups& groups = {});

// One direction back to values [rows,columns]; rows beyond the counts give zero.
Doubles dequantize(int direction, int scale_layout, dropless_dtype format, Index rows,
                   Index columns, std::span<const std::uint8_t> codes,
                   std::span<const std::uint8_t> scales, const Groups& groups = {});

// A scale matrix [outer, blocks] of one group in linear order. For row-wise blocks outer = row; for
// column-wise blocks outer = column.
// MXFP8-7: byte offset of (outer, block) inside its group, and bytes of a group.
Index packed_offset(Index outer, Index block, Index blocks);
Index packed_bytes(Index outer, Index blocks);

// Bytes of a whole scale tensor for a matrix with these groups.
Index scale_tensor_bytes(int direction, int scale_layout, Index rows, Index columns,
                         const Groups& groups = {});
// Position, in that tensor, of the scale of element (row, column); -1 beyond offsets[G].
Index scale_position(int direction, int scale_layout, Index rows, Index columns, Index row,
                     Index column, const Groups& groups = {});

}  // namespace dropless::reference
