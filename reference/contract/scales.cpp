// SPDX-License-Identifier: Apache-2.0
// Scale tensors of MXFP8 matrices behind the contract.
#include "reference/contract/scales.h"

#include "reference/checks.h"

namespace dropless::reference::contract {
namespace {

Index column_blocks(const ScaleMatrix& matrix) {
  Index blocks = 0;
  for (const Zone& zone : zones(matrix.rows, matrix.groups)) {
    blocks += ceil_div(zone.end - zone.first, kBlock);
  }
  return blocks;
}

void check_room(Index have, Index needed, const char* name) {
  if (have < needed) {
    throw Refused(std::string(name) + " has " + std::to_string(have) + " entries, " +
                  std::to_string(needed) + " are needed");
  }
}

}  // namespace

TensorView scale_tensor(const dropless_tensor* argument, const char* name,
                        const ScaleMatrix& matrix) {
  if (matrix.scale_layout == DROPLESS_SCALES_PACKED) {
    const TensorView packed = tensor(argument, name, Element::e8m0, {kAny});
    check_room(packed.shape(0),
               scale_tensor_bytes(matrix.direction, matrix.scale_layout, matrix.rows,
                                  matrix.columns, matrix.groups),
               name);
    return packed;
  }
  if (matrix.direction == DROPLESS_BLOCKS_ROW_WISE) {
    return tensor(argument, name, Element::e8m0, {matrix.rows, ceil_div(matrix.columns, kBlock)});
  }
  const TensorView linear = tensor(argument, name, Element::e8m0, {kAny, matrix.columns});
  check_room(linear.shape(0), column_blocks(matrix), name);
  return linear;
}

Index used_scales(const ScaleMatrix& matrix, Index end) {
  if (matrix.scale_layout == DROPLESS_SCALES_PACKED) {
    return scale_tensor_bytes(matrix.direction, matrix.scale_layout, matrix.rows, matrix.columns,
                              matrix.groups);
  }
  if (matrix.direction == DROPLESS_BLOCKS_ROW_WISE) return end * ceil_div(matrix.columns, kBlock);
  return column_blocks(matrix) * matrix.columns;
}

}  // namespace dropless::reference::contract
