// SPDX-License-Identifier: Apache-2.0
// The list of faults: complete, in the words of the clauses, and loadable by name.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "conformance/adapters/load.h"
#include "conformance/cases/case_id.h"
#include "conformance/cases/family.h"
#include "conformance/clauses/clauses.h"
#include "tests/faults/planted.h"

namespace dropless::faults {
namespace {

using conformance::load_implementation;

bool is_registered() {
  static const bool once = [] {
    conformance::register_planted_faults();
    return true;
  }();
  return once;
}

TEST(Catalogue, HoldsAtLeast120FaultsThatACpuShows) {
  std::map<std::string, int> by_stage;
  int visible = 0;
  for (const Fault& fault : all_faults()) {
    if (fault.plant == nullptr) continue;
    ++visible;
    ++by_stage[fault.name.substr(0, fault.name.find('.'))];
  }
  EXPECT_GE(visible, 120);
  for (const char* stage : {"routing", "permutation", "mxfp8", "grouped_gemm", "activation",
                            "losses", "optimizer", "layer"}) {
    EXPECT_GE(by_stage[stage], 20) << stage;
  }
}

TEST(Catalogue, NamesClausesThatExist) {
  for (const Fault& fault : all_faults()) {
    for (const std::string& clause : fault.clauses) {
      EXPECT_NE(conformance::find_clause(clause), nullptr) << fault.name << ": " << clause;
    }
  }
}

// A relation between two runs cannot be broken without one of the runs being wrong by the clause of
// its value: these clauses watch the reference as well, and no fault is theirs alone.
const std::set<std::string> relations = {"ROUTING-11a", "ROUTING-11b", "ROUTING-11c", "ROUTING-11d",
                                         "MXFP8-9c"};

TEST(Catalogue, HasAFaultForEveryClause) {
  std::set<std::string> named;
  for (const Fault& fault : all_faults()) {
    if (fault.plant != nullptr) named.insert(fault.clauses.begin(), fault.clauses.end());
  }
  for (const conformance::Clause& clause : conformance::clauses()) {
    if (relations.contains(clause.id)) continue;
    EXPECT_TRUE(named.contains(clause.id)) << clause.id << ": " << clause.title;
  }
}

TEST(Catalogue, EveryFaultIsLoadedByItsName) {
  ASSERT_TRUE(is_registered());
  for (const Fault& fault : all_faults()) {
    if (fault.plant == nullptr) {
      EXPECT_THROW(load_implementation("fault:" + fault.name), conformance::UsageError);
      continue;
    }
    const auto planted = load_implementation("fault:" + fault.name);
    const auto control = load_implementation("control:" + fault.name);
    EXPECT_NE(std::string(planted.table().name).find(fault.name), std::string::npos);
    // The same declaration and the same operations, so that only the fault is different.
    EXPECT_EQ(std::memcmp(planted.table().profile, control.table().profile,
                          offsetof(dropless_profile, tie_rank)),
              0)
        << fault.name;
    EXPECT_NE(planted.table().gemm_fprop, nullptr);
    EXPECT_EQ(planted.table().exchange_plan == nullptr, control.table().exchange_plan == nullptr);
  }
}

TEST(Catalogue, AnUnknownNameIsAMistakeOfTheUser) {
  ASSERT_TRUE(is_registered());
  EXPECT_THROW(load_implementation("fault:routing.nothing"), conformance::UsageError);
}

}  // namespace
}  // namespace dropless::faults
