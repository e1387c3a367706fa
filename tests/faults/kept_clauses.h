// SPDX-License-Identifier: Apache-2.0
// Clauses that no fault needs, and why they stay.
#pragma once

#include "conformance/runner/fault_hunt.h"

namespace dropless::faults {

conformance::ClauseReasons kept_clauses();

}  // namespace dropless::faults
