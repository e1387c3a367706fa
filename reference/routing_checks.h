// SPDX-License-Identifier: Apache-2.0
// What routing refuses (GENERAL-3): settings that contradict each other, and ids that are none.
#pragma once

#include <dropless/contract.h>

#include "reference/value.h"

namespace dropless::reference {

// Throws Refused, naming the setting and its limit: K < 1, K > E, E not divisible by the groups,
// kept groups outside 1 .. G, K > experts of the kept groups, softmax over the selected K together
// with renormalisation or groups, an unknown enumerator, an eps that is negative or not finite.
void check_route_settings(const dropless_route_settings& settings);

// The rest of the list, which needs the profile and the presence of a bias: K not divisible by the
// kept groups where w = K / kept is used, softmax over the selected K together with a bias, a
// declared tie order without its function.
void check_route_selection(const dropless_route_settings& settings, const dropless_profile& profile,
                           bool has_bias);

// ids [T,K]: each in -1 .. E-1, none twice in a token.
void check_ids(Index tokens, Index top_k, Index num_experts, Indices ids, const char* what);

[[nodiscard]] bool has_groups(const dropless_route_settings& settings);
[[nodiscard]] bool renormalizes(const dropless_route_settings& settings);
[[nodiscard]] bool softmax_after_top_k(const dropless_route_settings& settings);

}  // namespace dropless::reference
