// SPDX-License-Identifier: Apache-2.0
// The list of faults: complete, in the words of the clauses, and loadable by name.
#include <gtest/gtest.h>

#include <map>
#include <regex>
#include <set>

#include "conformance/adapters/load.h"
#include "conformance/cases/case_id.h"
#include "conformance/cases/family.h"
#include "conformance/clauses/clauses.h"
#include "tests/faults/gpu_plants.h"
#include "tests/faults/kept_clauses.h"
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
                            "losses", "optimizer", "layer", "exchange"}) {
    EXPECT_GE(by_stage[stage], 20) << stage;
  }
}

// A project with a number, a measured weak spot, or a mutation operator of docs/faults.md.
TEST(Catalogue, SaysWhereEveryFaultComesFrom) {
  const std::regex record("[A-Za-z][A-Za-z0-9_./-]* \\[?[0-9]+|cuBLAS.*\\[[0-9]+\\]");
  const std::regex measured("numerics: .+");
  const std::regex invented("(operator|invented after the suite: operator) O([0-9]+)[:,] .+");
  int from_the_record = 0;
  for (const Fault& fault : all_faults()) {
    std::smatch match;
    if (std::regex_match(fault.provenance, match, invented)) {
      EXPECT_LE(std::stoi(match[2]), 22) << fault.name;
      continue;
    }
    if (std::regex_match(fault.provenance, measured)) continue;
    EXPECT_TRUE(std::regex_search(fault.provenance, record))
        << fault.name << ": " << fault.provenance;
    from_the_record += fault.plant != nullptr ? 1 : 0;
  }
  EXPECT_GE(from_the_record, 120);
}

TEST(Catalogue, NamesClausesThatExist) {
  for (const Fault& fault : all_faults()) {
    for (const std::string& clause : fault.clauses) {
      EXPECT_NE(conformance::find_clause(clause), nullptr) << fault.name << ": " << clause;
    }
  }
}

TEST(Catalogue, HasAFaultOrAReasonForEveryClause) {
  const auto reasons = kept_clauses();
  for (const auto& [clause, reason] : reasons) {
    EXPECT_NE(conformance::find_clause(clause), nullptr) << clause;
    EXPECT_FALSE(reason.empty()) << clause;
  }
  std::set<std::string> named;
  for (const Fault& fault : all_faults()) {
    if (fault.plant == nullptr) continue;
    named.insert(fault.clauses.begin(), fault.clauses.end());
  }
  for (const conformance::Clause& clause : conformance::clauses()) {
    if (reasons.contains(clause.id)) continue;
    EXPECT_TRUE(named.contains(clause.id)) << clause.id << ": " << clause.title;
  }
}

TEST(Catalogue, EveryFaultIsLoadedByItsName) {
  ASSERT_TRUE(is_registered());
  for (const Fault& fault : all_faults()) {
    if (gpu_plant(fault.name) != nullptr) continue;  // loaded where there is a GPU
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
