// SPDX-License-Identifier: Apache-2.0
// Failures in words.
#include "conformance/report/failure_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <utility>
#include <vector>

namespace dropless::conformance {
namespace {

std::string upper(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = c == '_' ? ' ' : static_cast<char>(std::toupper(c));
  return out;
}

// Quotes for the shell only where they are needed.
std::string quoted(const std::string& text) {
  const auto plain = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
           std::string("./_-+=,:").find(c) != std::string::npos;
  };
  if (!text.empty() && std::all_of(text.begin(), text.end(), plain)) return text;
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? "'\\''" : std::string(1, c);
  return out + "'";
}

// Other people's bytes: indented, control characters made visible.
std::string indented(const std::string& text) {
  std::string out = "    | ";
  const std::size_t end = text.find_last_not_of(" \n\r\t");
  for (const char c : text.substr(0, end == std::string::npos ? 0 : end + 1)) {
    if (c == '\n') {
      out += "\n    | ";
    } else {
      out += std::iscntrl(static_cast<unsigned char>(c)) != 0 && c != '\t' ? '?' : c;
    }
  }
  return out + "\n";
}

constexpr int shown_per_check = 2;  // of one clause and one comparison

// The first failures of every check; the rest differs by element only and is in the results file.
std::vector<Failure> first_of_each(const std::vector<Failure>& failures) {
  std::map<std::pair<std::string, std::string>, int> seen;
  std::vector<Failure> first;
  for (const Failure& failure : failures) {
    if (++seen[{failure.clause, failure.what}] <= shown_per_check) first.push_back(failure);
  }
  return first;
}

std::string text_of(const Failure& failure) {
  std::string line = fmt::format("  {}  {} {}\n", failure.clause, failure.what, failure.element);
  line += fmt::format("    expected {}  got {}  bound {}", failure.expected, failure.got,
                      failure.bound.empty() ? "exact" : failure.bound);
  if (!failure.margin.empty()) line += fmt::format("  margin {}", failure.margin);
  return line + "\n";
}

}  // namespace

std::string reproducing_command(const CaseId& id, const Reproduction& how) {
  std::string command = fmt::format("dropless run '{}'", id.text());
  if (how.implementation != "cpu") command += " --implementation " + quoted(how.implementation);
  if (!how.models.empty()) command += " --models " + quoted(how.models);
  if (how.threads > 0) command += fmt::format(" --threads {}", how.threads);
  if (how.ranks > 0) command += fmt::format(" --ranks {}", how.ranks);
  if (how.ranks > 0 && (how.launcher == "mpi" || how.launcher == "threads")) {
    command += " --launcher " + how.launcher;
  }
  return command;
}

std::string failure_text(const Outcome& outcome, const Reproduction& how) {
  const Verdict& verdict = outcome.verdict;
  std::string text = fmt::format("{}  {}\n", upper(name(verdict.status)), outcome.id.text());
  // The reason of a plain failure repeats the first of its failures.
  const bool told_below = verdict.status == Status::fail && !verdict.failures.empty();
  if (!told_below && !verdict.reason.empty()) text += fmt::format("  {}\n", verdict.reason);
  const std::vector<Failure> shown = first_of_each(verdict.failures);
  for (const Failure& failure : shown) text += text_of(failure);
  if (verdict.failed_checks > 0) {
    text += fmt::format("  {} of {} checks failed, {} shown\n", verdict.failed_checks,
                        verdict.checks, shown.size());
  }
  if (!outcome.output.empty()) text += "  printed at the end:\n" + indented(outcome.output);
  return text + "  reproduce: " + reproducing_command(outcome.id, how) + "\n";
}

}  // namespace dropless::conformance
