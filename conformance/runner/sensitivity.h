// SPDX-License-Identifier: Apache-2.0
// Does every case family notice when an input of the operation is changed on its way in? The
// changes live above the suite (tests/sensitivity); this is all that the command line knows about
// them.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "conformance/cases/family.h"

namespace dropless::conformance {

struct SensitivityPlan {
  std::vector<std::string> stages, families;  // empty: all that one rank can run
  Tier tier = Tier::smoke;  // whose cases are tried; a family without one there gives its first
  int jobs = 1;
  const std::atomic<int>* interrupt = nullptr;
};

// One input of one family: did a change of it, and of nothing else, turn a pass into a failure?
struct Sensitivity {
  std::string family, input;  // "gemm_fprop.w.scales"
  bool flips = false;
  std::string edit, case_id;  // of the first flip: "negate largest"
  int call = 0;               // 0: the same change in every call; n: in the n-th alone
  std::int64_t attempts = 0;  // runs with an effective, legal change, the flip included
  std::string reason;         // why this one need not flip; empty: it must

  [[nodiscard]] bool as_demanded() const { return flips == reason.empty(); }
};

struct SensitivityReport {
  std::vector<Sensitivity> inputs;   // families in the order of the suite
  std::vector<std::string> no_case;  // families none of whose cases passes unchanged: a mistake
  std::vector<std::string> stale;    // exemptions that no family or input answers to
  std::int64_t attempts = 0;

  [[nodiscard]] bool good() const;
};

// Defined in tests/sensitivity; runs the reference in this process. Throws UsageError (an unknown
// stage or family) and Interrupted.
SensitivityReport run_sensitivity(const SensitivityPlan& plan);

}  // namespace dropless::conformance
