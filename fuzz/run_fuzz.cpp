// SPDX-License-Identifier: Apache-2.0
// A fuzz run over the registered families in the suite's worker processes.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "fuzz/campaign.h"
#include "fuzz/drawing.h"

namespace dropless::conformance {
namespace {

void check_known(std::string_view kind, const std::vector<std::string>& wanted,
                 const std::set<std::string>& known) {
  for (const std::string& one : wanted) {
    if (!known.contains(one)) {
      throw UsageError(
          fmt::format("no {} '{}'; choose one of {}", kind, one, fmt::join(known, ", ")));
    }
  }
}

std::vector<const Family*> families_of(const FuzzPlan& plan) {
  std::set<std::string> stages, names;
  for (const Family& family : registry().families()) {
    stages.insert(family.stage()), names.insert(family.name);
  }
  check_known("stage", plan.stages, stages);
  check_known("family", plan.families, names);
  const auto wanted = [](const std::vector<std::string>& list, const std::string& one) {
    return list.empty() || std::find(list.begin(), list.end(), one) != list.end();
  };
  std::vector<const Family*> chosen;
  for (const Family& family : registry().families()) {
    if (wanted(plan.stages, family.stage()) && wanted(plan.families, family.name)) {
      chosen.push_back(&family);
    }
  }
  if (chosen.empty()) throw UsageError("no family is left by --stage and --family together");
  return chosen;
}

// The outcomes in the order of the cases; the same case may occur twice.
std::vector<Outcome> judged(Supervisor& supervisor, const std::vector<CaseId>& cases) {
  std::map<std::string, Outcome> by_id;
  std::vector<CaseId> once;
  for (const CaseId& id : cases) {
    if (by_id.try_emplace(id.text()).second) once.push_back(id);
  }
  supervisor.run(once, [&](const Outcome& outcome) { by_id[outcome.id.text()] = outcome; });
  std::vector<Outcome> outcomes;
  for (const CaseId& id : cases) outcomes.push_back(by_id.at(id.text()));
  return outcomes;
}

}  // namespace

FuzzReport run_fuzz(const FuzzPlan& plan, const SupervisorOptions& options,
                    const std::function<void(const FuzzReport&)>& progress) {
  const std::vector<const Family*> families = families_of(plan);
  SupervisorOptions quick = options;  // a candidate that hangs must not eat the budget
  quick.timeout_seconds = std::min(options.timeout_seconds, std::max(plan.shrink_seconds / 8, 1.0));
  Supervisor supervisor(options), for_candidates(quick);
  const auto description = supervisor.probe();
  (void)for_candidates.probe();
  fuzz::Runners runners;
  runners.batch = [&](const std::vector<CaseId>& cases) { return judged(supervisor, cases); };
  runners.few = [&](const std::vector<CaseId>& cases) { return judged(for_candidates, cases); };
  runners.width = std::max<std::size_t>(4, 2 * static_cast<std::size_t>(options.jobs));
  runners.who = fmt::format("{} {}", description.at("name").get<std::string>(),
                            description.at("version").get<std::string>());
  std::string file = description.at("name").get<std::string>();
  for (char& c : file) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '-';
  }
  fuzz::Corpus corpus(plan.out, file.substr(0, 60));
  return fuzz::fuzz(families, plan, runners, corpus, progress);
}

std::vector<CaseId> fuzz_cases(const FuzzPlan& plan) {
  const rc::Gen<CaseId> any = fuzz::any_case(families_of(plan));
  rc::Random random(plan.seed);
  std::vector<CaseId> cases;
  for (std::int64_t i = 0; i < plan.cases.value_or(0); ++i) {
    cases.push_back(any(random.split()).value());
  }
  return cases;
}

}  // namespace dropless::conformance
