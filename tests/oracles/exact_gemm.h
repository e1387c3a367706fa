// SPDX-License-Identifier: Apache-2.0
// The grouped GEMM in exact arithmetic, and the comparison of the reference with it.
//
// Written from GROUPED_GEMM-0 to 5 with its own indexing. A check returns an empty string, or the
// first disagreement in words.
#pragma once

#include <string>

#include "reference/grouped_gemm.h"

namespace dropless::oracles {

struct GemmProblem {
  reference::GemmShape shape;
  std::vector<reference::Index> offsets, counts;  // counts empty: zones are full
  double alpha = 1, beta = 0;
  reference::Doubles a;         // fprop x [rows,I]; dgrad dy [rows,O]; wgrad dy [rows,O]
  reference::Doubles b;         // fprop and dgrad w [E,O,I]; wgrad x [rows,I]
  reference::Doubles addend;    // fprop bias [E,O] or empty; wgrad c [E,O,I] or empty
  bool exact_in_double = true;  // every partial sum is: the reference must have the exact value
};

std::string check_fprop(const GemmProblem& problem, const reference::Gauged& got);
std::string check_dgrad(const GemmProblem& problem, const reference::Gauged& got);
std::string check_wgrad(const GemmProblem& problem, const reference::Gauged& got);

}  // namespace dropless::oracles
