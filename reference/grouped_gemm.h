// SPDX-License-Identifier: Apache-2.0
// Grouped GEMM, text-book form: GROUPED_GEMM-1 to 9. Operands are plain doubles; for MXFP8 operands
// the caller dequantises first (GROUPED_GEMM-7 demands exactly that).
#pragma once

#include <dropless/contract.h>

#include "reference/mxfp8.h"
#include "reference/value.h"

namespace dropless::reference {

struct GemmShape {
  Index num_experts = 0, out = 0, in = 0;  // W is [E,O,I]
  Index rows = 0;                          // N_max
};

// gauge = |alpha| sum|a||b| (+ |bias|, + |beta C|). Padding rows are zero, rows beyond offsets[E]
// are left at zero with gauge zero; `real_rows` tells which rows count.
Gauged gemm_fprop(const GemmShape& shape, const Groups& groups, double alpha, Input x, Input w,
                  Input bias = {});
Gauged gemm_dgrad(const GemmShape& shape, const Groups& groups, double alpha, Input dy, Input w);
Gauged gemm_wgrad(const GemmShape& shape, const Groups& groups, double alpha, Input dy, Input x,
                  double beta = 0, Input c = {});

enum class RowKind : std::uint8_t { real, padding, tail };
std::vector<RowKind> row_kinds(Index rows, const Groups& groups);

}  // namespace dropless::reference
