// SPDX-License-Identifier: Apache-2.0
// The plain C example passes what it offers, and fails once a single line of it is wrong.
#include <set>

#include "tests/runner/tool.h"

namespace dropless::runner_tests {
namespace {

class Verdicts : public testing::Test {
 protected:
  std::set<std::string> failed_clauses() const {
    std::set<std::string> clauses;
    for (const nlohmann::json& record : records(tool.path("r.jsonl"))) {
      if (record.at("record") != "case") continue;
      for (const auto& failure : record.at("failures")) clauses.insert(failure.at("clause"));
    }
    return clauses;
  }
  Tool tool;
};

TEST_F(Verdicts, TheExampleIsRight) {
  const Ran ran =
      tool.run({"run", "--tier", "smoke", "--stage", "permutation", "--stage", "mxfp8", "--stage",
                "grouped_gemm", "-i", plugin("example"), "--results", "r.jsonl"});
  EXPECT_EQ(ran.code, 0) << ran;
  EXPECT_GE(statuses(tool.path("r.jsonl"))["pass"], 60) << ran;
}

struct Wrong {
  const char* plugin;
  const char* family;
  const char* clause;
};
class OneLine : public Verdicts, public testing::WithParamInterface<Wrong> {};

TEST_P(OneLine, IsFoundByItsClause) {
  const Ran ran = tool.run({"run", "--tier", "smoke", GetParam().family, "-i",
                            plugin(GetParam().plugin), "--results", "r.jsonl"});
  EXPECT_EQ(ran.code, 1) << ran;
  EXPECT_TRUE(failed_clauses().contains(GetParam().clause)) << ran;
  EXPECT_NE(ran.out.find(GetParam().clause), std::string::npos) << ran;
}

INSTANTIATE_TEST_SUITE_P(
    Runner, OneLine,
    testing::Values(Wrong{"wgrad_skips_empty_expert", "grouped_gemm.wgrad", "GROUPED_GEMM-5"},
                    Wrong{"floor_instead_of_rceil", "mxfp8.quantize", "MXFP8-2"},
                    Wrong{"last_slot_lost", "permutation.plan", "PERMUTATION-2"}),
    [](const auto& row) { return std::string(row.param.plugin); });

TEST_F(Verdicts, AFailureSaysAllThatIsNeeded) {
  const Ran ran = tool.run({"run", "--tier", "smoke", "mxfp8.quantize", "--no-results", "-i",
                            plugin("floor_instead_of_rceil")});
  for (const char* part : {"FAIL  mxfp8.", "MXFP8-2", "expected ", "got ", "bound ",
                           "reproduce: dropless run 'mxfp8.", "checks failed"}) {
    EXPECT_NE(ran.out.find(part), std::string::npos) << part << "\n" << ran;
  }
  const std::size_t begin = ran.out.find("dropless run '") + 14;
  const std::string id = ran.out.substr(begin, ran.out.find('\'', begin) - begin);
  EXPECT_EQ(tool.run({"run", id, "-i", plugin("floor_instead_of_rceil")}).code, 1) << id;
  EXPECT_EQ(tool.run({"run", id, "-i", plugin("example")}).code, 0) << id;
}

TEST_F(Verdicts, TheGateDecidesInItsLastLine) {
  const Ran go = tool.run({"gate", "--tier", "smoke", "--no-results", "-i", plugin("example")});
  EXPECT_EQ(go.code, 0) << go;
  EXPECT_NE(go.out.find("\nGO (smoke): permutation, mxfp8, grouped_gemm; not offered: routing"),
            std::string::npos)
      << go;
  const Ran no_go =
      tool.run({"gate", "--tier", "smoke", "--no-results", "-i", plugin("last_slot_lost")});
  EXPECT_EQ(no_go.code, 1) << no_go;
  const std::string last = no_go.out.substr(no_go.out.rfind('\n', no_go.out.size() - 2) + 1);
  EXPECT_TRUE(last.starts_with("NO-GO (smoke): ")) << last;
}

}  // namespace
}  // namespace dropless::runner_tests
