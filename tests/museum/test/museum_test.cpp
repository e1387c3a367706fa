// SPDX-License-Identifier: Apache-2.0
// The common checks are what they say, typical cases pass, and an exhibit tells who saw a fault.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "conformance/adapters/sources.h"
#include "conformance/cases/case_run.h"
#include "conformance/ranks/rank_group.h"
#include "conformance/ranks/thread_ranks.h"
#include "reference/implementation.h"
#include "tests/museum/checks.h"
#include "tests/museum/exhibit.h"
#include "tests/museum/page.h"
#include "tests/museum/typical.h"

namespace dropless::museum {
namespace {

using Values = std::vector<double>;
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

std::size_t index_of(const std::string& name) {
  for (std::size_t i = 0; i < common_checks().size(); ++i) {
    if (common_checks()[i].name == name) return i;
  }
  throw std::logic_error("no check " + name);
}

bool accepts(const std::string& name, const Values& expected, const Values& got) {
  return common_checks()[index_of(name)].accepts(expected, got);
}

TEST(Checks, StandAtTheirThresholds) {
  EXPECT_TRUE(accepts("allclose 1.6e-2, 1e-5", {100}, {101.6}));
  EXPECT_FALSE(accepts("allclose 1.6e-2, 1e-5", {100}, {101.61}));
  EXPECT_TRUE(accepts("allclose 5e-2, 5e-2", {0, 1}, {0.049, 1.099}));
  EXPECT_FALSE(accepts("allclose 5e-2, 5e-2", {0}, {0.051}));
  EXPECT_TRUE(accepts("allclose 0.125, 0.0675", {1}, {1.19}));
  EXPECT_FALSE(accepts("allclose 0.125, 0.0675", {1}, {1.2}));
  Values expected(100, 1), got(100, 1);
  for (std::size_t i = 0; i < 5; ++i) got[i] = -1;
  EXPECT_TRUE(accepts("95 % matched", expected, got));
  got[5] = -1;
  EXPECT_FALSE(accepts("95 % matched", expected, got));
}

TEST(Checks, OfAWholeTensorMissOneElement) {
  Values expected(10000, 1), got(10000, 1);
  got[17] = -1;
  EXPECT_TRUE(accepts("cosine 1e-3", expected, got));
  EXPECT_TRUE(accepts("SQNR 27 dB", expected, got));
  EXPECT_FALSE(accepts("allclose 0.125, 0.0675", expected, got));
  for (double& value : got) value = -value;
  EXPECT_FALSE(accepts("cosine 1e-3", expected, got));
  EXPECT_FALSE(accepts("SQNR 27 dB", expected, got));
}

TEST(Checks, RejectNanWhereNoneIsExpected) {
  for (const CommonCheck& check : common_checks()) {
    EXPECT_TRUE(check.accepts(Values{1, nan}, Values{1, nan})) << check.name;
    if (check.name == "95 % matched") continue;
    EXPECT_FALSE(check.accepts(Values{1, 2}, Values{1, nan})) << check.name;
    EXPECT_FALSE(check.accepts(Values{1, nan}, Values{1, 2})) << check.name;
  }
}

TEST(Typical, CasesPassOnTheReference) {
  for (const char* stage : {"routing", "permutation", "mxfp8", "grouped_gemm", "activation",
                            "losses", "optimizer", "layer", "exchange"}) {
    const auto cases = typical_cases(stage);
    EXPECT_FALSE(cases.empty()) << stage;
    for (const auto& id : cases) {
      const auto& family = *conformance::registry().find(id.family);
      const auto run = conformance::is_collective(family) ? conformance::run_case_over_threads
                                                          : conformance::run_case;
      const auto verdict = run(reference::implementation(), family, id, {});
      EXPECT_EQ(verdict.status, conformance::Status::pass) << id.text() << ": " << verdict.reason;
    }
  }
}

class Exhibits : public testing::Test {
 protected:
  static void SetUpTestSuite() { conformance::register_planted_faults(); }
};

TEST_F(Exhibits, TellWhoSawAFault) {
  std::vector<conformance::FaultEntry> faults;
  for (const conformance::FaultEntry& fault : conformance::fault_entries()) {
    if (fault.name == "mxfp8.floor_scales_undeclared" || fault.name.starts_with("activation.")) {
      faults.push_back(fault);
      break;
    }
  }
  ASSERT_EQ(faults.size(), 1u);
  const Exhibit exhibit = examine(faults.front().name);
  EXPECT_TRUE(exhibit.same_data.ours);
  EXPECT_FALSE(exhibit.clause.empty());
  const std::string text = page(faults, {exhibit});
  EXPECT_NE(text.find("| all | 1 |"), std::string::npos) << text;
}

TEST_F(Exhibits, SeeWhatRanksCompare) {
  for (const char* fault :
       {"exchange.empty_rank_keeps_old_counts", "layer.over_ranks_counts_of_the_group"}) {
    const Exhibit exhibit = examine(fault);
    EXPECT_TRUE(exhibit.same_data.ours) << fault;
    EXPECT_TRUE(exhibit.same_data.visible) << fault;
    EXPECT_TRUE(exhibit.trouble.empty()) << exhibit.trouble;
  }
}

}  // namespace
}  // namespace dropless::museum
