// SPDX-License-Identifier: Apache-2.0
// Choosing families and running their cases.
#include "fuzz/families.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

namespace dropless::fuzz {
namespace {

using conformance::Outcome;
using conformance::registry;
using conformance::UsageError;

void check_known(std::string_view kind, const std::vector<std::string>& wanted,
                 const std::set<std::string>& known) {
  for (const std::string& one : wanted) {
    if (!known.contains(one)) {
      throw UsageError(
          fmt::format("no {} '{}'; choose one of {}", kind, one, fmt::join(known, ", ")));
    }
  }
}

bool needs_ranks(const Family& family) {
  return std::any_of(family.parameters.begin(), family.parameters.end(),
                     [](const conformance::Parameter& one) { return one.name == "ranks"; });
}

std::string without_seed(CaseId id) {
  std::erase_if(id.values, [](const auto& value) { return value.first == "seed"; });
  return id.text();
}

}  // namespace

bool is_quick(const Family& family) {
  static const std::set<std::string> quick = {
      "exchange.plan",          "exchange.capacity",          "exchange.dispatch",
      "exchange.combine",       "exchange.dispatch_backward", "exchange.combine_backward",
      "exchange.adjoint",       "exchange.overflow",          "exchange.parity",
      "exchange.open_refusals", "exchange.call_refusals"};
  return !needs_ranks(family) || quick.contains(family.name);
}

std::vector<const Family*> families_of(const conformance::FuzzPlan& plan) {
  std::set<std::string> stages, names;
  for (const Family& family : registry().families()) {
    stages.insert(family.stage()), names.insert(family.name);
  }
  check_known("stage", plan.stages, stages);
  check_known("family", plan.families, names);
  const auto wanted = [](const std::vector<std::string>& list, const std::string& one) {
    return list.empty() || std::find(list.begin(), list.end(), one) != list.end();
  };
  const bool anything = plan.stages.empty() && plan.families.empty();
  std::vector<const Family*> chosen;
  for (const Family& family : registry().families()) {
    if (anything && !is_quick(family)) continue;
    if (wanted(plan.stages, family.stage()) && wanted(plan.families, family.name)) {
      chosen.push_back(&family);
    }
  }
  if (chosen.empty()) throw UsageError("no family is left by --stage and --family together");
  return chosen;
}

std::vector<Outcome> judged(conformance::Supervisor& supervisor, const std::vector<CaseId>& cases) {
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

ChosenByHand::ChosenByHand(const std::vector<const Family*>& families) {
  using conformance::Tier;
  for (const Family* family : families) {
    for (const Tier tier : {Tier::smoke, Tier::standard, Tier::full}) {
      for (conformance::Values& values : family->select(tier)) {
        const CaseId id{family->name, std::move(values)};
        whole_.insert(id.text()), without_seed_.insert(without_seed(id));
      }
    }
  }
}

bool ChosenByHand::contains(const CaseId& id) const {
  return whole_.contains(id.text());
}

bool ChosenByHand::contains_but_for_the_seed(const CaseId& id) const {
  return without_seed_.contains(without_seed(id));
}

}  // namespace dropless::fuzz
