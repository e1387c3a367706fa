// SPDX-License-Identifier: Apache-2.0
// A stack of linear maps inside the layer, y = x W^T + bias over zones of rows, with its backward
// pass, plain or under the MXFP8 recipe (LAYER-2). Operands are quantised into scratch memory.
#pragma once

#include "optimized/cuda/operations.h"

namespace dropless::cuda {

// The same elements as one group of a stack: [rows, columns] becomes [1, rows, columns].
[[nodiscard]] dropless_tensor stacked(const dropless_tensor& tensor);

struct Linear {
  dropless_tensor w;               // [E,O,I]
  dropless_tensor bias;            // [E,O]; rank 0: none
  const dropless_tensor* offsets;  // [E+1]
  bool dense;                      // E = 1 and its zone holds every row: no grouped GEMM is needed
  bool mxfp8;
  dropless_dtype gradient_format;

  // Whether the forward pass would use rows that are quantised already.
  [[nodiscard]] bool wants_quantized_rows(Call& call) const;
  // x [N,I] -> y [N,O].
  void forward(Call& call, const dropless_tensor& x, const dropless_tensor& y,
               const QuantizedRows* quantized = nullptr) const;
  // dy [N,O] -> dx [N,I].
  void backward_input(Call& call, const dropless_tensor& dy, const dropless_tensor& dx) const;
  // dy [N,O], x [N,I] -> dw [E,O,I], zero for an expert without rows. Null: not wanted.
  void backward_weight(Call& call, const dropless_tensor& dy, const dropless_tensor& x,
                       const dropless_tensor* dw) const;
  // dy [N,O] -> db [E,O]: sums over the real rows of each zone. Null: not wanted.
  void backward_bias(Call& call, const dropless_tensor& dy, const dropless_tensor* db) const;
};

}  // namespace dropless::cuda
