// SPDX-License-Identifier: Apache-2.0
// Cases like most tests have them: zero-mean random numbers, a balanced load, exact zones, dense
// rows, no mask, nothing special.
#pragma once

#include <string>
#include <vector>

#include "conformance/cases/family.h"

namespace dropless::museum {

std::vector<conformance::CaseId> typical_cases(const std::string& stage);

}  // namespace dropless::museum
