// SPDX-License-Identifier: Apache-2.0
// EXCHANGE-9 by hand, and the refusals of settings.
#include <gtest/gtest.h>

#include <limits>

#include "tests/cpu/exchange/routing.h"

namespace dropless::cpu::testing {
namespace {

struct Sizes {
  int ranks;
  Index experts, top_k, tokens;
  double factor;
};

Index capacity_of(const Sizes& n, bool expert_major, int alignment = 1) {
  dropless_profile profile = default_profile();
  profile.dispatch_layout = expert_major ? DROPLESS_DISPATCH_EXPERT_MAJOR : DROPLESS_DISPATCH_FLAT;
  profile.alignment = alignment;
  const auto gathering = make_gathering(1);
  Rank rank(profile, 0, n.ranks, *gathering);
  rank.settings.num_experts = n.experts, rank.settings.top_k = n.top_k;
  rank.settings.max_tokens = n.tokens, rank.settings.ragged_buffer_factor = n.factor;
  Index rows = -1;
  const Outcome outcome = rank.capacity(rows);
  EXPECT_EQ(outcome.status, DROPLESS_OK) << outcome.message;
  return rows;
}

TEST(Capacity, WorstCase) {
  EXPECT_EQ(capacity_of({4, 8, 2, 10, -1}, false), 40);     // R * T
  EXPECT_EQ(capacity_of({4, 8, 2, 10, -1}, true), 80);      // L = 2: R * T * min(K, L)
  EXPECT_EQ(capacity_of({4, 4, 2, 10, -1}, true), 40);      // L = 1: one pair a token
  EXPECT_EQ(capacity_of({4, 8, 2, 10, -1}, true, 16), 96);  // min(2 * 48, up(80 + 30))
  EXPECT_EQ(capacity_of({1, 64, 2, 2, -1}, true, 16), 64);  // up(4 + 15 * min(64, 4))
  EXPECT_EQ(capacity_of({4, 8, 2, 0, -1}, true, 16), 0);
}

TEST(Capacity, FactorOfTheBalancedLoad) {
  // L = 2, T K / L = 10 rows for each expert: 20 rows times the factor.
  EXPECT_EQ(capacity_of({4, 8, 2, 10, 1}, true), 20);
  EXPECT_EQ(capacity_of({4, 8, 2, 10, 1.25}, true), 25);
  EXPECT_EQ(capacity_of({4, 8, 2, 10, 1.1}, true), 22);
  EXPECT_EQ(capacity_of({4, 8, 2, 10, 1.1F}, true), 22);  // 1.1 in fp32 is a little more
  EXPECT_EQ(capacity_of({4, 8, 2, 10, 1.11}, true), 23);
  EXPECT_EQ(capacity_of({4, 8, 2, 10, 100}, true), 80);    // never beyond the worst case
  EXPECT_EQ(capacity_of({4, 8, 2, 10, 1}, true, 16), 32);  // 2 * up(10)
  EXPECT_EQ(capacity_of({4, 64, 1, 10, 1}, false), 16);    // L = 16: ceil(10 / 16) = 1 row each
  EXPECT_EQ(capacity_of({4, 4, 1, 10, 1}, false), 10);
}

struct Wrong {
  const char* message;
  std::function<void(dropless_exchange_settings&)> change;
};

TEST(Settings, WrongOnesAreRefusedAtOnce) {
  const Array twice = Array(DROPLESS_I32, {2, 2}).set({0, 0, 1, 2});
  const Array missing = Array(DROPLESS_I32, {2, 2}).set({0, 1, 2, 1});
  const Array outside = Array(DROPLESS_I32, {2, 2}).set({0, 1, 2, 4});
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<Wrong> wrong = {
      {"rank", [](auto& s) { s.rank = 2; }},
      {"ranks", [](auto& s) { s.ranks = 0; }},
      {"top_k exceeds", [](auto& s) { s.top_k = 5; }},
      {"not divisible by 2 ranks", [](auto& s) { s.num_experts = 5; }},
      {"max_tokens", [](auto& s) { s.max_tokens = -1; }},
      {"row_bytes", [](auto& s) { s.row_bytes = -1; }},
      {"scale_bytes", [](auto& s) { s.scale_bytes = -1; }},
      {"ragged_buffer_factor", [](auto& s) { s.ragged_buffer_factor = 0.99; }},
      {"ragged_buffer_factor", [](auto& s) { s.ragged_buffer_factor = -2; }},
      {"ragged_buffer_factor", [nan](auto& s) { s.ragged_buffer_factor = nan; }},
      {"timeout_seconds", [](auto& s) { s.timeout_seconds = 0; }},
      {"overflow_check_every", [](auto& s) { s.overflow_check_every = -1; }},
      {"expert 0 twice on rank 0", [&](auto& s) { s.placement = twice.get(); }},
      {"expert 3 has no slot", [&](auto& s) { s.placement = missing.get(); }},
      {"placement: outside", [&](auto& s) { s.placement = outside.get(); }},
      {"all_gather", [](auto& s) { s.all_gather = nullptr; }},
  };
  for (const Wrong& each : wrong) {
    const auto gathering = make_gathering(1);
    Rank rank(default_profile(), 0, 2, *gathering);
    rank.settings.num_experts = 4, rank.settings.top_k = 2, rank.settings.max_tokens = 8;
    each.change(rank.settings);
    const Outcome outcome = rank.open();
    EXPECT_EQ(outcome.status, DROPLESS_INVALID_ARGUMENT) << each.message;
    EXPECT_NE(outcome.message.find(each.message), std::string::npos) << outcome.message;
  }
}

TEST(Settings, RanksThatMeanDifferentThingsAreToldSo) {
  const auto gathering = make_gathering(3);
  std::vector<Outcome> outcomes(3);
  run_threads(3, [&](int r) {
    Rank rank(default_profile(), r, 3, *gathering);
    rank.settings.num_experts = 6, rank.settings.top_k = 2;
    rank.settings.max_tokens = r == 2 ? 9 : 8;
    outcomes[static_cast<std::size_t>(r)] = rank.open();
  });
  for (const Outcome& each : outcomes) {
    EXPECT_EQ(each.status, DROPLESS_INVALID_ARGUMENT);
    EXPECT_EQ(each.message, "settings: rank 2 and rank 0 differ in max_tokens");
  }
}

TEST(Settings, ATransportThatCannotServeIsToldSo) {
  for (const char* wanted : {"threads", "mpi", "pigeons"}) {
    setenv("DROPLESS_TRANSPORT", wanted, 1);
    const auto gathering = make_gathering(2);
    const auto wrong = run_processes(2, [&](int r) -> std::string {
      Rank rank(default_profile(), r, 2, *gathering);
      rank.settings.num_experts = 4, rank.settings.top_k = 2, rank.settings.max_tokens = 8;
      const Outcome outcome = rank.open();
      const bool refused =
          outcome.status != DROPLESS_OK && outcome.message.find("DROPLESS_TRANSPORT") == 0;
      return refused ? "" : "not refused: " + outcome.message;
    });
    EXPECT_EQ(wrong, std::vector<std::string>(2));
    unsetenv("DROPLESS_TRANSPORT");
  }
}

TEST(Profiles, AnUnlistedChoiceHasNoTable) {
  dropless_profile profile = default_profile();
  profile.alignment = 3;
  EXPECT_EQ(exchange::implementation(profile), nullptr);
  profile = default_profile();
  profile.dispatch_layout = 9;
  EXPECT_EQ(exchange::implementation(profile), nullptr);
  profile = default_profile();
  profile.replica_map = DROPLESS_REPLICA_DECLARED;
  EXPECT_EQ(exchange::implementation(profile), nullptr);
  EXPECT_EQ(exchange::implementation(default_profile()),
            exchange::implementation(default_profile()));
}

}  // namespace
}  // namespace dropless::cpu::testing
