// SPDX-License-Identifier: Apache-2.0
// Decisions and texts that no run of the tool can be made to show in full: every status, hostile
// bytes, incomplete coverage.
#include <gtest/gtest.h>

#include "conformance/report/failure_text.h"
#include "conformance/report/junit.h"
#include "conformance/report/summary.h"
#include "conformance/runner/chosen.h"
#include "conformance/runner/coverage.h"

namespace dropless::conformance {
namespace {

Outcome outcome(const std::string& id, Status status) {
  Outcome made;
  made.id = parse_case_id(id);
  made.verdict.status = status;
  made.verdict.reason = status == Status::pass ? "" : "because";
  made.attempts.push_back({status, made.verdict.reason});
  return made;
}

const std::vector<Status> all_statuses = {
    Status::pass,       Status::fail,    Status::mistrusted, Status::not_supported,
    Status::waived,     Status::flaky,   Status::timeout,    Status::skipped_by_tier,
    Status::crash,      Status::blocked, Status::resource,   Status::internal_error,
    Status::device_lost};

TEST(ExitCode, IsZeroOnlyIfEverythingRequiredPassed) {
  EXPECT_EQ(all_statuses.size(), static_cast<std::size_t>(Status::internal_error) + 1);
  EXPECT_EQ(exit_code(summarize({})), 1);
  for (const Status status : all_statuses) {
    const bool fine = acceptable(status);
    EXPECT_EQ(exit_code(summarize({outcome("a.b:x=1", Status::pass), outcome("a.b:x=2", status)})),
              fine ? 0 : 1)
        << name(status);
    // Alone, only a pass is one.
    EXPECT_EQ(exit_code(summarize({outcome("a.b:x=2", status)})), status == Status::pass ? 0 : 1)
        << name(status);
  }
  EXPECT_FALSE(acceptable(Status::mistrusted));
  EXPECT_FALSE(acceptable(Status::flaky));
}

TEST(Summary, CountsByStageAndModelInTheOrderOfATrainingStep) {
  const Summary summary = summarize({outcome("layer.forward:model=dbrx", Status::pass),
                                     outcome("mxfp8.quantize:model=dbrx", Status::fail),
                                     outcome("routing.ties:seed=1", Status::not_supported),
                                     outcome("mxfp8.quantize:model=grok-1", Status::pass)});
  ASSERT_EQ(summary.stages.size(), 3u);
  EXPECT_EQ(summary.stages[0].name, "routing");
  EXPECT_EQ(summary.stages[1].name, "mxfp8");
  EXPECT_EQ(summary.stages[2].name, "layer");
  EXPECT_EQ(verdict_of(summary.stages[0]), "not offered");
  EXPECT_EQ(verdict_of(summary.stages[1]), "NO-GO");
  EXPECT_EQ(verdict_of(summary.stages[2]), "GO");
  ASSERT_EQ(summary.models.size(), 2u);
  EXPECT_EQ(verdict_of(summary.models[0]), "NO-GO");
  EXPECT_EQ(verdict_of(summary.models[1]), "GO");
  EXPECT_EQ(footer_of(summary, 1).at("counts").at("pass"), 2);
}

TEST(Outcomes, ComeBackFromTheirRecord) {
  Outcome one = outcome("mxfp8.quantize:model=grok-1,seed=3", Status::flaky);
  one.verdict.failures.push_back({"MXFP8-2", "row scales", "[1,2]", "3", "4", "exact", "1 ulp"});
  one.verdict.checks = 1 << 20;
  one.verdict.failed_checks = 7;
  one.verdict.paths = {"cpu/avx2"};
  one.attempts.push_back({Status::pass, ""});
  one.phase = "quantize";
  one.output = "line\n\xff\x01 broken";
  const std::string line = one_line(to_json(one));
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const Outcome back = outcome_from(nlohmann::ordered_json::parse(line));
  EXPECT_EQ(one_line(to_json(back)), line);
  EXPECT_EQ(back.verdict.failures.at(0).got, "4");
  EXPECT_EQ(back.attempts.size(), 2u);
  auto wrong = to_json(one);
  wrong["status"] = "perfect";
  EXPECT_THROW((void)outcome_from(wrong), std::invalid_argument);
}

TEST(FailureText, QuotesForTheShellAndTamesWhatWasPrinted) {
  Outcome crash = outcome("mxfp8.quantize:seed=1", Status::crash);
  crash.output = "one\x1b[31m\ntwo\n\n";
  const std::string text = failure_text(crash, {"./it's mine.so", "", 3});
  EXPECT_NE(text.find("--implementation './it'\\''s mine.so' --threads 3"), std::string::npos)
      << text;
  EXPECT_NE(text.find("    | one?[31m\n    | two\n"), std::string::npos) << text;
}

TEST(Junit, EscapesEverything) {
  Outcome bad = outcome("mxfp8.quantize:seed=1", Status::fail);
  bad.verdict.reason = "<&\"\x02\xff>";
  const nlohmann::ordered_json header{
      {"started", "2026-01-31T12:00:00Z"},
      {"suite", {{"version", "1"}, {"commit", "c"}, {"clauses", "h"}}},
      {"implementation", {{"name", "<mine>"}, {"version", "1"}}},
      {"machine", {{"cpu", "x"}}}};
  const std::string xml = junit_xml(header, {bad}, {"cpu", "", 0});
  EXPECT_NE(xml.find("&lt;&amp;&quot;??&gt;"), std::string::npos) << xml;
  EXPECT_NE(xml.find("value=\"&lt;mine&gt;\""), std::string::npos) << xml;
}

Family family(const std::string& name, std::vector<std::string> clauses, bool selects = true) {
  Family made;
  made.name = name;
  made.purpose = "Proves something.";
  made.clauses = std::move(clauses);
  made.select = [selects](Tier tier) {
    return tier == Tier::smoke && selects ? std::vector<Values>{{}} : std::vector<Values>{};
  };
  made.run = [](CaseRun&) {};
  return made;
}

Clause clause(const std::string& id) {
  return {id, "title", "required", "exact", "source", "text", "mxfp8"};
}

TEST(Coverage, NamesEveryGap) {
  Registry registry;
  registry.add(family("mxfp8.good", {"MXFP8-1"}));
  const std::vector<Clause> complete{clause("MXFP8-1"), clause("GENERAL-0"), clause("GENERAL-1")};
  EXPECT_TRUE(gaps_in_coverage(registry, complete).empty());

  std::vector<Clause> more = complete;
  more.push_back(clause("MXFP8-2"));
  ASSERT_EQ(gaps_in_coverage(registry, more).size(), 1u);
  EXPECT_NE(gaps_in_coverage(registry, more)[0].find("clause MXFP8-2"), std::string::npos);

  registry.add(family("mxfp8.unwritten", {"MXFP8-9"}));
  ASSERT_EQ(gaps_in_coverage(registry, complete).size(), 1u);
  EXPECT_NE(gaps_in_coverage(registry, complete)[0].find("names clause MXFP8-9"),
            std::string::npos);

  registry.add(family("mxfp8.idle", {"MXFP8-1"}, false));
  EXPECT_NE(gaps_in_coverage(registry, complete).back().find("mxfp8.idle has no case"),
            std::string::npos);
}

TEST(Choice, TakesNoCaseTwice) {
  Registry registry;
  registry.add(family("mxfp8.one", {"MXFP8-1"}));
  registry.add(family("mxfp8.two", {"MXFP8-1"}));
  Wishes wishes;
  wishes.ids = {"mxfp8.two", "mxfp8.one", "mxfp8.two"};
  const std::vector<CaseId> chosen = chosen_cases(registry, wishes);
  ASSERT_EQ(chosen.size(), 2u);
  EXPECT_EQ(chosen[0].text(), "mxfp8.two");
  EXPECT_EQ(wishes_from(to_json(wishes)), wishes);
}

}  // namespace
}  // namespace dropless::conformance
