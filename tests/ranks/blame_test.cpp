// SPDX-License-Identifier: Apache-2.0
// The rank that the others wait for, by what each has entered and left.
#include <gtest/gtest.h>

#include "conformance/runner/phase_record.h"

namespace dropless::conformance {
namespace {

class FourRanks : public testing::Test {
 protected:
  void enter(int rank, const char* operation) {
    record.hear(announcement_of_rank(rank, 4, operation));
  }
  void leave(int rank) { enter(rank, ""); }
  void all_through(const char* operation) {
    for (int rank = 0; rank < 4; ++rank) enter(rank, operation), leave(rank);
  }
  void depart(int rank, Status status, const char* reason) {
    Verdict verdict;
    verdict.status = status;
    verdict.reason = reason;
    record.hear(announcement_of_rank(rank, 4, departure_text(verdict)));
  }
  void expect(const std::vector<int>& ranks, const std::string& operation, const std::string& why) {
    const Blame blame = record.blame();
    EXPECT_EQ(blame.ranks, ranks) << blame.why;
    EXPECT_EQ(blame.operation, operation);
    EXPECT_EQ(blame.why, why);
  }
  PhaseRecord record;
};

TEST_F(FourRanks, WhoSkippedACallCallsAnother) {
  all_through("plan");
  for (const int rank : {0, 1, 3}) enter(rank, "dispatch");
  enter(2, "combine");
  expect({2}, "dispatch", "out of step: rank 2 called combine where ranks 0, 1, 3 called dispatch");
}

TEST_F(FourRanks, WhoSkippedTheLastCallHasEndedTheCase) {
  all_through("plan");
  for (const int rank : {0, 1, 3}) enter(rank, "dispatch");
  depart(2, Status::pass, "");
  expect({2}, "dispatch", "out of step: rank 2 ended the case where ranks 0, 1, 3 called dispatch");
}

TEST_F(FourRanks, WhoLeftWithoutTheOthersIsAhead) {
  for (const int rank : {0, 1, 2, 3}) enter(rank, "dispatch");
  leave(2);
  enter(2, "combine");
  expect({2}, "dispatch", "left dispatch without the others: rank 2");
}

TEST_F(FourRanks, WhoIsStillInsideIsBehind) {
  for (const int rank : {0, 1, 2, 3}) enter(rank, "dispatch");
  for (const int rank : {0, 1, 3}) leave(rank), enter(rank, "combine");
  expect({2}, "dispatch", "behind: rank 2");
}

TEST_F(FourRanks, TheOnlyBusyOne) {
  for (const int rank : {0, 1, 2, 3}) enter(rank, "dispatch");
  EXPECT_TRUE(record.blame().ranks.empty());
  for (const int rank : {0, 1, 2, 3}) record.note_busy(rank, rank == 2);
  expect({2}, "dispatch", "busy while the others wait: rank 2");
  record.note_busy(0, true);
  record.note_busy(1, true);
  record.note_busy(3, true);  // all of them poll
  EXPECT_TRUE(record.blame().ranks.empty());
}

TEST_F(FourRanks, TheFirstThatLeftBadly) {
  for (const int rank : {0, 1, 2, 3}) enter(rank, "dispatch");
  depart(2, Status::crash, "dispatch threw");
  depart(1, Status::fail, "lost a peer");
  expect({2}, "dispatch", "first to leave: rank 2");
  const auto departure = record.departure();
  ASSERT_TRUE(departure);
  EXPECT_EQ(departure->status, Status::crash);
  EXPECT_EQ(departure->reason, "rank 2: dispatch threw");
}

TEST_F(FourRanks, TwoAgainstTwoAreAllNamed) {
  for (const int rank : {0, 1, 2, 3}) enter(rank, "dispatch");
  for (const int rank : {0, 1}) leave(rank), enter(rank, "combine");
  expect({2, 3, 0, 1}, "dispatch",
         "behind: ranks 2, 3, or left dispatch without the others: ranks 0, 1");
}

}  // namespace
}  // namespace dropless::conformance
