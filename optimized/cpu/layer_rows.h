// SPDX-License-Identifier: Apache-2.0
// Row by row arithmetic of the layer: scaled rows, sums of several parts, dot products with one
// row.
#pragma once

#include "optimized/cpu/arguments.h"

namespace dropless::cpu {

// out[r] = scale[r] * x[r], rounded once. out may be x.
void scale_rows(int threads, const Tensor& x, const float* scale, const Tensor& out);

// One term of a sum: scale[r] * x[r], or x[r] where scale is null; or scale[r] * x[0] for a single
// row.
struct Part {
  Tensor x;
  const float* scale = nullptr;
  bool one_row = false;
};
// out[r] = sum of the parts, in their order, in double, rounded once.
void add_parts(int threads, const std::vector<Part>& parts, const Tensor& out);

// Dot product of row r of a with row r of b, or with the single row of b.
std::vector<double> dot_rows(int threads, const Tensor& a, const Tensor& b, bool one_row);

// out[0] = sum over r of scale[r] * x[r], the rows in ascending order.
void sum_scaled_rows(int threads, const Tensor& x, const float* scale, const Tensor& out);

}  // namespace dropless::cpu
