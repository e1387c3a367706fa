// SPDX-License-Identifier: Apache-2.0
// Tables of the kill score.
#include "conformance/command_line/fault_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "conformance/clauses/clauses.h"
#include "conformance/report/failure_text.h"

namespace dropless::conformance {
namespace {

std::vector<std::string> stages_of(const std::vector<FaultEntry>& faults) {
  std::vector<std::string> stages;
  for (const FaultEntry& fault : faults) {
    if (std::find(stages.begin(), stages.end(), fault.stage()) == stages.end()) {
      stages.push_back(fault.stage());
    }
  }
  return stages;
}

// Columns: stage, faults, one per tier, survived, gpu, ranks.
std::string row(const std::string& stage, const std::vector<Hunt>& hunts,
                const std::vector<FaultEntry>& faults, const std::vector<Tier>& tiers) {
  const auto mine = [&](const FaultEntry& fault) {
    return stage == "all" || fault.stage() == stage;
  };
  std::map<Tier, std::size_t> killed;
  std::size_t visible = 0, survived = 0, cases = 0, gpu = 0, ranks = 0;
  double seconds = 0;
  for (const Hunt& hunt : hunts) {
    if (!mine(hunt.fault)) continue;
    ++visible;
    cases += hunt.cases;
    seconds += hunt.seconds;
    hunt.killer ? ++killed[hunt.tier] : ++survived;
  }
  for (const FaultEntry& fault : faults) {
    if (!mine(fault)) continue;
    gpu += fault.visibility == Visibility::gpu ? 1 : 0;
    ranks += fault.visibility == Visibility::ranks ? 1 : 0;
  }
  std::string line = fmt::format("{:<14} {:>6}", stage, visible);
  for (const Tier tier : tiers) line += fmt::format(" {:>9}", killed[tier]);
  return line +
         fmt::format(" {:>9} {:>7} {:>7.1f} {:>6} {:>6}\n", survived, cases, seconds, gpu, ranks);
}

}  // namespace

std::string hunt_line(const Hunt& hunt) {
  const std::string& fault = hunt.fault.name;
  if (!hunt.killer) {
    const std::string more =
        hunt.not_judged > 0 ? fmt::format(", {} of them not judged", hunt.not_judged) : "";
    return fmt::format("SURVIVED {:<46} {} cases up to {}{}, {:.1f} s\n", fault, hunt.cases,
                       name(hunt.tier), more, hunt.seconds);
  }
  return fmt::format("killed   {:<46} {:<16}{} {:<8} {:>4} case{} {:>5.1f} s\n", fault, hunt.clause,
                     hunt.named ? ' ' : '*', name(hunt.tier), hunt.cases,
                     hunt.cases == 1 ? ", " : "s,", hunt.seconds);
}

std::string hunt_explanation(const Hunt& hunt) {
  const FaultEntry& fault = hunt.fault;
  std::string text =
      fmt::format("  {} ({})\n  seen with: {}\n  clauses that should name it: {}\n", fault.symptom,
                  fault.provenance, fault.trigger, fmt::join(fault.clauses, ", "));
  if (!hunt.killer) return text + '\n';
  return text + failure_text(*hunt.killer, {"fault:" + fault.name, "", 0}) + '\n';
}

std::string score_table(const std::vector<Hunt>& hunts, const std::vector<FaultEntry>& faults,
                        const std::vector<Tier>& tiers) {
  std::string text = fmt::format("{:<14} {:>6}", "stage", "faults");
  for (const Tier tier : tiers) text += fmt::format(" {:>9}", name(tier));
  text +=
      fmt::format(" {:>9} {:>7} {:>7} {:>6} {:>6}\n", "survived", "cases", "s", "+gpu", "+ranks");
  for (const std::string& stage : stages_of(faults)) text += row(stage, hunts, faults, tiers);
  text += row("all", hunts, faults, tiers);
  const auto unnamed = std::count_if(hunts.begin(), hunts.end(),
                                     [](const Hunt& hunt) { return hunt.killer && !hunt.named; });
  std::size_t accusations = 0;
  for (const Hunt& hunt : hunts) accusations += hunt.accusations;
  if (accusations > 0) {
    text += fmt::format("{} times a case failed without the fault too: no kill\n", accusations);
  }
  if (unnamed > 0) text += fmt::format("* killed by another clause than named: {}\n", unnamed);
  return text;
}

std::string clause_table(const std::vector<Hunt>& hunts) {
  std::string text = fmt::format("{:<17} {:>6} {:>10}\n", "clause", "faults", "alone");
  for (const Clause& clause : clauses()) {
    std::size_t seen = 0;
    std::vector<std::string> alone;
    for (const Hunt& hunt : hunts) {
      if (!hunt.clauses.contains(clause.id)) continue;
      ++seen;
      if (hunt.clauses.size() == 1) alone.push_back(hunt.fault.name);
    }
    text += fmt::format("{:<17} {:>6} {:>10}  {}\n", clause.id, seen, alone.size(),
                        alone.empty() ? "" : alone.front());
  }
  return text;
}

std::string last_line(const std::vector<Hunt>& hunts) {
  std::size_t killed = 0;
  std::vector<std::string> survivors;
  for (const Hunt& hunt : hunts) {
    killed += hunt.killer ? 1 : 0;
    if (!hunt.killer) survivors.push_back(hunt.fault.name);
  }
  std::string text = fmt::format(
      "{} of {} faults killed ({:.1f} %)", killed, hunts.size(),
      hunts.empty() ? 0.0
                    : 100.0 * static_cast<double>(killed) / static_cast<double>(hunts.size()));
  if (!survivors.empty()) text += fmt::format("; survivors: {}", fmt::join(survivors, ", "));
  const auto slowest =
      std::max_element(hunts.begin(), hunts.end(),
                       [](const Hunt& a, const Hunt& b) { return a.seconds < b.seconds; });
  if (slowest != hunts.end()) {
    text += fmt::format("; slowest: {} in {:.1f} s", slowest->fault.name, slowest->seconds);
  }
  return text + "\n";
}

std::string fault_list(const std::vector<FaultEntry>& faults) {
  std::string text;
  for (const FaultEntry& fault : faults) {
    text += fmt::format("{:<46} {}\n    {}; {}\n", fault.name, fault.provenance, fault.symptom,
                        fault.trigger);
    text += fault.visibility == Visibility::cpu
                ? fmt::format("    {}\n", fmt::join(fault.clauses, ", "))
                : fmt::format("    needs {}: {}\n", name(fault.visibility), fault.reason);
  }
  return text;
}

}  // namespace dropless::conformance
