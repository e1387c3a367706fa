// SPDX-License-Identifier: Apache-2.0
// Rows of a rank's receive buffers: EXCHANGE-9.
#pragma once

#include "reference/exchange_topology.h"

namespace dropless::reference {

// True for the layouts with one row per (token, rank), false for those with one per (token,
// expert).
bool is_flat_layout(const dropless_profile& profile);

// Rows to which the zones of received rows are rounded up: 1 in flat layouts.
Index exchange_alignment(const dropless_profile& profile);

// The most rows that any routing can bring to a rank, padding included: flat R * T, expert-major
// min(L * up(R * T), up(pairs + (a - 1) * min(L, pairs))), pairs = R * T * min(K, L).
Index worst_capacity(const dropless_profile& profile, const ExchangeSettings& settings);

// min(worst, max(up(T), up(ceil(L * up(ceil(T * K / L)) * factor * (1 - 2^-20))))), evaluated in
// double from left to right; worst for factor -1. T = settings.max_tokens. Refused like
// exchange_topology, and for sizes beyond 2^53, which double cannot count.
Index exchange_capacity(const dropless_profile& profile, const ExchangeSettings& settings);

}  // namespace dropless::reference
