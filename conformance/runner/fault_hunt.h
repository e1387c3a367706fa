// SPDX-License-Identifier: Apache-2.0
// Does the suite find a planted fault? Runs the cases that should see it, the most telling ones
// first, until one fails.
#pragma once

#include <atomic>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "conformance/adapters/sources.h"
#include "conformance/cases/family.h"
#include "conformance/runner/outcome.h"

namespace dropless::conformance {

struct HuntOptions {
  std::vector<Tier> tiers = {Tier::smoke, Tier::standard};  // each only when those before found
                                                            // nothing
  bool alone = false;       // only cases of the first named clause, and only it can kill
  bool every_case = false;  // go on after the first kill, to learn which clauses see the fault
  // Go on until a second clause has seen it: a clause is needed when only it sees a fault. In the
  // tier of the kill also until the clause that is named first has seen it.
  bool until_two_clauses = false;
  int threads = 1;
  double timeout_seconds = 60;
  const std::atomic<int>* interrupt = nullptr;
};

struct Hunt {
  FaultEntry fault;
  std::optional<Outcome> killer;  // first case that failed, crashed or hung
  std::string clause;             // that its first failure names, or "crash", "timeout"
  bool named = false;             // the clause is one of those that the fault's entry names
  Tier tier = Tier::smoke;        // of the kill, or the last that was tried
  std::size_t cases = 0;          // run until then
  std::size_t not_judged = 0;     // of them not supported or mistrusted: no kill, but no pass
  std::size_t accusations = 0;    // cases that fail without the fault too: no kill, a broken suite
  std::set<std::string> clauses;  // every clause that a failure named, or "crash", "timeout"
  double seconds = 0;
};

// The cases of a fault in a tier (without the tiers below), in the order in which they are
// run: families of its stage that can name the first expected clause, those that can name another
// one, other families of its stage, foreign families that can name one. Inside such a class
// families take turns, and the cases of a family come in an order that varies many parameters
// early, every second one for the sake of a rare value.
std::vector<CaseId> cases_for(const Registry& registry, const FaultEntry& fault, Tier tier,
                              bool alone);

// A kill is a case that fails, crashes or hangs in two runs, and passes without the fault
// ("control:<name>": the same profile, nothing planted); NOT_SUPPORTED, MISTRUSTED and flaky are
// none. May be called from several threads. Throws UsageError (the fault cannot be loaded) and
// Interrupted.
Hunt hunt(const FaultEntry& fault, const HuntOptions& options);

// Why clauses stay although no fault needs them, by clause; said where the faults are.
using ClauseReasons = std::map<std::string, std::string>;
void register_clause_reasons(ClauseReasons reasons);
const ClauseReasons& clause_reasons();

}  // namespace dropless::conformance
