// SPDX-License-Identifier: Apache-2.0
// Exchange cases of the CPU implementation over threads, processes and mpirun: one list, the same
// verdicts; and an implementation that ends its process where its profile says so.
#include <fmt/format.h>

#include "tests/ranks/ways.h"

namespace dropless::runner_tests {
namespace {

struct CaseResult {
  std::string status, reason;
  std::int64_t checks = 0;
};
using Results = std::map<std::string, CaseResult>;

bool same_verdicts(const Results& a, const Results& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return x.first == y.first && x.second.status == y.second.status &&
           x.second.checks == y.second.checks;
  });
}

// `dropless run` over 4 ranks.
Results run_over(Way way, std::vector<std::string> arguments, Ran* ran = nullptr) {
  Tool tool;
  for (const char* variable : {"OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
                               "OMPI_MCA_rmaps_base_oversubscribe"}) {
    tool.set(variable, "1");
  }
  arguments.insert(arguments.begin(), "run");
  arguments.insert(arguments.end(), {"--results", "r.jsonl"});
  if (way == Way::under_mpirun) {
    tool.start_by({"mpirun", "--oversubscribe", "-np", "4"});
  } else {
    arguments.insert(arguments.end(), {"--ranks", "4", "--launcher", name(way)});
  }
  const Ran result = tool.run(arguments);
  if (ran != nullptr) *ran = result;
  Results results;
  for (const nlohmann::json& record : records(tool.path("r.jsonl"))) {
    if (record.at("record") != "case") continue;
    results[record.at("id")] = {record.at("status"), record.value("reason", ""),
                                record.at("checks")};
  }
  return results;
}

TEST(Exchange, TheSameCasesAndVerdictsHoweverRanksAreCarried) {
  const std::vector<std::string> cases = {
      "exchange.dispatch", "exchange.combine", "-i", "cpu", "--tier", "smoke", "--jobs", "1"};
  const Results threads = run_over(Way::threads, cases);
  ASSERT_GE(threads.size(), 2u);
  for (const auto& [id, result] : threads) EXPECT_EQ(result.status, "pass") << id << result.reason;
  for (const Way way : all_ways()) {
    if (way != Way::processes && way != Way::under_mpirun) continue;
    Ran ran;
    EXPECT_TRUE(same_verdicts(threads, run_over(way, cases, &ran))) << name(way) << ran;
  }
}

#ifdef DROPLESS_TEST_TRAPS
std::string overflow(const std::string& room, int seed) {
  return fmt::format(
      "exchange.overflow:ranks=4,experts=8,top_k=2,tokens=12,share=even,load=balanced,"
      "placement=blocks,nodes=one,room={},seed={}",
      room, seed);
}
const std::vector<std::string> overflows = {overflow("exact", 1), overflow("one_above", 1),
                                            overflow("exact", 2)};

std::vector<std::string> with(const std::string& library) {
  std::vector<std::string> arguments = overflows;
  arguments.insert(arguments.end(), {"-i", plugin(library), "--jobs", "1"});
  return arguments;
}

// EXCHANGE-10b. The cases around the trap are not touched by it.
TEST(Exchange, AnOverflowThatHasToTrapEndsTheProcess) {
  for (const Way way : {Way::threads, Way::processes}) {
    Ran ran;
    const Results results = run_over(way, with("overflow_traps"), &ran);
    EXPECT_EQ(ran.code, 0) << ran;
    ASSERT_EQ(results.size(), overflows.size()) << ran;
    for (const auto& [id, result] : results) EXPECT_EQ(result.status, "pass") << id << ran;
  }
}

TEST(Exchange, AnOverflowThatDoesNotTrapThoughItShouldIsFound) {
  for (const Way way : {Way::threads, Way::processes}) {
    Ran ran;
    const Results results = run_over(way, with("overflow_is_said_to_trap"), &ran);
    EXPECT_EQ(ran.code, 1) << ran;
    EXPECT_NE(ran.out.find("EXCHANGE-10b"), std::string::npos) << ran;
    for (const auto& [id, result] : results) {
      EXPECT_EQ(result.status, id.find("one_above") == std::string::npos ? "pass" : "fail") << id;
    }
  }
}
#endif

}  // namespace
}  // namespace dropless::runner_tests
