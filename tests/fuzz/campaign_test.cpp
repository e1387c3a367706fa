// SPDX-License-Identifier: Apache-2.0
// A fuzz run from its plan to its report: what failed is on disk before it is made smaller, cases
// do not depend on how they are run, and the report counts right.
#include "fuzz/campaign.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "conformance/runner/chosen.h"
#include "tests/fuzz/in_process.h"

namespace dropless::fuzz {
namespace {

using conformance::Status;

class CampaignTest : public ::testing::Test {
 protected:
  CampaignTest() : folder_(std::filesystem::temp_directory_path() / "dropless_fuzz_test") {
    folder_ /= ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(folder_);
  }
  ~CampaignTest() override { std::filesystem::remove_all(folder_); }

  [[nodiscard]] Corpus corpus() const { return {folder_.string(), "found"}; }
  [[nodiscard]] std::string saved() const {
    std::ifstream file(folder_ / "found.txt");
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }

  std::filesystem::path folder_;
};

FuzzPlan plan(std::int64_t cases) {
  FuzzPlan one;
  one.cases = cases;
  one.shrink_seconds = 60;
  return one;
}

TEST_F(CampaignTest, FindsAPlantedFaultAndSavesItBeforeShrinking) {
  const auto planted = last_expert_lost();
  const RunCases run = in_process(planted->table());
  const auto chosen = families({"grouped_gemm.sizes"});
  Corpus file = corpus();
  std::string first_seen;  // what was on disk when the first candidate was run
  Runners runners;
  runners.batch = run;
  runners.few = [&](const std::vector<CaseId>& cases) {
    if (first_seen.empty()) first_seen = saved();
    return run(cases);
  };
  runners.who = "planted 1";
  const FuzzReport report = fuzz(chosen, plan(60), runners, file);
  ASSERT_EQ(report.findings.size(), 1u);
  const auto& finding = report.findings.front();
  EXPECT_EQ(finding.kind, "fail GROUPED_GEMM-5");
  EXPECT_NE(first_seen.find("\n" + finding.first.text() + "\n"), std::string::npos);
  EXPECT_EQ(finding.outcome.id.text(),
            "grouped_gemm.sizes:product=wgrad,experts=2,out=1,in=1,rows=1,load=1,zones=tight,"
            "operands=fp32,output=fp32,seed=1");
  EXPECT_NE(saved().find("# planted 1, shrunk from fuzz seed 1"), std::string::npos);
  EXPECT_EQ(report.cases, 60);
  EXPECT_EQ(report.count(Status::fail), finding.cases);
  EXPECT_EQ(report.count(Status::pass) + finding.cases, 60);

  // The file is a batch that the runner reads.
  conformance::Wishes wishes;
  wishes.batch = report.corpus;
  EXPECT_GE(conformance::chosen_cases(conformance::registry(), wishes).size(), 2u);
}

TEST_F(CampaignTest, TheCasesOfARunDependOnTheSeedAlone) {
  std::vector<std::string> seen;
  Runners runners;
  runners.batch = [&](const std::vector<CaseId>& cases) {
    std::vector<conformance::Outcome> outcomes(cases.size());
    for (std::size_t i = 0; i < cases.size(); ++i) {
      seen.push_back(cases[i].text());
      outcomes[i].id = cases[i];
      outcomes[i].verdict.status = Status::pass;
    }
    return outcomes;
  };
  runners.few = runners.batch;
  Corpus file = corpus();
  const auto chosen = all_families();
  const FuzzReport first = fuzz(chosen, plan(1500), runners, file);
  const std::vector<std::string> before = std::move(seen);
  seen.clear();
  FuzzPlan timed = plan(1500);
  timed.seconds = 1000;  // other batches, the same cases
  (void)fuzz(chosen, timed, runners, file);
  EXPECT_EQ(seen, before);
  EXPECT_EQ(first.cases, 1500);
  EXPECT_TRUE(first.findings.empty());
  EXPECT_FALSE(std::filesystem::exists(folder_));  // nothing failed, nothing was written
  for (const auto& share : first.shares) EXPECT_TRUE(share.met) << share.label;
}

TEST_F(CampaignTest, StopsAfterTheWantedKindsOfFailures) {
  Runners runners;
  runners.batch = [](const std::vector<CaseId>& cases) {
    std::vector<conformance::Outcome> outcomes(cases.size());
    for (std::size_t i = 0; i < cases.size(); ++i) {
      outcomes[i].id = cases[i];
      outcomes[i].verdict.status = i % 2 == 0 ? Status::crash : Status::mistrusted;
      outcomes[i].verdict.reason = "for the test\nin two lines";
    }
    return outcomes;
  };
  runners.few = runners.batch;
  Corpus file = corpus();
  FuzzPlan two = plan(100000);
  two.kinds = 2;
  two.shrink_seconds = 0;
  const FuzzReport report = fuzz(all_families(), two, runners, file);
  EXPECT_TRUE(report.stopped);
  EXPECT_LT(report.cases, 100000);
  ASSERT_EQ(report.findings.size(), 2u);
  EXPECT_EQ(report.findings[0].steps, 0);
  std::istringstream lines(saved());
  int ids = 0;
  for (std::string line; std::getline(lines, line);) ids += line.starts_with('#') ? 0 : 1;
  EXPECT_EQ(ids, 40);  // twenty of each kind, however many there were
}

TEST_F(CampaignTest, AFolderThatCannotBeWrittenIsAMistakeOfTheUser) {
  Corpus file("/proc/no/such/folder", "found");
  conformance::Outcome outcome;
  outcome.id = {"a.b", {}};
  EXPECT_THROW(file.save(outcome, "note"), conformance::UsageError);
}

}  // namespace
}  // namespace dropless::fuzz
