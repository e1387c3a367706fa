// SPDX-License-Identifier: Apache-2.0
// Where a case is, with and without ranks.
#include "conformance/runner/phase_record.h"

#include <gtest/gtest.h>

namespace dropless::conformance {
namespace {

TEST(PhaseRecord, OneProcess) {
  PhaseRecord record;
  EXPECT_EQ(record.where(), "before the first operation");
  EXPECT_EQ(record.operation(), "");
  record.hear("quantize");
  EXPECT_TRUE(record.inside());
  EXPECT_EQ(record.where(), "inside quantize");
  record.hear("");
  EXPECT_FALSE(record.inside());
  EXPECT_EQ(record.where(), "after quantize had returned");
  EXPECT_EQ(record.operation(), "quantize");
  record.clear();
  EXPECT_EQ(record.where(), "before the first operation");
}

TEST(PhaseRecord, ARankThatSkippedACallIsBehind) {
  PhaseRecord record;
  for (const int rank : {0, 1, 2, 3}) {
    record.hear(announcement_of_rank(rank, 4, "exchange_plan"));
    record.hear(announcement_of_rank(rank, 4, ""));
  }
  for (const int rank : {0, 1, 3}) record.hear(announcement_of_rank(rank, 4, "exchange_dispatch"));
  EXPECT_TRUE(record.inside());
  EXPECT_EQ(record.operation(), "exchange_plan");
  EXPECT_EQ(record.where(),
            "rank 2 after exchange_plan had returned, ranks 0, 1, 3 inside exchange_dispatch; "
            "behind: rank 2");
}

TEST(PhaseRecord, ARankThatWasNeverHeardIsBehind) {
  PhaseRecord record;
  record.hear(announcement_of_rank(1, 2, "exchange_open"));
  EXPECT_EQ(record.where(),
            "rank 0 before the first operation, rank 1 inside exchange_open; behind: rank 0");
}

TEST(PhaseRecord, AllAtTheSamePlace) {
  PhaseRecord record;
  for (const int rank : {0, 1}) record.hear(announcement_of_rank(rank, 2, "exchange_open"));
  EXPECT_EQ(record.where(), "ranks 0, 1 inside exchange_open");
}

// EXCHANGE-10b: only who has announced it, only inside the operations that it named.
TEST(PhaseRecord, AnEndThatTheCaseAsksFor) {
  PhaseRecord record;
  record.hear("@0/2 exchange_plan");
  record.hear("@0/2 ");
  EXPECT_FALSE(record.may_end());
  record.hear("@0/2 ~exchange_plan exchange_dispatch");
  EXPECT_FALSE(record.may_end(0));
  record.hear("@0/2 exchange_dispatch");
  record.hear("@1/2 exchange_dispatch");
  EXPECT_TRUE(record.may_end());
  EXPECT_TRUE(record.may_end(0));
  EXPECT_FALSE(record.may_end(1));
  EXPECT_EQ(record.where_is(0), "inside exchange_dispatch");
  record.hear("@0/2 ");
  record.hear("@0/2 exchange_combine");
  EXPECT_FALSE(record.may_end());
}

}  // namespace
}  // namespace dropless::conformance
