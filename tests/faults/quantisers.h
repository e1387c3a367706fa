// SPDX-License-Identifier: Apache-2.0
// What MXFP8 faults share: blocks of a quantisation, their scale bytes and codes.
#pragma once

#include <cstdint>
#include <functional>

#include "reference/mxfp8.h"
#include "tests/faults/planted.h"
#include "tests/faults/tensors.h"

namespace dropless::faults {

// Faults of codes, of layouts and groups, and of the way back.
void add_mxfp8_codes(std::vector<Fault>& faults);
void add_mxfp8_layouts(std::vector<Fault>& faults);
void add_mxfp8_dequantize(std::vector<Fault>& faults);

// One direction of a quantise call.
struct Direction {
  int direction;
  const dropless_tensor* codes;
  const dropless_tensor* scales;
};
// Those that the call asks for.
std::vector<Direction> directions_of(const dropless_quantize_args& args);

// One block after a correct call. Elements of padding rows are not part of it.
struct Block {
  dropless_dtype format;
  double amax;        // over elements that are not NaN
  std::uint8_t byte;  // the right one
  std::vector<double> x;
  std::vector<Index> positions;  // row-major in the codes
  Index scale_position;          // in the scale tensor
};
std::vector<Block> blocks_of(const dropless_quantize_args& args, const Direction& direction);

// Position of the scale of an element in the scale tensor, -1 beyond the last group.
Index scale_position(const dropless_quantize_args& args, int direction, Index row, Index column);

// Another scale byte: the block's elements are coded under it. Square tiles are left alone.
using ByteChange = std::function<std::uint8_t(const Block&)>;
void change_bytes(Planted& planted, ByteChange change);
// Another code under the right byte.
using CodeChange =
    std::function<std::uint8_t(double x, const Block& block, std::uint8_t right_code)>;
void change_codes(Planted& planted, CodeChange change);
// Other values than those that were given, in both directions.
using ValueChange = std::function<double(double)>;
void change_input(Planted& planted, ValueChange change);

// exponent + 127, clamped.
std::uint8_t clamped_byte(double exponent);
// Largest finite value of an element format.
double largest(dropless_dtype format);

}  // namespace dropless::faults
