// SPDX-License-Identifier: Apache-2.0
// dropless list: the cases that a run would consist of, their numbers, or the clauses.
#include <fmt/format.h>

#include <map>
#include <memory>
#include <ostream>

#include "conformance/cases/models.h"
#include "conformance/clauses/clauses.h"
#include "conformance/command_line/session.h"
#include "conformance/runner/outcome.h"

namespace dropless::conformance {
namespace {

struct ListOptions {
  SelectionOptions selection;
  ImplementationOptions implementation;  // --models only
  bool count = false, clauses = false;
};

void list_clauses(std::ostream& out, const Wishes& wishes) {
  std::size_t listed = 0;
  for (const Clause& clause : clauses()) {
    const auto& stages = wishes.stages;
    if (!stages.empty() && std::find(stages.begin(), stages.end(), clause.stage) == stages.end()) {
      continue;
    }
    out << fmt::format("{:<17} {:<9} {:<12} {}\n", clause.id, clause.kind, clause.accuracy_class,
                       clause.title);
    ++listed;
  }
  if (listed == 0) {
    throw UsageError(fmt::format("no clause of stage {}; see dropless list --clauses",
                                 fmt::join(wishes.stages, ", ")));
  }
}

// Cases per stage, cumulated over the tiers. A tier in which a wish leaves nothing counts 0.
void list_counts(std::ostream& out, Wishes wishes) {
  constexpr Tier tiers[] = {Tier::smoke, Tier::standard, Tier::full};
  std::vector<std::string> stages;
  std::map<std::pair<std::string, Tier>, std::size_t> counts;
  for (const Tier tier : tiers) {
    wishes.tier = tier;
    std::vector<CaseId> cases;
    try {
      cases = chosen_cases(registry(), wishes);
    } catch (const UsageError&) {
      if (tier == Tier::full) throw;
    }
    for (const CaseId& id : cases) {
      const std::string stage = stage_of(id);
      if (std::find(stages.begin(), stages.end(), stage) == stages.end()) stages.push_back(stage);
      ++counts[{stage, tier}];
    }
  }
  out << fmt::format("{:<14} {:>9} {:>9} {:>9}\n", "stage", "smoke", "standard", "full");
  std::size_t sums[3] = {};
  for (const std::string& stage : stages) {
    out << fmt::format("{:<14}", stage);
    for (const Tier tier : tiers) {
      const std::size_t count = counts[{stage, tier}];
      sums[static_cast<std::size_t>(tier)] += count;
      out << fmt::format(" {:>9}", count);
    }
    out << '\n';
  }
  out << fmt::format("{:<14} {:>9} {:>9} {:>9}\n", "all", sums[0], sums[1], sums[2]);
}

}  // namespace

void add_list(CLI::App& app, Session& session) {
  auto options = std::make_shared<ListOptions>();
  CLI::App* command = app.add_subcommand("list", "List cases, count them, or list the clauses");
  declare(*command, options->selection);
  declare_models(*command, options->implementation);
  command->add_flag("--count", options->count, "numbers by stage and tier instead of ids");
  command->add_flag("--clauses", options->clauses, "clauses instead of cases");
  command->callback([options, &session] {
    if (options->implementation.models) load_models(*options->implementation.models);
    const Wishes wishes = options->selection.read(Tier::standard);
    if (options->count && options->clauses) {
      throw UsageError("--count and --clauses exclude each other; leave one out");
    }
    if (options->clauses) {
      list_clauses(session.out, wishes);
    } else if (options->count) {
      list_counts(session.out, wishes);
    } else {
      for (const CaseId& id : chosen_cases(registry(), wishes)) session.out << id.text() << '\n';
    }
  });
}

}  // namespace dropless::conformance
