// SPDX-License-Identifier: Apache-2.0
// A stack of linear maps inside the layer, y = x W^T + bias over zones of rows, with its backward
// pass, plain or under the MXFP8 recipe (LAYER-2).
#pragma once

#include "optimized/cpu/buffer.h"
#include "optimized/cpu/call.h"

namespace dropless::cpu {

struct Linear {
  dropless_tensor w = {};                    // [E,O,I]
  dropless_tensor bias = {};                 // [E,O]; rank 0: none
  const dropless_tensor* offsets = nullptr;  // [E+1]
  bool mxfp8 = false;
  dropless_dtype gradient_format = DROPLESS_E4M3;

  // x [N,I] -> y [N,O].
  void forward(Call& call, const dropless_tensor& x, const dropless_tensor& y) const;
  // The same from codes that were made row-wise before, with linear scales.
  void forward(Call& call, const dropless_operand& codes, const dropless_tensor& y) const;
  // dy [N,O] -> dx [N,I].
  void backward_input(Call& call, const dropless_tensor& dy, const dropless_tensor& dx) const;
  // dy [N,O], x [N,I] -> dw [E,O,I], zero for an expert without rows.
  void backward_weight(Call& call, const dropless_tensor& dy, const dropless_tensor& x,
                       const dropless_tensor& dw) const;
  // dy [N,O] -> db [E,O]: sums over the rows of each zone, in ascending order.
  void backward_bias(Call& call, const dropless_tensor& dy, const dropless_tensor& db) const;
};

}  // namespace dropless::cpu
