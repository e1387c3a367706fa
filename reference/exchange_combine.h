// SPDX-License-Identifier: Apache-2.0
// Combine: rows back to their tokens, and the backwards of dispatch and combine (EXCHANGE-6, 7).
//
// Inputs are the arrays of all R ranks; buffers may be longer than the rows in use. Padding rows
// are never read. All functions throw ExchangeOverflow on a plan that does not deliver, Refused for
// sizes, for weights that the profile does not combine with, and without those that it does.
#pragma once

#include "reference/exchange_plan.h"

namespace dropless::reference {

using RankInputs = std::span<const Input>;  // [R] of one array per rank

// The sum of a token's rows, in ascending order of (node, rank, position), twice: without any
// rounding before the last, with its gauge, for bounds (tolerances::combine); and with the declared
// roundings of the partial sums, for comparison bit by bit on data that is exact under them. The
// rounding to the output type is left to the caller in both.
struct Combined {
  Gauged exact;
  Doubles declared;
};

// y [T,H] of one source rank from rows [N_r,H] of every rank; row_weights [N_r] of every rank in
// the expert-major layouts of a weighted profile, otherwise empty. Under ROUNDS_PER_RANK (PER_NODE)
// the sum over a rank (node), the token's own one included, is rounded once to `payload`, the dtype
// of the rows. In flat layouts a row is its rank's sum already.
Combined combine(const ExchangePlan& plan, Index source_rank, Index hidden, dropless_dtype payload,
                 RankInputs rows, RankInputs row_weights = {});

// d_x [T,H] of one source rank: the unweighted combine of d_rows. For the gradients of the weights
// see dispatch_weights_backward.
Combined dispatch_backward(const ExchangePlan& plan, Index source_rank, Index hidden,
                           dropless_dtype payload, RankInputs d_rows);

struct CombineGradient {
  Gauged d_rows;         // [N,H] rows in use, padding zero
  Gauged d_row_weights;  // [N], padding zero; empty unless weighted
};

// What one receiving rank gets from d_y [T_r,H] of every rank. Weighted: d_row = w * d_y and
// d_w = dot(d_y, row) from this rank's own rows [N,H] and row_weights [N]; otherwise both are empty
// and d_row = d_y.
CombineGradient combine_backward(const ExchangePlan& plan, Index rank, Index hidden, RankInputs d_y,
                                 Input rows = {}, Input row_weights = {});

}  // namespace dropless::reference
