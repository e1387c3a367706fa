// SPDX-License-Identifier: Apache-2.0
// Scale tensors of MXFP8 matrices behind the contract: their shapes and how much of them is used.
#pragma once

#include "reference/contract/tensor.h"
#include "reference/mxfp8.h"

namespace dropless::reference::contract {

// The matrix of codes to which a scale tensor belongs.
struct ScaleMatrix {
  int direction, scale_layout;
  Index rows, columns;
  Groups groups;
};

// Row-wise linear: [rows, ceil(columns/32)]. Column-wise linear: [at least the blocks of all
// groups, columns], since the host cannot know them (mxfp8.h of the contract). Packed: [at least
// the bytes of all groups].
TensorView scale_tensor(const dropless_tensor* argument, const char* name,
                        const ScaleMatrix& matrix);

// Elements of the scale tensor that belong to rows before `end`, the end of the last zone.
Index used_scales(const ScaleMatrix& matrix, Index end);

}  // namespace dropless::reference::contract
