// SPDX-License-Identifier: Apache-2.0
// Which families a run is about, and which cases somebody chose before it.
#include "fuzz/families.h"

#include <gtest/gtest.h>

#include "tests/fuzz/in_process.h"

namespace dropless::fuzz {
namespace {

TEST(FamiliesOf, FollowsStagesAndNames) {
  conformance::FuzzPlan plan;
  EXPECT_GT(families_of(plan).size(), 80u);
  std::set<std::string> names;
  for (const Family* family : families_of(plan)) names.insert(family->name);
  EXPECT_TRUE(names.contains("exchange.dispatch"));
  for (const char* slow : {"exchange.lost_rank", "exchange.repeat", "layer.over_ranks_exact"}) {
    EXPECT_FALSE(names.contains(slow)) << slow;
  }
  plan.stages = {"mxfp8"};
  for (const Family* family : families_of(plan)) EXPECT_EQ(family->stage(), "mxfp8");
  plan.families = {"grouped_gemm.wgrad"};
  EXPECT_THROW(families_of(plan), conformance::UsageError);  // nothing is left
  plan.stages.clear();
  EXPECT_EQ(families_of(plan), families({"grouped_gemm.wgrad"}));
  plan.families = {"grouped_gemm.no_such"};
  EXPECT_THROW(families_of(plan), conformance::UsageError);
  plan.families.clear(), plan.stages = {"no_such"};
  EXPECT_THROW(families_of(plan), conformance::UsageError);
}

TEST(ChosenByHand, TellsSeedsFromOtherValues) {
  const ChosenByHand chosen(families({"grouped_gemm.wgrad"}));
  int seen = 0;
  for (CaseId id : conformance::registry().cases(conformance::Tier::standard)) {
    if (id.family != "grouped_gemm.wgrad") continue;
    ++seen;
    EXPECT_TRUE(chosen.contains(id));
    set_value(id.values, "seed", "987654");
    EXPECT_FALSE(chosen.contains(id));
    EXPECT_TRUE(chosen.contains_but_for_the_seed(id));
    set_value(id.values, "rows", "31");
    set_value(id.values, "load", "31");
    EXPECT_FALSE(chosen.contains_but_for_the_seed(id)) << id.text();
  }
  EXPECT_GT(seen, 3);
}

}  // namespace
}  // namespace dropless::fuzz
