// SPDX-License-Identifier: Apache-2.0
// dropless run: any selection of cases, and everything there is to know about those that failed.
#include <fmt/format.h>

#include <memory>
#include <ostream>

#include "conformance/command_line/execution.h"
#include "conformance/command_line/group.h"

namespace dropless::conformance {
namespace {

// Whoever runs a single case wants to know more about it, also when it passes.
std::string one_case(const Outcome& outcome) {
  const Verdict& verdict = outcome.verdict;
  std::string text = fmt::format("{}: {}\n", outcome.id.text(), name(verdict.status));
  if (acceptable(verdict.status) && !verdict.reason.empty()) {
    text += fmt::format("  {}\n", verdict.reason);
  }
  if (!verdict.paths.empty()) text += fmt::format("  paths: {}\n", fmt::join(verdict.paths, ", "));
  return text + fmt::format("  {} checks in {:.3g} s\n\n", verdict.checks, verdict.seconds);
}

std::string last_line(const Summary& summary) {
  const char* word = "PASS";
  if (exit_code(summary) != 0) {
    word = summary.all.unacceptable() > 0 ? "FAIL" : "FAIL (nothing passed)";
  }
  return fmt::format("{}: {}, {} checks\n", word, in_words(summary.all.counts), summary.checks);
}

void report(Session& session, const Request& request) {
  const Judged judged = execute(session, request);
  session.out << opening_text(judged) << '\n' << failures_text(judged);
  if (judged.outcomes.size() == 1) {
    session.out << one_case(judged.outcomes.front());
  } else {
    session.out << '\n' << stage_table(judged.summary) << '\n';
  }
  session.exit_code = exit_code(judged.summary);
  session.out << last_line(judged.summary);
}

}  // namespace

void add_run(CLI::App& app, Session& session) {
  auto request = std::make_shared<Request>();
  request->command = "run";
  CLI::App* command = app.add_subcommand(
      "run", "Judge cases: by id, or all of a tier narrowed down by the options");
  declare(*command, request->selection);
  declare(*command, request->implementation);
  declare_ranks(*command, request->implementation);
  declare(*command, request->results);
  command->callback(
      [request, &session] { in_group(session, *request, [&] { report(session, *request); }); });
}

}  // namespace dropless::conformance
