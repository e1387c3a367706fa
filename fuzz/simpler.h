// SPDX-License-Identifier: Apache-2.0
// What is simpler than a case: the order in which a failure is made small enough to read.
//
// Shorter loads and smaller counts, fewer rows and columns, models with fewer experts, plainer
// words (dense before gaps, fp32 before bf16, exact before cancelling), and last the seeds 1 to 3.
#pragma once

#include <rapidcheck.h>

#include <string>
#include <vector>

#include "fuzz/sizes.h"

namespace dropless::fuzz {

// Every one is legal for the family and differs from `id` in one parameter (or in a load and the
// rows it implies); bold steps first.
rc::Seq<CaseId> simpler_cases(const Family& family, const CaseId& id);

// "3.0.17" to {3, 0, 17}; empty for a word.
std::vector<Index> numbers_of(const std::string& list);

}  // namespace dropless::fuzz
