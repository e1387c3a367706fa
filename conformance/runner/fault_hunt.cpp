// SPDX-License-Identifier: Apache-2.0
// Running the cases of a fault until one kills it.
#include "conformance/runner/fault_hunt.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <set>

#include "conformance/runner/supervisor.h"

namespace dropless::conformance {
namespace {

struct Enough {};  // thrown by the observer: the supervisor's workers end with its scope

std::string killing_clause(const Outcome& outcome) {
  const Verdict& verdict = outcome.verdict;
  if (verdict.failures.empty()) return std::string(name(verdict.status));
  return verdict.failures.front().clause;
}

// Whether cases pass when nothing is planted, by profile: most faults share the default one.
class Control {
 public:
  bool passes(const SupervisorOptions& faulty, const FaultEntry& fault, const std::string& profile,
              const CaseId& id) {
    const std::string key = profile + id.text();
    {
      const std::lock_guard lock(mutex_);
      if (const auto known = known_.find(key); known != known_.end()) return known->second;
    }
    SupervisorOptions options = faulty;
    options.worker.implementation = "control:" + fault.name;
    Supervisor supervisor(options);
    supervisor.probe();
    bool passed = false;
    supervisor.run(
        {id}, [&](const Outcome& outcome) { passed = outcome.verdict.status == Status::pass; });
    const std::lock_guard lock(mutex_);
    known_[key] = passed;
    return passed;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, bool> known_;
};

Control& control() {
  static Control of_process;
  return of_process;
}

class Hunter {
 public:
  Hunter(const FaultEntry& fault, const HuntOptions& options) : options_(options) {
    hunt_.fault = fault;
  }

  Hunt go() {
    const auto start = std::chrono::steady_clock::now();
    for (const Tier tier : options_.tiers) {
      hunt_.tier = hunt_.killer ? hunt_.tier : tier;
      const std::vector<CaseId> cases = cases_for(registry(), hunt_.fault, tier, options_.alone);
      if (!cases.empty()) run(cases, tier);
      if (is_killed_as_asked()) break;
    }
    hunt_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return std::move(hunt_);
  }

 private:
  [[nodiscard]] bool is_killed_as_asked() const {
    if (!hunt_.killer || options_.every_case) return false;
    return !options_.until_two_clauses || hunt_.clauses.size() > 1;
  }
  // Inside a tier: the clause that is named first gets its turn too, before two others settle it.
  [[nodiscard]] bool is_enough() const {
    return is_killed_as_asked() &&
           (!options_.until_two_clauses || hunt_.clauses.contains(hunt_.fault.clauses.front()));
  }

  void run(const std::vector<CaseId>& cases, Tier tier) {
    SupervisorOptions options;
    options.worker = {"fault:" + hunt_.fault.name, "", options_.threads};
    options.timeout_seconds = options_.timeout_seconds;
    options.interrupt = options_.interrupt;
    Supervisor supervisor(options);
    const std::string profile = supervisor.probe().at("profile").dump();
    try {
      supervisor.run(cases, [&](const Outcome& outcome) {
        note(outcome, tier,
             [&] { return control().passes(options, hunt_.fault, profile, outcome.id); });
        if (is_enough()) throw Enough{};
      });
    } catch (const Enough&) {
    }
  }

  template <class Passes>
  void note(const Outcome& outcome, Tier tier, Passes passes_without_fault) {
    ++hunt_.cases;
    const Status status = outcome.verdict.status;
    if (status == Status::not_supported || status == Status::mistrusted) ++hunt_.not_judged;
    if (status != Status::fail && status != Status::crash && status != Status::timeout) return;
    if (!passes_without_fault()) {
      ++hunt_.accusations;
      return;
    }
    std::set<std::string> broken;
    for (const Failure& failure : outcome.verdict.failures) broken.insert(failure.clause);
    if (broken.empty()) broken.insert(std::string(name(status)));
    hunt_.clauses.insert(broken.begin(), broken.end());
    // A case may break several clauses; a named one is the telling one, the first before others.
    std::string clause = killing_clause(outcome);
    const auto& expected = hunt_.fault.clauses;
    const auto telling = std::find_if(expected.begin(), expected.end(),
                                      [&](const std::string& c) { return broken.contains(c); });
    if (telling != expected.end()) clause = *telling;
    if (options_.alone && clause != hunt_.fault.clauses.front()) return;
    if (hunt_.killer) return;
    hunt_.killer = outcome;
    hunt_.tier = tier;
    hunt_.clause = clause;
    hunt_.named = telling != expected.end();
  }

  const HuntOptions& options_;
  Hunt hunt_;
};

ClauseReasons& reasons_of_process() {
  static ClauseReasons reasons;
  return reasons;
}

}  // namespace

Hunt hunt(const FaultEntry& fault, const HuntOptions& options) {
  return Hunter(fault, options).go();
}

void register_clause_reasons(ClauseReasons reasons) {
  reasons_of_process() = std::move(reasons);
}

const ClauseReasons& clause_reasons() {
  return reasons_of_process();
}

}  // namespace dropless::conformance
