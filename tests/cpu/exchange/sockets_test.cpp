// SPDX-License-Identifier: Apache-2.0
// Ranks that are forked processes: local sockets, TCP, and a rank that is killed.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>

#include "tests/cpu/exchange/routing.h"

namespace dropless::cpu::testing {
namespace {

class Sockets : public ::testing::Test {
 protected:
  void TearDown() override {
    unsetenv("DROPLESS_TRANSPORT");
    unsetenv("DROPLESS_SOCKET_ADDRESS");
  }
  static void expect_right(const Routing& routing) {
    const auto gathering = make_gathering(routing.ranks);
    const auto wrong = run_processes(
        routing.ranks, [&](int r) { return check_all(r, *gathering, routing, "sockets"); });
    for (const std::string& each : wrong) EXPECT_EQ(each, "");
  }
};

TEST_F(Sockets, FourProcessesInBothLayouts) {
  Routing routing = random_routing(4, 24, 4, {20, 3, 0, 31}, 5);
  expect_right(routing);
  routing.expert_major = true;
  routing.weighted = true;
  routing.alignment = 16;
  expect_right(routing);
}

TEST_F(Sockets, OverTcp) {
  setenv("DROPLESS_SOCKET_ADDRESS", "127.0.0.1", 1);
  expect_right(random_routing(3, 12, 3, {20, 30, 10}, 6));
}

TEST_F(Sockets, CanBeForcedInOneProcess) {
  setenv("DROPLESS_TRANSPORT", "sockets", 1);
  const Routing routing = random_routing(2, 4, 2, {9, 5}, 7);
  const auto gathering = make_gathering(2);
  std::vector<std::string> wrong(2);
  run_threads(2, [&](int r) {
    wrong[static_cast<std::size_t>(r)] = check_all(r, *gathering, routing, "sockets");
  });
  EXPECT_EQ(wrong, std::vector<std::string>(2));
}

// Large rows: far more bytes than a socket takes at once, in both directions at the same time.
TEST_F(Sockets, ManyMegabytes) {
  const Index hidden = (1 << 14) + 3, tokens = 300;  // rows at every alignment
  const auto gathering = make_gathering(2);
  const auto wrong = run_processes(2, [&](int r) -> std::string {
    Routing routing = random_routing(2, 2, 1, {tokens, tokens}, 1);
    for (auto& ids : routing.ids) std::fill(ids.begin(), ids.end(), 0);
    std::fill(routing.ids[0].begin(), routing.ids[0].end(), 1);  // everything crosses
    Rank mine(routing.profile(), r, 2, *gathering);
    std::vector<Array> memory;
    routing.complete(mine.settings, memory);
    if (const Outcome o = mine.open(); o.status != DROPLESS_OK) return o.message;
    if (const auto p = mine.plan(routing.ids_of(r)); p.total != tokens) return p.outcome.message;
    const Array x = Array(DROPLESS_I32, {tokens, hidden}).random_bytes(static_cast<unsigned>(r));
    const Array want =
        Array(DROPLESS_I32, {tokens, hidden}).random_bytes(static_cast<unsigned>(1 - r));
    const Array rows(DROPLESS_I32, {tokens, hidden});
    if (const Outcome o = mine.dispatch(x, rows); o.status != DROPLESS_OK) return o.message;
    return rows.bytes() == want.bytes() ? "" : "bytes differ";
  });
  EXPECT_EQ(wrong, std::vector<std::string>(2));
}

// The others learn of it long before the time-out, and from whom they wait for.
TEST_F(Sockets, AKilledRankIsLostOnEveryOtherRank) {
  const auto gathering = make_gathering(4);
  const auto result = run_processes(4, [&](int r) -> std::string {
    const Routing routing = random_routing(4, 8, 2, {40, 40, 40, 40}, 2);
    Rank mine(routing.profile(), r, 4, *gathering);
    std::vector<Array> memory;
    routing.complete(mine.settings, memory);
    mine.settings.timeout_seconds = 20;
    if (const Outcome o = mine.open(); o.status != DROPLESS_OK) return o.message;
    if (const auto p = mine.plan(routing.ids_of(r)); p.outcome.status != DROPLESS_OK) {
      return p.outcome.message;
    }
    char all[4];
    gathering->gather(r, "", all, 1);  // nobody is in the plan any more
    if (r == 2) kill(getpid(), SIGKILL);
    const auto start = std::chrono::steady_clock::now();
    const Array x(DROPLESS_FP32, {40, 4}), rows(DROPLESS_FP32, {160, 4});
    const Outcome lost = mine.dispatch(x, rows);
    const Outcome after = mine.combine(rows, x);
    if (std::chrono::steady_clock::now() - start > std::chrono::seconds(10)) return "too late";
    if (lost.status != DROPLESS_PEER_LOST) return "status " + std::to_string(lost.status);
    if (after.status != DROPLESS_PEER_LOST) return "later " + std::to_string(after.status);
    if (lost.message.find("exchange_dispatch: no rows from rank 2") == std::string::npos) {
      return lost.message;
    }
    return mine.close().message;
  });
  EXPECT_EQ(result, (std::vector<std::string>{"", "", "signal 9", ""}));
}

// A rank that is stopped is not lost: that ends by the time-out.
TEST_F(Sockets, AStoppedRankEndsInTheTimeOut) {
  const auto gathering = make_gathering(3);
  const auto result = run_processes(3, [&](int r) -> std::string {
    const Routing routing = random_routing(3, 6, 2, {40, 40, 40}, 2);
    Rank mine(routing.profile(), r, 3, *gathering);
    std::vector<Array> memory;
    routing.complete(mine.settings, memory);
    mine.settings.timeout_seconds = 0.5;
    if (const Outcome o = mine.open(); o.status != DROPLESS_OK) return o.message;
    char all[3];
    if (r == 1) {  // stays, and says nothing, until the others have given up
      gathering->gather(r, "", all, 1);
      return "";
    }
    const PlanResult p = mine.plan(routing.ids_of(r));
    gathering->gather(r, "", all, 1);
    if (p.outcome.status != DROPLESS_TIMEOUT) return "status " + std::to_string(p.outcome.status);
    if (p.outcome.message.find("exchange_plan: no routing from rank 1 within 0.5 s") ==
        std::string::npos) {
      return p.outcome.message;
    }
    return p.total == -77 ? "" : "outputs were written";
  });
  EXPECT_EQ(result, std::vector<std::string>(3));
}

}  // namespace
}  // namespace dropless::cpu::testing
