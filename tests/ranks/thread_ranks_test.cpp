// SPDX-License-Identifier: Apache-2.0
// Collective cases over threads: everybody meets, one leaves early, one verdict.
#include "conformance/ranks/thread_ranks.h"

#include <gtest/gtest.h>

#include <atomic>

#include "conformance/ranks/rank_group.h"

namespace dropless::conformance {
namespace {

dropless_implementation nothing() {
  dropless_implementation table{};
  table.struct_size = sizeof table;
  table.contract_version = DROPLESS_CONTRACT_VERSION;
  return table;
}

Verdict run(int ranks, std::function<void(CaseRun&)> function) {
  Family family;
  family.name = "exchange.of_this_test";
  family.clauses = {"GENERAL-1"};
  family.parameters = {integer_parameter("ranks", 1, 1024, "ranks R")};
  family.run = std::move(function);
  CaseId id;
  id.family = family.name;
  id.values = {{"ranks", std::to_string(ranks)}};
  EXPECT_TRUE(is_collective(family));
  return run_case_over_threads(nothing(), family, id);
}

TEST(ThreadRanks, GatherInTheOrderOfRanks) {
  const Verdict verdict = run(5, [](CaseRun& run) {
    RankGroup& group = this_group();
    for (int round = 0; round < 100; ++round) {
      const int mine = 1000 * round + group.rank();
      int all[5] = {};
      const bool complete = all_gather_of_group(&group, &mine, all, sizeof mine) == 0;
      run.judge().holds("GENERAL-1", "complete", complete, "yes", "no");
      for (int rank = 0; rank < 5; ++rank) {
        run.judge().holds("GENERAL-1", "order", all[rank] == 1000 * round + rank, "own place",
                          "another");
      }
    }
  });
  EXPECT_EQ(verdict.status, Status::pass) << verdict.reason;
  EXPECT_EQ(verdict.checks, 5 * 100 * 6);
}

TEST(ThreadRanks, WhoWaitsForARankThatHasLeftIsTold) {
  const Verdict verdict = run(3, [](CaseRun& run) {
    if (this_group().rank() == 1) {
      run.judge().holds("GENERAL-1", "something", false, "right", "wrong");
      throw CaseEnded{};
    }
    run.judge().holds("GENERAL-1", "told", !this_group().meet(), "told", "met nobody");
  });
  EXPECT_EQ(verdict.status, Status::fail);
  EXPECT_EQ(verdict.failed_checks, 1);
  ASSERT_EQ(verdict.failures.size(), 1u);
  EXPECT_EQ(verdict.failures[0].what, "rank 1: something");
  EXPECT_TRUE(verdict.reason.starts_with("rank 1: ")) << verdict.reason;
}

TEST(ThreadRanks, RanksThatDisagreeAboutSizesAreTold) {
  const Verdict verdict = run(2, [](CaseRun& run) {
    const std::vector<char> mine(this_group().rank() == 0 ? 4 : 8);
    std::vector<char> all(2 * mine.size());
    const bool met = this_group().all_gather(mine.data(), all.data(), mine.size());
    run.judge().holds("GENERAL-1", "told", !met, "told", "taken for right");
  });
  EXPECT_EQ(verdict.status, Status::pass) << verdict.reason;
}

TEST(ThreadRanks, WhatIsSharedIsMadeOnce) {
  std::atomic<int> made = 0;
  const Verdict verdict = run(8, [&](CaseRun& run) {
    const auto make = [&] { return std::vector<int>{7, static_cast<int>(++made)}; };
    const auto& shared = this_group().shared<std::vector<int>>("numbers", make);
    run.judge().holds("GENERAL-1", "value", shared[0] == 7 && shared[1] == 1, "7, 1", "other");
  });
  EXPECT_EQ(verdict.status, Status::pass) << verdict.reason;
  EXPECT_EQ(made, 1);
}

TEST(ThreadRanks, TheGravestStatusIsTheVerdict) {
  Verdict passed, failed, crashed, mistrusted;
  passed.status = Status::pass;
  failed.status = Status::fail, failed.reason = "two";
  crashed.status = Status::crash, crashed.reason = "gone";
  mistrusted.status = Status::mistrusted, mistrusted.reason = "blind";
  EXPECT_EQ(merged({passed, passed}).status, Status::pass);
  EXPECT_EQ(merged({passed, passed}).reason, "");
  EXPECT_EQ(merged({passed, mistrusted}).reason, "rank 1: blind");
  EXPECT_EQ(merged({mistrusted, passed, failed}).reason, "rank 2: two");
  EXPECT_EQ(merged({failed, crashed, passed}).status, Status::crash);
  EXPECT_EQ(merged({}).status, Status::internal_error);
}

TEST(ThreadRanks, OutsideThereIsNoGroup) {
  EXPECT_EQ(current_group(), nullptr);
  EXPECT_THROW((void)this_group(), std::logic_error);
}

}  // namespace
}  // namespace dropless::conformance
