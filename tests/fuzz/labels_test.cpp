// SPDX-License-Identifier: Apache-2.0
// Labels say what a case is like, and a run without variety is noticed.
#include "fuzz/labels.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/fuzz/in_process.h"

namespace dropless::fuzz {
namespace {

bool has(const std::string& id, const std::string& label) {
  const CaseId one = conformance::registry().resolve(id);
  const auto labels = labels_of(*conformance::registry().find(one.family), one);
  return std::find(labels.begin(), labels.end(), label) != labels.end();
}

std::string sized(const std::string& rows, const std::string& load) {
  return "grouped_gemm.sizes:product=wgrad,experts=4,out=3,in=2,rows=" + rows + ",load=" + load +
         ",zones=padded,operands=bf16,output=fp32,seed=1";
}

TEST(Labels, ReadLoads) {
  EXPECT_TRUE(has(sized("20", "17.0.3"), "a load vector of its own"));
  EXPECT_TRUE(has(sized("20", "17.0.3"), "an expert without rows"));
  EXPECT_TRUE(has(sized("20", "17.0.3"), "an expert at a tile edge"));
  EXPECT_FALSE(has(sized("20", "17.0.3"), "one expert has all rows"));
  EXPECT_TRUE(has(sized("5", "0.5"), "one expert has all rows"));
  EXPECT_TRUE(has(sized("0", "0.0"), "no expert has rows"));
  EXPECT_FALSE(has(sized("40", "10.10.10.10"), "an expert without rows"));
  EXPECT_TRUE(has(sized("64", "empty_last"), "an expert without rows"));
  EXPECT_TRUE(has(sized("3", "balanced"), "an expert without rows"));
  EXPECT_FALSE(has(sized("64", "balanced"), "an expert without rows"));
  EXPECT_TRUE(has(sized("64", "one_hot"), "one expert has all rows"));
  EXPECT_TRUE(has(sized("64", "all_empty"), "no expert has rows"));
}

TEST(Labels, ReadSizesAndWords) {
  EXPECT_TRUE(has(sized("0", "balanced"), "0 rows or tokens"));
  EXPECT_TRUE(has(sized("1", "balanced"), "1 row or token"));
  EXPECT_TRUE(has(sized("129", "balanced"), "rows or tokens at a tile edge"));
  EXPECT_FALSE(has(sized("140", "balanced"), "rows or tokens at a tile edge"));
  EXPECT_TRUE(has(sized("1", "balanced"), "bf16"));
  EXPECT_TRUE(has(sized("1", "balanced"), "fp32"));
  EXPECT_TRUE(has(sized("1", "balanced"), "padded zones"));
  EXPECT_TRUE(has(sized("1", "balanced"), "stage grouped_gemm"));
  EXPECT_TRUE(has(sized("1", "balanced"), "grouped_gemm.sizes"));
}

TEST(Tally, NoticesARunWithoutVariety) {
  const CaseId id = conformance::registry().resolve(sized("64", "balanced"));
  const Family& family = *conformance::registry().find(id.family);
  Tally tally;
  for (int i = 0; i < 2000; ++i) tally.add(family, id);
  EXPECT_FALSE(tally.meets({"an expert without rows", "with a load", 0.4}));
  EXPECT_FALSE(tally.meets({"stage layer", "cases", 0.05}));
  EXPECT_TRUE(tally.meets({"bf16", "with a choice of dtype", 0.3}));
  EXPECT_TRUE(tally.meets({"rows with gaps", "with a choice of strides", 0.3}));  // none could
}

TEST(Tally, AllowsForChanceInAShortRun) {
  const CaseId id = conformance::registry().resolve(sized("64", "balanced"));
  const Family& family = *conformance::registry().find(id.family);
  Tally tally;
  for (int i = 0; i < 10; ++i) tally.add(family, id);
  EXPECT_TRUE(tally.meets({"an expert without rows", "with a load", 0.4}));  // 0 of 10: chance
  EXPECT_FALSE(tally.meets({"an expert without rows", "with a load", 0.9}));
}

}  // namespace
}  // namespace dropless::fuzz
