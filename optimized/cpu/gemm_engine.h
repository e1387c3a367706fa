// SPDX-License-Identifier: Apache-2.0
// The blocked matrix product under fprop, dgrad, wgrad and the dense products of the layer.
#pragma once

#include <functional>

#include "optimized/cpu/gemm_operand.h"

namespace dropless::cpu {

// One product c[rows, columns] = a[rows, depth] * b[depth, columns] of group g.
struct GemmProduct {
  Index group = 0, rows = 0, columns = 0, depth = 0;
};

// How the operands are stored: a as [rows, depth] or [depth, rows], b as [depth, columns] or
// [columns, depth].
struct GemmLayout {
  bool a_transposed = false, b_transposed = false;
};

// Takes a finished block: sums of rows [row, row + rows), columns [column, column + columns), with
// `stride` floats between rows. Called once for every block, from several threads.
using GemmStore = std::function<void(const GemmProduct& product, Index row, Index column,
                                     Index rows, Index columns, const float* sums, Index stride)>;

// Computes all products; the sum of an element runs over depth in ascending order, in fp32, by
// fused multiply-add where the machine has it. Products of depth 0 hand out zeros.
void multiply(int threads, const std::vector<GemmProduct>& products, const GemmOperand& a,
              const GemmOperand& b, GemmLayout layout, const GemmStore& store);

}  // namespace dropless::cpu
