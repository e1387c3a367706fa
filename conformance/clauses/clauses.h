// SPDX-License-Identifier: Apache-2.0
// The normative text, clause by clause, parsed from clauses/<stage>.md (embedded at build time).
//
// Grammar of a file: a title, free text, then for every clause
//
//     ## ROUTING-5b: Tie rule
//     Kind: required            (or: profile, setting)
//     Class: exact              (or: ulp, bounded, statistical)
//     Source: DeepSeek-V3 report 2.1.2
//
//     The normative sentence or two.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace dropless::conformance {

struct Clause {
  std::string id, title, kind, accuracy_class, source, text, stage;
};

// All clauses, files in stage order. Throws std::logic_error on a malformed file (a test parses
// all).
const std::vector<Clause>& clauses();
const Clause* find_clause(std::string_view id);
// One file's clauses. Throws std::invalid_argument naming file and line.
std::vector<Clause> parse_clauses(std::string_view file_name, std::string_view text);

}  // namespace dropless::conformance
