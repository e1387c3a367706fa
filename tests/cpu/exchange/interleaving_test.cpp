// SPDX-License-Identifier: Apache-2.0
// EXCHANGE-12: the order of calls. Rounds never mix, whoever is late.
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <thread>

#include "tests/cpu/exchange/routing.h"

namespace dropless::cpu::testing {
namespace {

using std::chrono::milliseconds;

void pause_for(int ms) {
  std::this_thread::sleep_for(milliseconds(ms));
}

Array filled(Index rows, double value) {
  return Array(DROPLESS_FP32, {rows, 64}).fill(value);
}

struct Opened {
  Opened(const Routing& routing, int r, Gathering& gathering)
      : rank(routing.profile(), r, routing.ranks, gathering) {
    routing.complete(rank.settings, memory);
    outcome = rank.open();
  }
  std::vector<Array> memory;
  Rank rank;
  Outcome outcome;
};

// Every token of rank r goes to an expert of every rank.
Routing everywhere(int ranks, Index tokens) {
  Routing routing;
  routing.ranks = ranks, routing.experts = ranks, routing.top_k = ranks;
  for (int r = 0; r < ranks; ++r) {
    std::vector<Index> ids;
    for (Index t = 0; t < tokens; ++t) {
      for (Index e = 0; e < ranks; ++e) ids.push_back(e);
    }
    routing.ids.push_back(ids);
  }
  return routing;
}

bool all_are(const Array& array, Index first, Index rows, double value) {
  for (Index i = first * 64; i < (first + rows) * 64; ++i) {
    if (array.at(i) != value) return false;
  }
  return true;
}

// D D C C, each call with other data, one rank late before every call in turn.
TEST(Interleaving, TwoDispatchesThenTwoCombinesWithALateRank) {
  const int ranks = 3;
  const Index tokens = 50;
  const Routing routing = everywhere(ranks, tokens);
  for (int late_call = 0; late_call < 5; ++late_call) {
    const auto gathering = make_gathering(ranks);
    run_threads(ranks, [&](int r) {
      Opened mine(routing, r, *gathering);
      ASSERT_EQ(mine.outcome.status, DROPLESS_OK) << mine.outcome.message;
      int calls = 0;
      const auto maybe_late = [&] {
        if (calls++ == late_call && r == late_call % ranks) pause_for(60);
      };
      maybe_late();
      ASSERT_EQ(mine.rank.plan(routing.ids_of(r)).total, ranks * tokens);
      std::vector<Array> received;
      for (const int call : {1, 2}) {
        maybe_late();
        received.push_back(filled(ranks * tokens, -1));
        ASSERT_EQ(mine.rank.dispatch(filled(tokens, 10 * r + call), received.back()).status,
                  DROPLESS_OK);
      }
      for (const int call : {1, 2}) {
        maybe_late();
        const Array y = filled(tokens, -1);
        ASSERT_EQ(mine.rank.combine(received[static_cast<std::size_t>(call - 1)], y).status,
                  DROPLESS_OK);
        EXPECT_TRUE(all_are(y, 0, tokens, ranks * (10 * r + call)));
      }
      for (int source = 0; source < ranks; ++source) {
        for (const int call : {1, 2}) {
          EXPECT_TRUE(all_are(received[static_cast<std::size_t>(call - 1)], source * tokens, tokens,
                              10 * source + call));
        }
      }
    });
  }
}

// Rank 0 sends to rank 1 and needs nothing back: it goes on through two calls before rank 1 makes
// the first, changes its memory, and rank 1 still gets what was sent.
TEST(Interleaving, ARankTwoCallsBehindGetsWhatWasSent) {
  const Index tokens = 40;
  Routing routing = random_routing(2, 2, 1, {tokens, 0}, 1);
  std::fill(routing.ids[0].begin(), routing.ids[0].end(), 1);
  for (const char* transport : {"threads", "sockets"}) {
    setenv("DROPLESS_TRANSPORT", transport, 1);
    const auto gathering = make_gathering(2);
    std::promise<void> sender_is_done;
    run_threads(2, [&](int r) {
      Opened mine(routing, r, *gathering);
      ASSERT_EQ(mine.outcome.status, DROPLESS_OK) << mine.outcome.message;
      ASSERT_EQ(mine.rank.plan(routing.ids_of(r)).outcome.status, DROPLESS_OK);
      if (r == 0) {
        const Array x = filled(tokens, 0), none = filled(0, 0);
        for (const double value : {1, 2}) {
          Array sent = x;
          sent.fill(value);
          EXPECT_EQ(mine.rank.dispatch(sent, none).status, DROPLESS_OK);
          sent.fill(-9);  // the memory is the caller's again
        }
        sender_is_done.set_value();
        return;
      }
      sender_is_done.get_future().wait();
      for (const double value : {1, 2}) {
        const Array rows = filled(tokens, -1);
        EXPECT_EQ(mine.rank.dispatch(filled(0, 0), rows).status, DROPLESS_OK);
        EXPECT_TRUE(all_are(rows, 0, tokens, value));
      }
    });
    unsetenv("DROPLESS_TRANSPORT");
  }
}

// Two handles at once; each keeps its own routing and its own rounds.
TEST(Interleaving, TwoHandlesInFlight) {
  const Index tokens = 30;
  const Routing a = everywhere(2, tokens);
  Routing b = everywhere(2, tokens);
  for (auto& ids : b.ids) std::fill(ids.begin() + 2, ids.end(), -1);  // the first token alone
  const auto gathering = make_gathering(2);
  run_threads(2, [&](int r) {
    Opened first(a, r, *gathering), second(b, r, *gathering);
    ASSERT_EQ(first.outcome.status, DROPLESS_OK);
    ASSERT_EQ(second.outcome.status, DROPLESS_OK);
    for (int step = 0; step < 20; ++step) {
      if ((step + r) % 3 == 0) pause_for(1);
      ASSERT_EQ(first.rank.plan(a.ids_of(r)).total, 2 * tokens);
      ASSERT_EQ(second.rank.plan(b.ids_of(r)).total, 2);
      const Array x = filled(tokens, step + 100 * r), rows_a = filled(2 * tokens, -1);
      const Array rows_b = filled(2, -1), y_a = filled(tokens, -1), y_b = filled(tokens, -1);
      ASSERT_EQ(first.rank.dispatch(x, rows_a).status, DROPLESS_OK);
      ASSERT_EQ(second.rank.dispatch(x, rows_b).status, DROPLESS_OK);
      ASSERT_EQ(first.rank.combine(rows_a, y_a).status, DROPLESS_OK);
      ASSERT_EQ(second.rank.combine(rows_b, y_b).status, DROPLESS_OK);
      EXPECT_TRUE(all_are(y_a, 0, tokens, 2 * (step + 100 * r)));
      EXPECT_TRUE(all_are(y_b, 0, 1, 2 * (step + 100 * r)));
      EXPECT_TRUE(all_are(y_b, 1, tokens - 1, 0));
    }
  });
}

// The same routing gives the same bits, 20 times, with ranks that come late at random.
TEST(Interleaving, TwentyRepeatsGiveTheSameBits) {
  const int ranks = 4;
  Routing routing = random_routing(ranks, 8, 4, {20, 21, 22, 23}, 9);
  routing.expert_major = true;
  const auto gathering = make_gathering(ranks);
  run_threads(ranks, [&](int r) {
    Opened mine(routing, r, *gathering);
    ASSERT_EQ(mine.outcome.status, DROPLESS_OK);
    std::mt19937 engine(static_cast<unsigned>(r));
    std::vector<std::byte> first;
    for (int repeat = 0; repeat < 20; ++repeat) {
      if (engine() % 4 == 0) pause_for(static_cast<int>(engine() % 8));
      const Index total = mine.rank.plan(routing.ids_of(r)).total;
      const Array rows = Array(DROPLESS_FP32, {total, 64}).random(static_cast<unsigned>(r + 1));
      const Array y = filled(routing.tokens(r), -1);
      if (engine() % 4 == 0) pause_for(static_cast<int>(engine() % 8));
      ASSERT_EQ(mine.rank.combine(rows, y).status, DROPLESS_OK);
      if (repeat == 0) first = y.bytes();
      ASSERT_EQ(y.bytes(), first);
    }
  });
}

// A rank that makes another call than the rest is found out, and named.
TEST(Interleaving, ADifferentOrderIsRefused) {
  const Routing routing = everywhere(2, 4);
  const auto gathering = make_gathering(2);
  std::vector<Outcome> outcomes(2);
  run_threads(2, [&](int r) {
    Opened mine(routing, r, *gathering);
    ASSERT_EQ(mine.outcome.status, DROPLESS_OK);
    ASSERT_EQ(mine.rank.plan(routing.ids_of(r)).outcome.status, DROPLESS_OK);
    const Array x = filled(4, 1), rows = filled(8, 1);
    outcomes[static_cast<std::size_t>(r)] =
        r == 0 ? mine.rank.dispatch(x, rows) : mine.rank.combine(rows, x);
  });
  for (const Outcome& each : outcomes) {
    EXPECT_EQ(each.status, DROPLESS_INVALID_ARGUMENT);
    EXPECT_NE(each.message.find("calls must come in the same order"), std::string::npos);
  }
}

}  // namespace
}  // namespace dropless::cpu::testing
