// SPDX-License-Identifier: Apache-2.0
// One fuzz run: draw a batch of cases, have them judged, save what failed, make one of each kind
// small; then say what was drawn.
//
//     const FuzzReport report = fuzz(families, plan, {run, run_few, "cpu 0.1.0"}, corpus);
//
// The cases are a function of the families and the seed: a run by number of cases always judges the
// same ones, a run by time a beginning of the same sequence.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "conformance/runner/fuzzing.h"
#include "fuzz/corpus.h"
#include "fuzz/shrinking.h"

namespace dropless::fuzz {

using conformance::FuzzPlan;
using conformance::FuzzReport;

struct Runners {
  RunCases batch;         // many cases, the ordinary time limit
  RunCases few;           // candidates of shrinking, a short one
  std::size_t width = 8;  // of them at a time
  std::string who;        // implementation, for the notes in the corpus
};

// Throws conformance::UsageError when the corpus cannot be written, and what the runners throw.
FuzzReport fuzz(const std::vector<const Family*>& families, const FuzzPlan& plan,
                const Runners& runners, Corpus& corpus,
                const std::function<void(const FuzzReport&)>& progress = {});

}  // namespace dropless::fuzz
