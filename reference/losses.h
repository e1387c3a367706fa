// SPDX-License-Identifier: Apache-2.0
// Losses, text-book form: ROUTING-14 (balance), ROUTING-15 (z), LOSSES-1 (cross-entropy).
#pragma once

#include <dropless/contract.h>

#include "reference/value.h"

namespace dropless::reference {

struct Loss {
  double value = 0;
  double gauge = 0;  // sum of |terms|
};

struct BalanceInput {
  Index tokens = 0;
  Input logits;                  // [T,E]
  Indices ids;                   // [T,K] the real routing
  Mask token_mask;               // [T] or empty
  Indices sequence_boundaries;   // [S+1], scope sequence only: from 0 to T, not falling
  Indices accumulated_counts;    // [E] sums of EARLIER micro-batches, scope global only
  Index accumulated_tokens = 0;  // likewise
};

// Throws Refused for sizes, ids and settings that do not fit, and for boundaries that leave a token
// without a sequence: a loss that silently forgets tokens is no reading of ROUTING-14.
Loss balance_loss(const dropless_route_settings& settings, const dropless_profile& profile,
                  double coeff, int scope, const BalanceInput& input);
// The counts that this micro-batch adds, [E], under the profile's balance_counts rule.
std::vector<Index> balance_counts(const dropless_route_settings& settings,
                                  const dropless_profile& profile, const BalanceInput& input);
// d loss / d logits times d_loss; counts are constants. [T,E]
Gauged balance_loss_backward(const dropless_route_settings& settings,
                             const dropless_profile& profile, double coeff, int scope,
                             const BalanceInput& input, double d_loss);

Loss z_loss(double coeff, Index num_experts, Input logits, Mask token_mask);
Gauged z_loss_backward(double coeff, Index num_experts, Input logits, Mask token_mask,
                       double d_loss);

Loss cross_entropy(Index vocabulary, Input logits, Indices labels);
Gauged cross_entropy_backward(Index vocabulary, Input logits, Indices labels, double d_loss);

}  // namespace dropless::reference
