// SPDX-License-Identifier: Apache-2.0
// Shrinking finds the smallest load that shows a planted fault, stays with that fault, and stops.
#include "fuzz/shrinking.h"

#include <gtest/gtest.h>

#include "fuzz/simpler.h"
#include "tests/fuzz/in_process.h"

namespace dropless::fuzz {
namespace {

using namespace std::chrono_literals;

rc::Shrinkable<CaseId> tree(const std::string& id) {
  return rc::shrinkable::shrinkRecur(conformance::registry().resolve(id), [](const CaseId& one) {
    return simpler_cases(*conformance::registry().find(one.family), one);
  });
}

conformance::Outcome outcome_of(const RunCases& run, const std::string& id) {
  return run({conformance::registry().resolve(id)}).front();
}

TEST(Shrinking, FindsTheSmallestLoadOfAPlantedFault) {
  const auto planted = last_expert_lost();
  const RunCases run = in_process(planted->table());
  for (const char* id :
       {"grouped_gemm.sizes:product=wgrad,experts=9,out=33,in=17,rows=37,load=3.0.17.1.16.0,"
        "zones=padded,operands=bf16,output=bf16,seed=99",
        "grouped_gemm.sizes:product=wgrad,experts=12,out=8,in=40,rows=65,load=empty_last,"
        "zones=tight,operands=fp32,output=fp32,seed=4"}) {
    const auto failing = outcome_of(run, id);
    ASSERT_EQ(kind_of(failing), "fail GROUPED_GEMM-5");
    const Shrunk small = shrink(tree(id), failing, run, 8, 60s);
    EXPECT_FALSE(small.out_of_time);
    EXPECT_GT(small.steps, 3);
    EXPECT_EQ(small.outcome.id.text(),
              "grouped_gemm.sizes:product=wgrad,experts=2,out=1,in=1,rows=1,load=1,zones=tight,"
              "operands=fp32,output=fp32,seed=1");
    EXPECT_EQ(kind_of(small.outcome), "fail GROUPED_GEMM-5");
  }
}

TEST(Shrinking, KeepsTheKindOfFailure) {
  // Everything fails, but only many rows in the way that is looked for.
  const RunCases run = [](const std::vector<CaseId>& cases) {
    std::vector<conformance::Outcome> outcomes;
    for (const CaseId& id : cases) {
      conformance::Outcome outcome;
      outcome.id = id;
      outcome.verdict.status = conformance::Status::fail;
      conformance::Failure failure;
      failure.clause = integer_of(id, "tokens", 0) >= 5 ? "LAYER-1d" : "LAYER-1a";
      outcome.verdict.failures.push_back(failure);
      outcomes.push_back(std::move(outcome));
    }
    return outcomes;
  };
  const char* id =
      "layer.exact:experts=16,tokens=130,load=zipf,dtype=bf16,placement=late,"
      "shared=yes,seed=12";
  const Shrunk small = shrink(tree(id), outcome_of(run, id), run, 4, 60s);
  EXPECT_EQ(integer_of(small.outcome.id, "tokens", 0), 5);
  EXPECT_EQ(integer_of(small.outcome.id, "experts", 0), 4);
}

TEST(Shrinking, StopsWhenThereIsNoTime) {
  int runs = 0;
  const RunCases run = [&](const std::vector<CaseId>& cases) {
    ++runs;
    std::vector<conformance::Outcome> outcomes(cases.size());
    for (std::size_t i = 0; i < cases.size(); ++i) outcomes[i].id = cases[i];
    return outcomes;
  };
  conformance::Outcome failing;
  failing.id = conformance::registry().resolve("routing.few_experts:score=sigmoid,seed=50");
  const Shrunk small = shrink(tree(failing.id.text()), failing, run, 2, 0s);
  EXPECT_TRUE(small.out_of_time);
  EXPECT_EQ(runs, 0);
  EXPECT_EQ(small.outcome.id, failing.id);
}

}  // namespace
}  // namespace dropless::fuzz
