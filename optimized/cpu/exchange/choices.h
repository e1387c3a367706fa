// SPDX-License-Identifier: Apache-2.0
// The profile choices that the exchange obeys. Every choice of the profile is implemented.
#pragma once

#include <dropless/contract.h>

#include "optimized/cpu/threads.h"

namespace dropless::cpu::exchange {

struct Choices {
  bool expert_major = false;  // EXCHANGE-3; the unordered layouts are delivered in order
  bool ids_in_place = false;  // EXCHANGE-3: flat ids in the source's k order
  bool weighted = false;      // EXCHANGE-6: expert-major only
  int rounding = 0;           // EXCHANGE-6: DROPLESS_COMBINE_ROUNDS_*
  int overflow = 0;           // EXCHANGE-10: DROPLESS_OVERFLOW_*
  Index alignment = 1;        // expert-major; flat rows are never aligned (EXCHANGE-9)
  bool zero_tail = false;     // PERMUTATION-8
  decltype(dropless_profile::replica_copy) replica_copy = nullptr;  // null: token modulo copies
};

// Throws Refusal for a value outside the listed ones.
[[nodiscard]] Choices read_choices(const dropless_profile& profile);

}  // namespace dropless::cpu::exchange
