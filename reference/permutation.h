// SPDX-License-Identifier: Apache-2.0
// Permutation, text-book form: PERMUTATION-1 to 8.
#pragma once

#include <dropless/contract.h>

#include "reference/value.h"

namespace dropless::reference {

struct PermutePlan {
  Index tokens = 0, top_k = 0, num_experts = 0;
  std::vector<Index> tokens_per_expert;  // [E] real rows kept
  std::vector<Index> offsets;            // [E+1]
  std::vector<Index> row_map;            // [T,K], -1 none
  std::vector<Index> source;             // [N], -1 padding
  Index demand = 0;                      // offsets[E] without a capacity
  [[nodiscard]] Index rows() const { return offsets.back(); }
};

// ids [T,K]; row_capacity -1 = none; alignment and empty-expert rule from the profile.
PermutePlan permute_plan(const dropless_profile& profile, Index tokens, Index top_k,
                         Index num_experts, Indices ids, Index row_capacity = -1);

// Byte copies: rows [N, row_bytes] from x [T, row_bytes]; padding rows are zero bytes.
std::vector<std::byte> permute(const PermutePlan& plan, std::span<const std::byte> x,
                               std::size_t row_bytes);
// Per-row copies of a [T,K] byte matrix (weights): element (t,j) goes to its row; padding is zero.
std::vector<std::byte> permute_slots(const PermutePlan& plan, std::span<const std::byte> slots,
                                     std::size_t element_bytes);

// d_x [T,H] from d_rows [N,H].
Gauged permute_backward(const PermutePlan& plan, Index hidden, Input d_rows);
// d_weights [T,K] from d_row_weights [N]: the way back of the weights that travelled; 0 for id -1.
Doubles permute_weights_backward(const PermutePlan& plan, Input d_row_weights);
// y [T,H] from rows [N,H] and weights [T,K] (empty: unweighted).
Gauged unpermute(const PermutePlan& plan, Index hidden, Input rows, Input weights);

struct UnpermuteGradient {
  Gauged d_rows;     // [N,H], padding rows zero
  Gauged d_weights;  // [T,K], 0 where the id is -1; empty without weights
};
UnpermuteGradient unpermute_backward(const PermutePlan& plan, Index hidden, Input rows,
                                     Input weights, Input d_y);

}  // namespace dropless::reference
