// SPDX-License-Identifier: Apache-2.0
// Which cases a fault is hunted with, and how tensors are copied and changed.
#include <gtest/gtest.h>

#include <algorithm>

#include "conformance/cases/selection.h"
#include "conformance/runner/fault_hunt.h"
#include "tests/faults/planted.h"
#include "tests/faults/tensors.h"

namespace dropless::faults {
namespace {

using conformance::CaseId;
using conformance::FaultEntry;
using conformance::Tier;

FaultEntry entry(std::string name, std::vector<std::string> clauses) {
  FaultEntry fault;
  fault.name = std::move(name);
  fault.clauses = std::move(clauses);
  return fault;
}

bool can_name(const CaseId& id, const std::string& clause) {
  const auto& clauses = conformance::registry().find(id.family)->clauses;
  return std::find(clauses.begin(), clauses.end(), clause) != clauses.end();
}

TEST(CasesForAFault, BeginWithFamiliesOfItsStageThatCanNameItsClause) {
  const auto cases =
      cases_for(conformance::registry(), entry("mxfp8.any", {"MXFP8-4a"}), Tier::smoke, false);
  ASSERT_FALSE(cases.empty());
  EXPECT_TRUE(can_name(cases.front(), "MXFP8-4a"));
  const auto is_home = [](const CaseId& id) { return id.family.starts_with("mxfp8."); };
  const auto first_foreign = std::find_if_not(cases.begin(), cases.end(), is_home);
  EXPECT_TRUE(std::none_of(first_foreign, cases.end(), is_home)) << "home cases come first";
}

TEST(CasesForAFault, AloneAreThoseOfTheFirstClause) {
  const auto cases = cases_for(conformance::registry(),
                               entry("grouped_gemm.any", {"GROUPED_GEMM-5", "GROUPED_GEMM-0c"}),
                               Tier::standard, true);
  ASSERT_FALSE(cases.empty());
  for (const CaseId& id : cases) EXPECT_TRUE(can_name(id, "GROUPED_GEMM-5")) << id.text();
}

TEST(CasesForAFault, NeverRepeat) {
  auto cases =
      cases_for(conformance::registry(), entry("routing.any", {"GENERAL-3"}), Tier::smoke, false);
  std::vector<std::string> ids;
  for (const CaseId& id : cases) ids.push_back(id.text());
  std::sort(ids.begin(), ids.end());
  EXPECT_EQ(std::adjacent_find(ids.begin(), ids.end()), ids.end());
}

TEST(CasesForAFault, BringEveryValueOfAParameterEarly) {
  const auto cases = cases_for(conformance::registry(), entry("exchange.any", {"EXCHANGE-5a"}),
                               Tier::standard, true);
  const auto many_ranks = std::find_if(cases.begin(), cases.end(), [](const CaseId& id) {
    return id.family == "exchange.plan" && conformance::value_of(id.values, "ranks") == "130";
  });
  ASSERT_NE(many_ranks, cases.end());
  EXPECT_LT(many_ranks - cases.begin(), 50);
  EXPECT_GT(cases.size(), 500U);
}

dropless_tensor matrix(float* data, std::int64_t rows, std::int64_t columns, std::int64_t stride) {
  dropless_tensor tensor{};
  tensor.struct_size = sizeof tensor;
  tensor.struct_version = DROPLESS_STRUCT_VERSION;
  tensor.data = data;
  tensor.dtype = DROPLESS_FP32;
  tensor.rank = 2;
  tensor.shape[0] = rows, tensor.shape[1] = columns;
  tensor.strides[0] = stride, tensor.strides[1] = 1;
  return tensor;
}

TEST(ACopy, IsDenseAndLeavesItsSourceAlone) {
  float data[] = {1, 2, -1, 3, 4, -1};
  const dropless_tensor source = matrix(data, 2, 2, 3);
  const Copy copy(&source);
  each(copy.tensor(), [](double v, Index) { return v * 10; });
  EXPECT_EQ(values_of(copy.tensor()), (std::vector<double>{10, 20, 30, 40}));
  EXPECT_EQ(data[3], 3);
  copy.write_back();
  EXPECT_EQ(data[3], 30);
  EXPECT_EQ(data[2], -1) << "between the rows";
}

TEST(ACopy, OfWhatCannotBeReadIsTheSourceItself) {
  dropless_tensor broken = matrix(nullptr, 2, 2, 2);
  EXPECT_EQ(Copy(&broken).tensor(), &broken);
  EXPECT_EQ(Copy(nullptr).tensor(), nullptr);
  float data[] = {1};
  broken = matrix(data, -1, 2, 2);
  EXPECT_EQ(Copy(&broken).tensor(), &broken);
}

TEST(Zones, WithoutOffsetsAreOne) {
  const auto zones = zones_of(nullptr, nullptr, 7);
  ASSERT_EQ(zones.size(), 1u);
  EXPECT_EQ(zones[0].real_end, 7);
}

}  // namespace
}  // namespace dropless::faults
