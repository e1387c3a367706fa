// SPDX-License-Identifier: Apache-2.0
// dropless check-clauses (hidden): run after every link; a clause without a case, or a case without
// a clause, fails the build.
#include <fmt/format.h>

#include <ostream>

#include "conformance/command_line/session.h"
#include "conformance/runner/coverage.h"

namespace dropless::conformance {

void add_check_clauses(CLI::App& app, Session& session) {
  app.add_subcommand("check-clauses", "")->group("")->callback([&session] {
    const std::vector<std::string> gaps = gaps_in_coverage(registry(), clauses());
    for (const std::string& gap : gaps) session.err << "dropless: " << gap << '\n';
    session.exit_code = gaps.empty() ? 0 : 1;
  });
}

}  // namespace dropless::conformance
