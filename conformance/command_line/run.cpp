// SPDX-License-Identifier: Apache-2.0
// dropless run: any selection of cases, and everything there is to know about those that failed.
#include <fmt/format.h>

#include <memory>
#include <ostream>

#include "conformance/command_line/execution.h"

namespace dropless::conformance {

void add_run(CLI::App& app, Session& session) {
  auto request = std::make_shared<Request>();
  request->command = "run";
  CLI::App* command = app.add_subcommand(
      "run", "Judge cases: by id, or all of a tier narrowed down by the options");
  declare(*command, request->selection);
  declare(*command, request->implementation);
  declare(*command, request->results);
  command->callback([request, &session] {
    const Judged judged = execute(session, *request);
    session.out << opening_text(judged) << '\n';
    session.out << failures_text(judged);
    if (judged.outcomes.size() > 1) session.out << '\n' << stage_table(judged.summary) << '\n';
    session.exit_code = exit_code(judged.summary);
    session.out << fmt::format("{}: {}, {} checks\n", session.exit_code == 0 ? "PASS" : "FAIL",
                               in_words(judged.summary.all.counts), judged.summary.checks);
  });
}

}  // namespace dropless::conformance
