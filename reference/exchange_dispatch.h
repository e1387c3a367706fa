// SPDX-License-Identifier: Apache-2.0
// Dispatch: what one rank receives from all ranks, byte by byte (EXCHANGE-1 to 4).
//
// Every function returns the rows in use of the receiving rank (plan.received[rank].rows());
// padding rows are zero bytes, ids and sources of padding -1. In the unordered layouts the order is
// that of the ordered ones. All throw ExchangeOverflow on a plan that does not deliver, Refused for
// sizes.
#pragma once

#include "reference/exchange_plan.h"

namespace dropless::reference {

using Bytes = std::vector<std::byte>;
using RankBytes = std::span<const std::span<const std::byte>>;  // [R] of one array per source rank

// rows [N, row_bytes] from x [T_r, row_bytes] of every rank. Scales travel in the same way.
Bytes dispatch_rows(const ExchangePlan& plan, Index rank, RankBytes x, std::size_t row_bytes);

// Weights [T_r,K] of every rank, element_bytes each: flat [N,K], 0 where dispatch_ids is -1;
// expert-major [N].
Bytes dispatch_weights(const ExchangePlan& plan, Index rank, RankBytes weights,
                       std::size_t element_bytes);

// Flat layouts: local ids [N,K] of the row's pairs on this rank, ascending and then -1, or at their
// positions in the source's top-k, as the profile says.
std::vector<Index> dispatch_ids(const ExchangePlan& plan, Index rank);

// Source rank and token of every row [N,2].
std::vector<Index> dispatch_sources(const ExchangePlan& plan, Index rank);

// EXCHANGE-7: d_weights [T,K] of a source rank from d_row_weights of every rank (flat [N,K] as
// dispatch_weights places them, expert-major [N]); 0 for id -1 and for dropped pairs.
Doubles dispatch_weights_backward(const ExchangePlan& plan, Index source_rank,
                                  std::span<const Input> d_row_weights);

}  // namespace dropless::reference
