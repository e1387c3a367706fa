// SPDX-License-Identifier: Apache-2.0
// The reference behind the contract, so that the suite can judge it like any other implementation.
#pragma once

#include <dropless/contract.h>

namespace dropless::reference {

// The table with a default profile. Host memory, one thread, deterministic.
const dropless_implementation& implementation();

// The same operations under another profile; the table lives as long as the process.
const dropless_implementation& implementation(const dropless_profile& profile);

}  // namespace dropless::reference
