// SPDX-License-Identifier: Apache-2.0
// Routings whose demand lies where a case wants it, and what an overflow leaves alone.
#pragma once

#include "conformance/cases/exchange/numbers.h"

namespace dropless::conformance {

// Factor 1, and enough tokens for zones of the declared alignment to exceed it.
void prepare_overflow(World& world);
// room: exact (the demand is the capacity), one_above (the least that is more), far_above. Rank 0
// is the fullest.
const Routing& routing_with_demand(World& world, const std::string& room);
std::string overflow_objection(const Values& values);

// Policy trap: the plan that overflows, or its dispatch, ends the process of the fullest rank; the
// others end as well or are told that they have lost it.
void run_trap(World& world, RankHandle& handle, const Routing& routing);

[[nodiscard]] bool is_refusal(dropless_status status);
void judge_untouched(World& world, std::string_view clause, std::string_view what,
                     const Buffer& got);
// Dispatch and combine on a plan that overflowed: refused (silent: or OK, before any check has seen
// it), and nothing is written.
void judge_refused_calls(World& world, RankHandle& handle, const Routing& routing,
                         std::string_view clause, bool silent, Index call);

}  // namespace dropless::conformance
