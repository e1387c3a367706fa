// SPDX-License-Identifier: Apache-2.0
// Row by row arithmetic of the layer. Sums are made in double and rounded once; all of it is
// deterministic.
#pragma once

#include "optimized/cuda/zones.h"

namespace dropless::cuda {

// rows[r] *= scale[r] for the rows below the end of the last zone, rounded once. rows [N,H] dense.
void scale_rows(Call& call, const Zones& zones, const Tensor& rows, const float* scale);

// One term of a sum: scale[r] * x[r], or x[r] where scale is null; scale[r] * x[0] of a single row.
struct RowPart {
  Tensor x;
  const float* scale = nullptr;
  bool one_row = false;
};
// out[r] = sum of the parts in their order. out may be one of them. At most four.
void add_parts(Call& call, std::initializer_list<RowPart> parts, const Tensor& out);

// out[g] = sum over the real rows of zone g of scale[r] * x[r], or x[r] where scale is null.
void sum_rows(Call& call, const Zones& zones, const Tensor& x, const float* scale,
              const Tensor& out);

// gate[r] = sigmoid(dot(x[r], w[0])).
void gate_rows(Call& call, const Tensor& x, const Tensor& w, float* gate);
// d[r] = dot(a[r], b[r]) * gate[r] * (1 - gate[r]): the gradient of the gate's argument.
void gate_rows_backward(Call& call, const Tensor& a, const Tensor& b, const float* gate, float* d);

// to = from, i64 [n] or [n,m] dense, converted to the integers of `to`.
void copy_integers(Call& call, const dropless_tensor& from, const Tensor& to);
// Writes zero into a vector of fp32.
void zero_vector(Call& call, const Tensor& vector);

// x [N,M] as fp32 without gaps: its own memory where it is that already, else a scratch copy.
float* widened(Call& call, const Tensor& x);
// x [N,M] without gaps from a multiple of 256 bytes on: its own memory where it is that already,
// else a scratch copy.
void* aligned_copy(Call& call, const Tensor& x);
// The elements of w [E,O,I] without gaps: its own memory when it has none, else a scratch copy.
void* dense(Call& call, const dropless_tensor& w);
// Scratch offsets 0, step, 2 step, ... [groups + 1] i64.
dropless_tensor multiples(Call& call, Index groups, Index step);

}  // namespace dropless::cuda
