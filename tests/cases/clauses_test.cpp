// SPDX-License-Identifier: Apache-2.0
// The normative text parses, and a malformed file is refused with file and line.
#include "conformance/clauses/clauses.h"

#include <gtest/gtest.h>

#include <set>

#include "conformance/cases/family.h"

namespace dropless::conformance {
namespace {

const char* const good =
    "# Losses\n\nFree text.\n\n## LOSSES-1a: Title: with colon\nKind: required\nClass: exact\n"
    "Source: somewhere\n\nFirst line.\nSecond: line.\n\n## LOSSES-2: Other\nSource: x\n"
    "Class: ulp\nKind: profile\n\nText.\n";

std::string answer(std::string_view text) {
  try {
    parse_clauses("losses.md", text);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "accepted";
}

std::string replaced(std::string_view from, std::string_view to) {
  std::string text = good;
  text.replace(text.find(from), from.size(), to);
  return text;
}

TEST(Clauses, Parse) {
  const std::vector<Clause> parsed = parse_clauses("losses.md", good);
  ASSERT_EQ(parsed.size(), 2u);
  EXPECT_EQ(parsed[0].id, "LOSSES-1a");
  EXPECT_EQ(parsed[0].title, "Title: with colon");
  EXPECT_EQ(parsed[0].kind, "required");
  EXPECT_EQ(parsed[0].accuracy_class, "exact");
  EXPECT_EQ(parsed[0].source, "somewhere");
  EXPECT_EQ(parsed[0].text, "First line.\nSecond: line.");
  EXPECT_EQ(parsed[1].stage, "losses");
  EXPECT_EQ(parsed[1].kind, "profile");
}

TEST(Clauses, RefuseMalformedFiles) {
  const auto says = [](const std::string& text, std::string_view part) {
    EXPECT_NE(answer(text).find(part), std::string::npos) << answer(text);
  };
  says(replaced("LOSSES-2", "LOSSES-1a"), "losses.md:13: LOSSES-1a occurs twice");
  says(replaced("LOSSES-2", "ROUTING-2"), "losses.md:13: 'ROUTING-2' is not a clause id of LOSSES");
  says(replaced("LOSSES-2", "LOSSES-x"), "not a clause id");
  says(replaced("Kind: required", "Kind: optional"), "losses.md:6: 'Kind: optional'");
  says(replaced("Class: exact", "Class: loose"), "losses.md:7: 'Class: loose'");
  says(replaced("Source: somewhere\n", ""), "LOSSES-1a has no Source");
  says(replaced("Kind: required\n", ""), "LOSSES-1a has no Kind");
  says(replaced("Text.", ""), "LOSSES-2 has no text");
  says(replaced("## LOSSES-2: Other", "## LOSSES-2"), "heading");
  says(replaced("# Losses\n", "\n"), "before the title");
  says("# Losses\n", "no clause");
}

TEST(Clauses, AllFilesParseAndAreFound) {
  EXPECT_GT(clauses().size(), 60u);
  for (const Clause& clause : clauses()) EXPECT_EQ(find_clause(clause.id), &clause);
  ASSERT_NE(find_clause("GENERAL-3"), nullptr);
  EXPECT_EQ(find_clause("GENERAL-99"), nullptr);
}

TEST(Clauses, FamiliesNameClausesThatExist) {
  for (const Family& family : registry().families()) {
    for (const std::string& id : family.clauses) {
      EXPECT_NE(find_clause(id), nullptr) << family.name << " names " << id;
    }
  }
}

TEST(Clauses, EveryClauseHasAFamily) {
  std::set<std::string> named;
  for (const Family& family : registry().families()) {
    named.insert(family.clauses.begin(), family.clauses.end());
  }
  for (const Clause& clause : clauses()) {
    EXPECT_TRUE(named.contains(clause.id)) << clause.id << " has no case";
  }
}

}  // namespace
}  // namespace dropless::conformance
