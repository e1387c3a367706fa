// SPDX-License-Identifier: Apache-2.0
// The sum of a token's rows in fp32 (EXCHANGE-6): pairs of a rank, then ranks of a node, then
// nodes, each in the order of the terms, rounded in between where that is declared. Every sum
// begins with +0, so that levels of one term each change nothing.
//
//     const Term terms[] = {{row_a}, {row_b, weight_b, true, true}};   // two pairs of one rank
//     sum_rows({DROPLESS_BF16, DROPLESS_FP32, hidden}, terms, {}, y);
#pragma once

#include <span>

#include "optimized/cpu/arguments.h"

namespace dropless::cpu::exchange {

struct Term {
  const std::byte* row = nullptr;
  float weight = 1;
  bool ends_rank = false, ends_node = false;  // the last one of both ends both
};

struct RowSum {
  dropless_dtype from, to;  // fp32 or bf16
  Index columns;
  bool rounds_rank = false, rounds_node = false;  // to bf16
};

// Writes `columns` elements of type sum.to. The rows of `ahead`, which are summed next, are fetched
// meanwhile: they lie apart, so that no processor sees them coming.
void sum_rows(const RowSum& sum, std::span<const Term> terms, std::span<const Term> ahead,
              std::byte* to);

}  // namespace dropless::cpu::exchange
