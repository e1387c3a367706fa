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

}  // namespace
}  // namespace dropless::conformance
