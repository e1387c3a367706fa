// SPDX-License-Identifier: Apache-2.0
// dropless explain: what a case, a family or a clause is about, in the words of the clauses.
#include <fmt/format.h>

#include <memory>
#include <ostream>
#include <sstream>

#include "conformance/clauses/clauses.h"
#include "conformance/command_line/session.h"
#include "conformance/report/failure_text.h"
#include "conformance/runner/coverage.h"

namespace dropless::conformance {
namespace {

constexpr std::size_t columns = 96;

// Paragraphs refilled to the width of a page, every line indented.
std::string filled(const std::string& text, const std::string& indent) {
  std::istringstream words(text);
  std::string out, line;
  for (std::string word; words >> word;) {
    if (!line.empty() && indent.size() + line.size() + 1 + word.size() > columns) {
      out += indent + line + "\n";
      line.clear();
    }
    line += (line.empty() ? "" : " ") + word;
  }
  return line.empty() ? out : out + indent + line + "\n";
}

std::string text_of(const Clause& clause) {
  return fmt::format("  {}: {} ({}, judged {})\n", clause.id, clause.title, clause.kind,
                     clause.accuracy_class) +
         filled(clause.text, "    ") +
         (clause.source.empty() ? "" : filled("source: " + clause.source, "    "));
}

std::string allowed_values(const Parameter& parameter) {
  std::string text =
      parameter.words.empty() ? "" : fmt::format("{}", fmt::join(parameter.words, ", "));
  if (parameter.longest > 0) {
    text += fmt::format("{}a list such as 3.0.17", text.empty() ? "" : ", or ");
  }
  return text.empty() ? fmt::format("{} to {}", parameter.least, parameter.most) : text;
}

std::string explain_clause(const Clause& clause) {
  std::string text = text_of(clause) + "\n  case families:\n";
  for (const Family* family : families_of(registry(), clause.id)) {
    text += fmt::format("    {}\n", family->name) + filled(family->purpose, "      ");
  }
  return text + fmt::format("\n  run: dropless run --clause {}\n", clause.id);
}

std::string clauses_text(const Family& family) {
  std::string text = "  clauses that a failure can name:\n";
  for (const std::string& id : family.clauses) {
    const Clause* clause = find_clause(id);
    text += clause != nullptr ? text_of(*clause) : fmt::format("  {}\n", id);
  }
  return text;
}

std::string explain_family(const Family& family) {
  std::string text = family.name + "\n" + filled(family.purpose, "  ") + "\n";
  if (!family.parameters.empty()) text += "  parameters:\n";
  for (const Parameter& parameter : family.parameters) {
    text += filled(
        fmt::format("{}: {} ({})", parameter.name, parameter.meaning, allowed_values(parameter)),
        "    ");
  }
  text += "\n" + clauses_text(family) + "\n";
  std::size_t sum = 0;
  for (const Tier tier : {Tier::smoke, Tier::standard, Tier::full}) {
    sum += family.select(tier).size();
    text += fmt::format("  {} cases in tier {}\n", sum, name(tier));
  }
  return text + fmt::format("\n  run: dropless run {}\n", family.name);
}

std::string explain_case(const CaseId& id) {
  const Family& family = *registry().find(id.family);
  std::string text = id.text() + "\n" + filled(family.purpose, "  ") + "\n";
  for (const auto& [key, value] : id.values) {
    for (const Parameter& parameter : family.parameters) {
      if (parameter.name == key) {
        text += filled(fmt::format("{} = {}: {}", key, value, parameter.meaning), "  ");
      }
    }
  }
  return text + "\n" + clauses_text(family) +
         fmt::format("\n  reproduce: {}\n", reproducing_command(id, {"cpu", "", 0}));
}

std::string explain(const std::string& what) {
  if (const Clause* clause = find_clause(what)) return explain_clause(*clause);
  if (const Family* family = registry().find(what)) return explain_family(*family);
  const bool like_a_clause = !what.empty() && what[0] >= 'A' && what[0] <= 'Z';
  if (like_a_clause) {
    throw UsageError(fmt::format("no clause '{}'; see dropless list --clauses", what));
  }
  return explain_case(registry().resolve(what));
}

}  // namespace

void add_explain(CLI::App& app, Session& session) {
  auto what = std::make_shared<std::vector<std::string>>();
  CLI::App* command =
      app.add_subcommand("explain", "Explain a case id, a family or a clause in full");
  command->add_option("what", *what, "such as MXFP8-2, mxfp8.quantize, or a case id")->required();
  command->callback([what, &session] {
    for (const std::string& one : *what) session.out << explain(one);
  });
}

}  // namespace dropless::conformance
