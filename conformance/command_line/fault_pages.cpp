// SPDX-License-Identifier: Apache-2.0
// Markdown of the kill score, and the pages that hold it.
#include "conformance/command_line/fault_pages.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>

#include "conformance/clauses/clauses.h"

namespace dropless::conformance {
namespace {

constexpr std::string_view opening = "<!-- faults: ", closing = "<!-- end of faults -->";
constexpr std::size_t shown = 3;  // faults in a cell

struct Count {
  std::size_t faults = 0, survived = 0, gpu = 0, ranks = 0;
  std::map<Tier, std::size_t> killed;
};

std::string row(const std::string& stage, const Count& count, const std::vector<Tier>& tiers) {
  std::string text = fmt::format("| {} | {} |", stage, count.faults);
  std::size_t killed = 0;
  for (const Tier tier : tiers) {  // a tier holds the ones before it
    killed += count.killed.contains(tier) ? count.killed.at(tier) : 0;
    const double share =
        count.faults == 0 ? 0
                          : 100.0 * static_cast<double>(killed) / static_cast<double>(count.faults);
    text += count.faults == 0 ? " - |" : fmt::format(" {} ({:.0f} %) |", killed, share);
  }
  return text + fmt::format(" {} | {} | {} |\n", count.survived, count.gpu, count.ranks);
}

// Faults that one clause alone sees, by clause.
std::map<std::string, std::vector<std::string>> needed(const FaultResults& results) {
  std::map<std::string, std::vector<std::string>> faults;
  for (const Hunt& hunt : results.hunts) {
    if (hunt.clauses.size() == 1) faults[*hunt.clauses.begin()].push_back(hunt.fault.name);
  }
  return faults;
}

// Faults that a report names best by the clause, by clause: others see them too, as something else.
std::map<std::string, std::vector<std::string>> named(const FaultResults& results) {
  std::map<std::string, std::vector<std::string>> faults;
  for (const Hunt& hunt : results.hunts) {
    if (!hunt.killer) continue;
    const auto& expected = hunt.fault.clauses;
    const bool best = !expected.empty() && hunt.clauses.contains(expected.front());
    faults[best ? expected.front() : hunt.clause].push_back(hunt.fault.name);
  }
  return faults;
}

std::string list_of(const std::vector<std::string>& faults) {
  std::string text;
  for (std::size_t i = 0; i < std::min(faults.size(), shown); ++i) {
    text += fmt::format("{}`{}`", i == 0 ? "" : ", ", faults[i]);
  }
  if (faults.size() > shown) text += fmt::format(" and {} more", faults.size() - shown);
  return text;
}

std::string reason_for(const Clause& clause, const std::vector<std::string>& faults) {
  const auto found = clause_reasons().find(clause.id);
  if (found != clause_reasons().end()) return found->second;
  if (!faults.empty())
    return fmt::format("it is the name of what went wrong in {}", list_of(faults));
  return clause.kind == "required" ? "**none given**" : "a declared choice or setting";
}

// What a page is made of: text, and tables by name.
struct Piece {
  std::string text, table;
};

std::vector<Piece> pieces_of(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw UsageError(fmt::format("{} cannot be read", path));
  std::vector<Piece> pieces(1);
  std::string line, table;
  std::size_t number = 0, opened = 0;
  while (std::getline(file, line)) {
    ++number;
    if (line.starts_with(opening)) {
      if (!table.empty()) break;
      table = line.substr(opening.size(), line.find(" -->") - opening.size());
      if (table != "score" && table != "clauses" && table != "elsewhere") {
        throw UsageError(fmt::format("{}:{}: no table '{}'; choose score, clauses or elsewhere",
                                     path, number, table));
      }
      opened = number;
      pieces.back().text += line + '\n';
      pieces.push_back({"", table});
    } else if (line == closing) {
      if (table.empty()) {
        throw UsageError(fmt::format("{}:{}: {} closes nothing", path, number, closing));
      }
      table.clear();
      pieces.push_back({line + '\n', ""});
    } else if (table.empty()) {
      pieces.back().text += line + '\n';
    }
  }
  if (!table.empty()) {
    throw UsageError(
        fmt::format("{}:{}: the table is not closed by a line {}", path, opened, closing));
  }
  if (pieces.size() == 1) {
    throw UsageError(fmt::format("{} has no lines '{}score -->' and '{}' to write between", path,
                                 opening, closing));
  }
  return pieces;
}

std::string table_of(const std::string& name, const FaultResults& results) {
  if (name == "score") return score_markdown(results);
  if (name == "elsewhere") return elsewhere_markdown(results.faults);
  return clauses_markdown(results);
}

}  // namespace

std::string score_markdown(const FaultResults& results) {
  if (results.depth == Depth::alone) {
    throw UsageError("the score counts what every clause kills; leave --alone out");
  }
  std::vector<std::string> stages;
  std::map<std::string, Count> counts;
  for (const FaultEntry& fault : results.faults) {
    if (!counts.contains(fault.stage())) stages.push_back(fault.stage());
    for (Count* count : {&counts[fault.stage()], &counts["all"]}) {
      count->gpu += fault.visibility == Visibility::gpu ? 1 : 0;
      count->ranks += fault.visibility == Visibility::ranks ? 1 : 0;
    }
  }
  for (const Hunt& hunt : results.hunts) {
    for (Count* count : {&counts[hunt.fault.stage()], &counts["all"]}) {
      ++count->faults;
      hunt.killer ? ++count->killed[hunt.tier] : ++count->survived;
    }
  }
  std::string text = "| stage | faults |", line = "|---|---|";
  for (const Tier tier : results.tiers) {
    text += fmt::format(" killed in {} |", name(tier));
    line += "---|";
  }
  text += " survived | need a GPU | need ranks |\n" + line + "---|---|---|\n";
  for (const std::string& stage : stages) text += row(stage, counts[stage], results.tiers);
  return text + row("all", counts["all"], results.tiers) +
         fmt::format(
             "\nCommit {}. Faults that need a GPU or more than ranks as threads are listed, not "
             "run.\n",
             results.commit);
}

std::string clauses_markdown(const FaultResults& results) {
  if (results.depth != Depth::two_clauses && results.depth != Depth::every_case) {
    throw UsageError("the table of clauses needs --clauses");
  }
  const auto faults = needed(results);
  auto names = named(results);
  std::size_t all = 0, with = 0, required = 0, required_with = 0, only = 0;
  std::string table = "| clause | | only it sees | faults, or why it stays |\n|---|---|---|---|\n";
  for (const Clause& clause : clauses()) {
    const auto found = faults.find(clause.id);
    const std::size_t count = found == faults.end() ? 0 : found->second.size();
    ++all, with += count > 0 ? 1 : 0, only += count;
    if (clause.kind == "required") ++required, required_with += count > 0 ? 1 : 0;
    const std::string cell =
        count == 0 ? reason_for(clause, names[clause.id]) : list_of(found->second);
    table += fmt::format("| {} | {} | {} | {} |\n", clause.id, clause.title, count, cell);
  }
  return fmt::format(
             "{} of {} clauses, {} of {} required ones, are needed: without their cases {} of {} "
             "faults would survive. Commit {}.\n\n",
             with, all, required_with, required, only, results.hunts.size(), results.commit) +
         table;
}

std::string elsewhere_markdown(const std::vector<FaultEntry>& faults) {
  std::string text = "| fault | source | symptom; trigger | needs |\n|---|---|---|---|\n";
  for (const FaultEntry& fault : faults) {
    if (fault.visibility == Visibility::cpu) continue;
    text += fmt::format("| `{}` | {} | {}; {} | {}: {} |\n", fault.name, fault.provenance,
                        fault.symptom, fault.trigger, name(fault.visibility), fault.reason);
  }
  return text;
}

std::vector<std::string> unexplained_clauses(const FaultResults& results) {
  const auto faults = needed(results), names = named(results);
  std::vector<std::string> unexplained;
  for (const Clause& clause : clauses()) {
    if (clause.kind != "required" || faults.contains(clause.id)) continue;
    if (!names.contains(clause.id) && !clause_reasons().contains(clause.id))
      unexplained.push_back(clause.id);
  }
  return unexplained;
}

std::vector<std::string> tables_on(const std::string& path) {
  std::vector<std::string> tables;
  for (const Piece& piece : pieces_of(path)) {
    if (!piece.table.empty()) tables.push_back(piece.table);
  }
  return tables;
}

void update_page(const std::string& path, const FaultResults& results) {
  std::string text;
  for (const Piece& piece : pieces_of(path)) {
    text += piece.table.empty() ? piece.text : table_of(piece.table, results);
  }
  std::ofstream file(path, std::ios::binary);
  file << text;
  if (!file.flush()) throw UsageError(fmt::format("{} cannot be written", path));
}

}  // namespace dropless::conformance
