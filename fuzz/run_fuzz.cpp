// SPDX-License-Identifier: Apache-2.0
// A fuzz run over the registered families in the suite's worker processes.
#include <fmt/format.h>

#include <algorithm>

#include "fuzz/campaign.h"
#include "fuzz/drawing.h"
#include "fuzz/families.h"

namespace dropless::conformance {
FuzzReport run_fuzz(const FuzzPlan& plan, const SupervisorOptions& options,
                    const std::function<void(const FuzzReport&)>& progress) {
  const std::vector<const Family*> families = fuzz::families_of(plan);
  SupervisorOptions quick = options;  // a candidate that hangs must not eat the budget
  quick.timeout_seconds = std::min(options.timeout_seconds, std::max(plan.shrink_seconds / 8, 1.0));
  Supervisor supervisor(options), for_candidates(quick);
  const auto description = supervisor.probe();
  (void)for_candidates.probe();
  fuzz::Runners runners;
  runners.batch = [&](const std::vector<CaseId>& cases) { return fuzz::judged(supervisor, cases); };
  runners.few = [&](const std::vector<CaseId>& cases) {
    return fuzz::judged(for_candidates, cases);
  };
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
  const rc::Gen<CaseId> any = fuzz::any_case(fuzz::families_of(plan));
  rc::Random random(plan.seed);
  std::vector<CaseId> cases;
  for (std::int64_t i = 0; i < plan.cases.value_or(0); ++i) {
    cases.push_back(any(random.split()).value());
  }
  return cases;
}

}  // namespace dropless::conformance
