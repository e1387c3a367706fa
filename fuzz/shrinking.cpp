// SPDX-License-Identifier: Apache-2.0
// The descent.
#include "fuzz/shrinking.h"

#include <set>

namespace dropless::fuzz {
namespace {

using conformance::Outcome;

using Clock = std::chrono::steady_clock;

class Descent {
 public:
  Descent(const RunCases& run, std::size_t width, std::chrono::duration<double> budget)
      : run_(run),
        width_(width),
        end_(Clock::now() + std::chrono::duration_cast<Clock::duration>(budget)) {}

  Shrunk from(rc::Shrinkable<CaseId> current, Outcome outcome) {
    Shrunk result;
    result.outcome = std::move(outcome);
    kind_ = kind_of(result.outcome);
    seen_.insert(current.value().text());
    while (step(current, result)) ++result.steps;
    return result;
  }

 private:
  // One simpler case that fails in the same way; false when there is none, or no time left.
  bool step(rc::Shrinkable<CaseId>& current, Shrunk& result) {
    auto candidates = current.shrinks();
    for (;;) {
      std::vector<rc::Shrinkable<CaseId>> some;
      while (some.size() < width_) {
        auto next = candidates.next();
        if (!next) break;
        if (seen_.insert(next->value().text()).second) some.push_back(*next);
      }
      if (some.empty()) return false;
      if (Clock::now() >= end_) {
        result.out_of_time = true;
        return false;
      }
      std::vector<CaseId> cases;
      for (const auto& one : some) cases.push_back(one.value());
      const std::vector<Outcome> outcomes = run_(cases);
      result.candidates += static_cast<int>(cases.size());
      for (std::size_t i = 0; i < outcomes.size(); ++i) {
        if (kind_of(outcomes[i]) != kind_) continue;
        current = some[i];
        result.outcome = outcomes[i];
        return true;
      }
    }
  }

  const RunCases& run_;
  std::size_t width_;
  Clock::time_point end_;
  std::string kind_;
  std::set<std::string> seen_;
};

}  // namespace

std::string kind_of(const Outcome& outcome) {
  std::string kind(conformance::name(outcome.verdict.status));
  if (!outcome.verdict.failures.empty()) kind += " " + outcome.verdict.failures.front().clause;
  return kind;
}

Shrunk shrink(const rc::Shrinkable<CaseId>& failing, Outcome outcome, const RunCases& run,
              std::size_t width, std::chrono::duration<double> budget) {
  return Descent(run, width, budget).from(failing, std::move(outcome));
}

}  // namespace dropless::fuzz
