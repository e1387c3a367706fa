// SPDX-License-Identifier: Apache-2.0
// Selection of experts: the compared values, the tie rule, groups and top-k (ROUTING-2 to 5, 7, 8).
#pragma once

#include <dropless/contract.h>

#include "reference/value.h"

namespace dropless::reference {

// Positions 0 .. n-1, best first: members that are not masked (ROUTING-7) before masked ones, NaN
// above every number (so that a NaN reaches the output, ROUTING-8), larger values before smaller
// ones, equal values by the profile's tie rule (ROUTING-5; "any" behaves like lowest index first).
std::vector<Index> ranking(const dropless_profile& profile, Input values, Mask mask = {});

// 0 where a logit is -Inf (ROUTING-7), else 1.
std::vector<std::uint8_t> expert_mask(Input logits);

// Compared values of one token (ROUTING-2): fl32(score) + bias, -Inf where the logit is -Inf; the
// logits themselves where softmax over the selected K selects on them. `bias` may be empty.
Doubles selection_scores(const dropless_route_settings& settings, Input logits, Input scores,
                         Input bias);

// ROUTING-4: one score per group.
Doubles group_scores(const dropless_route_settings& settings, const dropless_profile& profile,
                     Input selection);

// ROUTING-5: K distinct experts among those of the kept groups (empty: all), in ranking order.
std::vector<Index> top_k(const dropless_profile& profile, Index k, Input selection, Mask experts,
                         Mask group_kept);

}  // namespace dropless::reference
