// SPDX-License-Identifier: Apache-2.0
// dropless gate: the main job. Every stage of a tier, a verdict per stage and per model, and one
// last line that decides.
#include <fmt/format.h>

#include <memory>
#include <ostream>

#include "conformance/command_line/execution.h"
#include "conformance/command_line/group.h"

namespace dropless::conformance {
namespace {

std::string last_line(const Judged& judged) {
  std::vector<std::string> go, no_go, absent;
  for (const Part& stage : judged.summary.stages) {
    const std::string verdict = verdict_of(stage);
    (verdict == "GO" ? go : verdict == "NO-GO" ? no_go : absent).push_back(stage.name);
  }
  // The tier is part of the verdict: a GO of smoke is a smaller promise.
  const auto& selection = judged.header.at("selection");
  auto tier = selection.at("tier").get<std::string>();
  // So is that of a run which left out everything that needs no other rank.
  if (const int ranks = selection.value("ranks", 0); ranks > 0) {
    tier += fmt::format(", cases over {} ranks", ranks);
  }
  std::string line;
  if (exit_code(judged.summary) != 0) {
    line = no_go.empty() ? fmt::format("NO-GO ({}): nothing passed", tier)
                         : fmt::format("NO-GO ({}): {} of {} cases, in {}", tier,
                                       judged.summary.all.unacceptable(),
                                       judged.summary.all.cases(), fmt::join(no_go, ", "));
  } else {
    line = fmt::format("GO ({}): {}", tier, fmt::join(go, ", "));
  }
  // A partial implementation may pass; nobody should take that for the whole.
  if (!absent.empty()) line += fmt::format("; not offered: {}", fmt::join(absent, ", "));
  return line + "\n";
}

void report(Session& session, const Request& request) {
  const Judged judged = execute(session, request);
  session.out << opening_text(judged) << '\n' << failures_text(judged) << '\n';
  session.out << model_lines(judged.summary) << '\n' << stage_table(judged.summary) << '\n';
  session.exit_code = exit_code(judged.summary);
  session.out << last_line(judged);
}

}  // namespace

void add_gate(CLI::App& app, Session& session) {
  auto request = std::make_shared<Request>();
  request->command = "gate";
  CLI::App* command = app.add_subcommand(
      "gate", "The go/no-go decision: all stages, one verdict, exit code 0 only for GO");
  command->add_option("--tier", request->selection.tier, "smoke, standard (default) or full")
      ->type_name("TIER");
  declare(*command, request->implementation);
  declare_ranks(*command, request->implementation);
  declare(*command, request->results);
  command->callback(
      [request, &session] { in_group(session, *request, [&] { report(session, *request); }); });
}

}  // namespace dropless::conformance
