// SPDX-License-Identifier: Apache-2.0
// Rows of a rank's receive buffers: EXCHANGE-9.
#include "reference/exchange_capacity.h"

#include <algorithm>
#include <cmath>

#include "reference/checks.h"

namespace dropless::reference {
namespace {

Index round_up(Index rows, Index alignment) {
  return ceil_div(rows, alignment) * alignment;
}

void check_countable(Index ranks, Index tokens, Index per_token, Index alignment) {
  const double rows = static_cast<double>(ranks) * static_cast<double>(tokens + alignment) *
                      static_cast<double>(per_token);
  if (rows >= 0x1p53) throw Refused("the capacity of these sizes is beyond 2^53 rows");
}

}  // namespace

bool is_flat_layout(const dropless_profile& profile) {
  return profile.dispatch_layout == DROPLESS_DISPATCH_FLAT ||
         profile.dispatch_layout == DROPLESS_DISPATCH_UNORDERED_FLAT;
}

Index exchange_alignment(const dropless_profile& profile) {
  if (profile.alignment < 0) throw Refused("the alignment is negative");
  return is_flat_layout(profile) || profile.alignment == 0 ? 1 : profile.alignment;
}

Index worst_capacity(const dropless_profile& profile, const ExchangeSettings& settings) {
  const Index slots = exchange_topology(settings).slots;
  const Index a = exchange_alignment(profile);
  check_countable(settings.ranks, settings.max_tokens, std::max(settings.top_k, slots), a);
  const Index tokens = settings.ranks * settings.max_tokens;
  if (is_flat_layout(profile)) return tokens;
  const Index pairs = tokens * std::min(settings.top_k, slots);
  const Index every_zone_full = slots * round_up(tokens, a);
  const Index every_pair_once = round_up(pairs + (a - 1) * std::min(slots, pairs), a);
  return std::min(every_zone_full, every_pair_once);
}

Index exchange_capacity(const dropless_profile& profile, const ExchangeSettings& settings) {
  const Index worst = worst_capacity(profile, settings);
  if (settings.ragged_buffer_factor == -1) return worst;
  const Index slots = exchange_topology(settings).slots;
  const Index a = exchange_alignment(profile);
  const Index balanced = slots * round_up(ceil_div(settings.max_tokens * settings.top_k, slots), a);
  const double rows =
      std::ceil(static_cast<double>(balanced) * settings.ragged_buffer_factor * (1 - 0x1p-20));
  // Compared before the conversion: a large factor leaves the range of Index. Below it the minimum
  // is already taken, as worst is a multiple of a and at least up(T).
  if (rows >= static_cast<double>(worst)) return worst;
  return std::max(round_up(settings.max_tokens, a), round_up(static_cast<Index>(rows), a));
}

}  // namespace dropless::reference
