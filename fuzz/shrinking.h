// SPDX-License-Identifier: Apache-2.0
// Making a failing case small: down the tree of simpler cases, as long as one of them still fails
// in the same way and there is time.
#pragma once

#include <rapidcheck.h>

#include <chrono>
#include <functional>
#include <vector>

#include "conformance/runner/outcome.h"
#include "fuzz/sizes.h"

namespace dropless::fuzz {

// One outcome per case, in the order of the cases.
using RunCases = std::function<std::vector<conformance::Outcome>(const std::vector<CaseId>& cases)>;

struct Shrunk {
  conformance::Outcome outcome;  // of the smallest case that was found
  int steps = 0;                 // successful ones
  int candidates = 0;            // that were run
  bool out_of_time = false;
};

// "fail GROUPED_GEMM-5": status, and the first clause where a clause was broken. Two failures of
// one kind are taken for the same fault.
std::string kind_of(const conformance::Outcome& outcome);

// `failing` is the case of `outcome`. Candidates are run `width` at a time; the first of them in
// the order of simplicity wins, so that the result depends on `width` and the clock only through
// the budget.
Shrunk shrink(const rc::Shrinkable<CaseId>& failing, conformance::Outcome outcome,
              const RunCases& run, std::size_t width, std::chrono::duration<double> budget);

}  // namespace dropless::fuzz
