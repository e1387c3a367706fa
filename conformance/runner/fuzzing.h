// SPDX-License-Identifier: Apache-2.0
// What a fuzz run is asked for and what comes back. The generators live above the suite (fuzz/);
// this is all that the command line knows about them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "conformance/adapters/sources.h"
#include "conformance/runner/supervisor.h"

namespace dropless::conformance {

struct FuzzPlan {
  std::uint64_t seed = 1;
  std::optional<std::int64_t> cases;          // one of the two, or both: whatever ends first
  std::optional<double> seconds;              // of judging; shrinking has its own time
  double shrink_seconds = 20;                 // for one failure; 0: none is shrunk
  int kinds = 5;                              // of failures, then the run stops
  std::vector<std::string> stages, families;  // empty: all
  std::string out;                            // folder for failing cases
  bool new_values = false;  // faults: only cases that differ from the tiers in more than the seed
};

// One kind of failure: a status, and the clause that was broken first.
struct FuzzFinding {
  std::string kind;          // "fail GROUPED_GEMM-5"
  std::int64_t number = 0;   // of its first case, counted from 1
  std::int64_t cases = 0;    // of this kind
  CaseId first;              // its first case
  Outcome outcome;           // of the smallest case that fails in the same way
  int steps = 0;             // of shrinking that succeeded
  int candidates = 0;        // that were run for it
  bool out_of_time = false;  // a smaller one may exist
};

// How many of the cases labelled `among` had `label`, and whether that was enough.
struct FuzzShare {
  std::string label, among;
  std::int64_t count = 0, of = 0;
  double required = 0;
  bool met = false;
};

struct FuzzReport {
  std::vector<FuzzFinding> findings;
  std::vector<FuzzShare> shares;  // all that are required
  std::map<Status, std::int64_t> statuses;
  std::int64_t cases = 0, checks = 0;
  double seconds = 0;         // drawing and judging
  double shrink_seconds = 0;  // making failures small
  bool stopped = false;       // by the number of kinds
  std::string corpus;         // file with the failing cases; it exists when there are some

  [[nodiscard]] bool shares_met() const {
    return std::all_of(shares.begin(), shares.end(),
                       [](const FuzzShare& share) { return share.met; });
  }
  [[nodiscard]] std::int64_t count(Status status) const {
    const auto found = statuses.find(status);
    return found == statuses.end() ? 0 : found->second;
  }
};

// Defined in fuzz/. Throws UsageError: an unknown stage or family, an implementation that cannot
// be loaded, a folder that cannot be written; Interrupted.
FuzzReport run_fuzz(const FuzzPlan& plan, const SupervisorOptions& options,
                    const std::function<void(const FuzzReport&)>& progress);

// The cases that a run by `plan.cases` (needed) judges, in their order.
std::vector<CaseId> fuzz_cases(const FuzzPlan& plan);

// How one planted fault fared under random cases of its stage, those of the tiers left out.
struct FuzzedFault {
  FaultEntry fault;
  std::optional<Outcome> killer;  // the first case that fails with it and passes without, smaller
                                  // where that was asked for
  std::optional<CaseId> first;    // that case as it was drawn
  bool new_values = false;        // it differs from all cases of the tiers in more than the seed
  std::int64_t cases = 0;         // judged until then
  std::int64_t not_judged = 0;    // of them not supported or mistrusted
  std::int64_t accusations = 0;   // of them failing without the fault too: no kill
  double seconds = 0;
};

// Every fault under the same `plan.cases` (needed) cases of its stage, `options.jobs` faults at a
// time; `options.worker.implementation` is not used. `known` gets the results in the order of the
// faults, as soon as they are known. Throws like run_fuzz.
std::vector<FuzzedFault> fuzz_faults(const FuzzPlan& plan, const std::vector<FaultEntry>& faults,
                                     const SupervisorOptions& options,
                                     const std::function<void(const FuzzedFault&)>& known);

}  // namespace dropless::conformance
