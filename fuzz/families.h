// SPDX-License-Identifier: Apache-2.0
// What a run over registered families needs beside the drawing: which families, how their cases are
// run, and which cases the tiers hold already.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "conformance/runner/fuzzing.h"
#include "fuzz/sizes.h"

namespace dropless::fuzz {

// Of the families of several ranks those whose case is one exchange or two, without a rank that is
// late: a few milliseconds, as a case of one rank takes. The rest takes ten times as long.
bool is_quick(const Family& family);

// The quick ones when neither stages nor families are named. Throws conformance::UsageError: an
// unknown stage or family, or none left.
std::vector<const Family*> families_of(const conformance::FuzzPlan& plan);

// The outcomes in the order of the cases; the same case may occur twice.
std::vector<conformance::Outcome> judged(conformance::Supervisor& supervisor,
                                         const std::vector<CaseId>& cases);

// The cases of all tiers: somebody chose them.
class ChosenByHand {
 public:
  explicit ChosenByHand(const std::vector<const Family*>& families);
  [[nodiscard]] bool contains(const CaseId& id) const;
  [[nodiscard]] bool contains_but_for_the_seed(const CaseId& id) const;

 private:
  std::set<std::string> whole_, without_seed_;
};

}  // namespace dropless::fuzz
