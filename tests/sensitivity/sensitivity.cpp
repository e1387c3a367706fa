// SPDX-License-Identifier: Apache-2.0
// Trying changes of every input of every family until the verdict turns.
#include "conformance/runner/sensitivity.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "conformance/cases/case_run.h"
#include "conformance/ranks/rank_group.h"
#include "conformance/ranks/thread_ranks.h"
#include "conformance/runner/parallel_campaign.h"
#include "conformance/runner/supervisor.h"
#include "tests/sensitivity/exemptions.h"
#include "tests/sensitivity/perturbed.h"

namespace dropless::conformance {
namespace {

using sensitivity::Perturbation;
using sensitivity::Perturbed;

// The first tier that gives a case, so that every family has one.
std::vector<CaseId> cases_of(const Family& family, Tier tier) {
  std::vector<CaseId> cases;
  for (const Tier step : {Tier::smoke, Tier::standard, Tier::full}) {
    if (step > tier && !cases.empty()) break;
    for (Values& values : family.select(step)) cases.push_back({family.name, std::move(values)});
  }
  return cases;
}

// "*" stands for inputs that do not flip; one that is named and flips is a mistake of the list.
bool answers(const sensitivity::Exemption& exemption, const Sensitivity& input) {
  if (exemption.family != input.family) return false;
  return exemption.input == "*" ? !input.flips : exemption.input == input.input;
}

std::string exemption_of(const Sensitivity& input) {
  for (const sensitivity::Exemption& known : sensitivity::exemptions()) {
    if (answers(known, input)) return known.reason;
  }
  return "";
}

// Inputs that need not flip are tried a few times only, to see whether their exemption still holds.
constexpr std::int64_t tries_of_exempt = 2;

bool may_be_exempt(const Sensitivity& input) {
  Sensitivity still = input;
  still.flips = false;
  return !exemption_of(still).empty();
}

// All inputs of one family.
class Examination {
 public:
  Examination(const Family& family, const SensitivityPlan& plan) : family_(family), plan_(plan) {}

  void run() {
    // The cheapest case first: most inputs need no other.
    std::vector<Control> controls;
    for (const CaseId& id : cases_of(family_, plan_.tier)) {
      stop_if_interrupted();
      const Perturbed unchanged({});
      const Verdict verdict = verdict_on(unchanged, id);
      if (verdict.status == Status::pass)
        controls.push_back({id, verdict.seconds, unchanged.seen()});
    }
    std::stable_sort(controls.begin(), controls.end(),
                     [](const Control& a, const Control& b) { return a.seconds < b.seconds; });
    for (const Control& control : controls) {
      any_ = true;
      for (const auto& [name, seen] : control.seen) {
        Sensitivity& input = inputs_[name];
        if (input.flips) continue;
        input.family = family_.name, input.input = name;
        examine(input, seen, control.id);
      }
    }
    for (auto& [name, input] : inputs_) input.reason = exemption_of(input);
  }

  [[nodiscard]] bool any() const { return any_; }
  [[nodiscard]] const std::map<std::string, Sensitivity>& inputs() const { return inputs_; }

 private:
  struct Control {
    CaseId id;
    double seconds;
    std::map<std::string, sensitivity::Seen> seen;
  };

  void stop_if_interrupted() const {
    if (plan_.interrupt != nullptr && *plan_.interrupt != 0) throw Interrupted(*plan_.interrupt);
  }

  void examine(Sensitivity& input, const sensitivity::Seen& seen, const CaseId& id) {
    const bool exempt = may_be_exempt(input);
    std::int64_t tries = 0;
    std::set<int> calls = {0};
    if (seen.calls > 1) calls.insert({1, 2, seen.calls});
    for (const sensitivity::Edit& edit : sensitivity::edits_of(seen.role)) {
      for (const int call : calls) {
        stop_if_interrupted();
        if (exempt && (++tries > tries_of_exempt || input.attempts >= tries_of_exempt)) return;
        if (!flips(input, {.edit = edit.name, .call = call}, id) &&
            !(is_collective(family_) &&
              flips(input, {.edit = edit.name, .call = call, .first_rank = true}, id))) {
          continue;
        }
        input.flips = true, input.edit = edit.name, input.call = call, input.case_id = id.text();
        return;
      }
    }
  }

  // Ranks are threads of this process.
  [[nodiscard]] Verdict verdict_on(const Perturbed& table, const CaseId& id) const {
    const auto play = is_collective(family_) ? run_case_over_threads : run_case;
    return play(table.table(), family_, id, {});
  }

  // A refused change proves nothing: whoever refuses everything would pass.
  bool flips(Sensitivity& input, Perturbation change, const CaseId& id) const {
    const std::size_t dot = input.input.find('.');
    change.operation = input.input.substr(0, dot), change.input = input.input.substr(dot + 1);
    Perturbed perturbed(std::move(change));
    const Verdict verdict = verdict_on(perturbed, id);
    if (perturbed.changed() == 0 || perturbed.refused() > 0) return false;
    ++input.attempts;
    return verdict.status == Status::fail;
  }

  const Family& family_;
  const SensitivityPlan& plan_;
  std::map<std::string, Sensitivity> inputs_;
  bool any_ = false;
};

bool contains(const std::vector<std::string>& list, const std::string& item) {
  return std::find(list.begin(), list.end(), item) != list.end();
}

std::vector<const Family*> chosen(const SensitivityPlan& plan) {
  std::set<std::string> stages;
  std::vector<const Family*> out;
  for (const Family& family : registry().families()) {
    stages.insert(family.stage());
    const bool all = plan.stages.empty() && plan.families.empty();
    if (all || contains(plan.stages, family.stage()) || contains(plan.families, family.name)) {
      out.push_back(&family);
    }
  }
  for (const std::string& stage : plan.stages) {
    if (stages.count(stage) == 0) throw UsageError(fmt::format("no stage '{}'", stage));
  }
  for (const std::string& name : plan.families) {
    if (registry().find(name) == nullptr) {
      throw UsageError(fmt::format("no case family '{}'; see dropless list", name));
    }
  }
  return out;
}

// Exemptions of the chosen families that nothing answers to.
std::vector<std::string> stale_exemptions(const std::vector<const Family*>& families,
                                          const std::vector<Sensitivity>& inputs) {
  std::vector<std::string> stale;
  for (const sensitivity::Exemption& known : sensitivity::exemptions()) {
    const bool concerned = std::any_of(families.begin(), families.end(), [&](const Family* family) {
      return family->name == known.family;
    });
    const bool met = std::any_of(inputs.begin(), inputs.end(),
                                 [&](const Sensitivity& input) { return answers(known, input); });
    if (concerned && !met) stale.push_back(known.family + " " + known.input);
  }
  return stale;
}

}  // namespace

bool SensitivityReport::good() const {
  return !inputs.empty() && no_case.empty() && stale.empty() &&
         std::all_of(inputs.begin(), inputs.end(),
                     [](const Sensitivity& input) { return input.as_demanded(); });
}

SensitivityReport run_sensitivity(const SensitivityPlan& plan) {
  const std::vector<const Family*> families = chosen(plan);
  std::vector<Examination> examinations;
  for (const Family* family : families) examinations.emplace_back(*family, plan);
  parallel_campaign(examinations.size(), plan.jobs, [&](std::size_t i) { examinations[i].run(); });
  SensitivityReport report;
  for (std::size_t i = 0; i < families.size(); ++i) {
    if (!examinations[i].any()) report.no_case.push_back(families[i]->name);
    for (const auto& [name, input] : examinations[i].inputs()) {
      report.inputs.push_back(input);
      report.attempts += input.attempts;
    }
  }
  report.stale = stale_exemptions(families, report.inputs);
  return report;
}

}  // namespace dropless::conformance
