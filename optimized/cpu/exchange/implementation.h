// SPDX-License-Identifier: Apache-2.0
// The exchange operations as a table of their own, for any profile: what the suite and the tests
// use to see every layout, rounding and overflow policy.
//
//     dropless_profile mine = {sizeof mine, DROPLESS_STRUCT_VERSION};
//     mine.dispatch_layout = DROPLESS_DISPATCH_EXPERT_MAJOR;
//     mine.alignment = 16;
//     const dropless_implementation* table = dropless::cpu::exchange::implementation(mine);
#pragma once

#include <dropless/contract.h>

namespace dropless::cpu::exchange {

// A table that offers the exchange and synchronize, and nothing else: the other operations of the
// CPU implementation hold to the default profile only. It lives as long as the process; the same
// profile gives the same table. Null when a choice is not among the listed ones.
[[nodiscard]] const dropless_implementation* implementation(const dropless_profile& profile);

// Fills the entries of the exchange. They read the profile through the table's context: a pointer
// to a dropless_profile, or null for the default one.
void fill_entries(dropless_implementation& table);

}  // namespace dropless::cpu::exchange
