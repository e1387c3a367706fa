// SPDX-License-Identifier: Apache-2.0
// Before a call that is made of several rounds: whether every rank can make it, and whether all
// mean the same one.
#pragma once

#include "optimized/cpu/exchange/handle.h"

namespace dropless::cpu::exchange {

// Something that must be equal on all ranks.
struct Term {
  const char* name;
  std::int64_t value;
};
inline constexpr std::size_t most_terms = 12;

// Collective. `own`: DROPLESS_OK, or why this rank cannot make the call (then its terms do not
// matter). Throws that refusal, or that of the first rank that cannot, or one that says which rank
// differs from rank 0 in what: the same decision on every rank, after which the handle can be used
// as before.
void agree(Handle& handle, const std::vector<Term>& terms, const Refusal& own);

}  // namespace dropless::cpu::exchange
