// SPDX-License-Identifier: Apache-2.0
// The kill score on pages: Markdown tables, and pages that hold them between markers
//
//     <!-- faults: score -->
//     ...
//     <!-- end of faults -->
//
// where everything between the two is written anew.
#pragma once

#include <string>
#include <vector>

#include "conformance/command_line/fault_results.h"

namespace dropless::conformance {

// Per stage: faults, killed per tier, survivors, and how many need a GPU or several ranks.
std::string score_markdown(const FaultResults& results);
// Per clause: the faults that only it sees, or why it stays. Wants Depth::two_clauses or more.
std::string clauses_markdown(const FaultResults& results);
// Faults that no CPU with one rank can show, and what they need.
std::string elsewhere_markdown(const std::vector<FaultEntry>& faults);

// Required clauses without a fault of their own and without a reason to stay.
std::vector<std::string> unexplained_clauses(const FaultResults& results);

// Names of the tables that a page asks for. Throws UsageError: the page cannot be read, has no
// marker, an unknown one, or one that is not closed.
std::vector<std::string> tables_on(const std::string& path);
// Writes them. Throws UsageError when `results` cannot fill a table, or the page cannot be written.
void update_page(const std::string& path, const FaultResults& results);

}  // namespace dropless::conformance
