// SPDX-License-Identifier: Apache-2.0
// Selection: ties, output order, groups; by hand and against a definition by counting.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <set>

#include "tests/reference/route_setup.h"

namespace dropless::reference::testing {
namespace {

using Ids = std::vector<Index>;

// A total order that is neither ascending nor descending: i -> 5 i + 3 mod count, for count coprime
// to 5.
std::int64_t scrambled(std::int64_t count, std::int64_t index) {
  return (5 * index + 3) % count;
}

Ids ids_of(const dropless_route_settings& settings, const dropless_profile& profile,
           const Doubles& logits, const Doubles& bias = {}) {
  return route(settings, profile, {1, logits, bias, {}, {}, {}}).ids;
}

TEST(Ties, EveryRuleOrdersSelectedExperts) {
  const auto settings = route_settings(8, 3, DROPLESS_SCORE_SIGMOID);
  auto profile = default_profile();
  const Doubles equal(8, 0.5);
  EXPECT_EQ(ids_of(settings, profile, equal), (Ids{0, 1, 2}));
  profile.tie_rule = DROPLESS_TIE_ANY;
  EXPECT_EQ(ids_of(settings, profile, equal), (Ids{0, 1, 2}));
  profile.tie_rule = DROPLESS_TIE_HIGHEST_INDEX;
  EXPECT_EQ(ids_of(settings, profile, equal), (Ids{7, 6, 5}));
  profile.tie_rule = DROPLESS_TIE_DECLARED;
  profile.tie_rank = scrambled;  // ranks 3 0 5 2 7 4 1 6
  EXPECT_EQ(ids_of(settings, profile, equal), (Ids{1, 6, 3}));
}

TEST(Ties, TheRuleOrdersEqualsInTheOutputToo) {
  const auto settings = route_settings(4, 3, DROPLESS_SCORE_SIGMOID);
  auto profile = default_profile();
  profile.tie_rule = DROPLESS_TIE_HIGHEST_INDEX;
  EXPECT_EQ(ids_of(settings, profile, {1, 2, 1, 1}), (Ids{1, 3, 2}));
}

TEST(Ties, TheRuleOrdersGroups) {
  auto settings = route_settings(8, 1, DROPLESS_SCORE_SIGMOID);
  settings.num_groups = 4;
  settings.kept_groups = 1;
  auto profile = default_profile();
  const Doubles logits{0, 2, 2, 0, 2, 0, 0, 2};  // every group has 0 and 2
  EXPECT_EQ(ids_of(settings, profile, logits), Ids{1});
  profile.tie_rule = DROPLESS_TIE_HIGHEST_INDEX;
  EXPECT_EQ(ids_of(settings, profile, logits), Ids{7});
  profile.tie_rule = DROPLESS_TIE_DECLARED;
  profile.tie_rank = scrambled;  // of four: 3 0 1 2
  EXPECT_EQ(ids_of(settings, profile, logits), Ids{2});
}

TEST(OutputOrder, DescendingScoreOrAscendingId) {
  const auto settings = route_settings(5, 3, DROPLESS_SCORE_SIGMOID);
  auto profile = default_profile();
  const Doubles logits{1, 5, 0, 3, 4};
  EXPECT_EQ(ids_of(settings, profile, logits), (Ids{1, 4, 3}));
  profile.selection_order = DROPLESS_ORDER_ANY;
  EXPECT_EQ(ids_of(settings, profile, logits), (Ids{1, 4, 3}));
  profile.selection_order = DROPLESS_ORDER_ASCENDING_ID;
  const Routing r = route(settings, profile, {1, logits, {}, {}, {}, {}});
  EXPECT_EQ(r.ids, (Ids{1, 3, 4}));
  EXPECT_GT(r.weights[0], r.weights[2]);  // the weights follow their experts
  EXPECT_GT(r.weights[2], r.weights[1]);
}

// Scores of the groups: {0.9, 0.1}, {0.6, 0.6}, {0.5, 0.2}, {0.7, 0.4}.
const Doubles kGroupScores{0.9, 0.1, 0.6, 0.6, 0.5, 0.2, 0.7, 0.4};

Doubles logits_of(const Doubles& scores) {
  Doubles logits;
  for (const double score : scores) logits.push_back(logit_of(score));
  return logits;
}

TEST(Groups, SumOfTheBestMembers) {
  auto settings = route_settings(8, 4, DROPLESS_SCORE_SIGMOID);
  settings.num_groups = 4;
  settings.kept_groups = 2;  // w = 2: sums 1.0, 1.2, 0.7, 1.1
  const Routing r =
      route(settings, default_profile(), {1, logits_of(kGroupScores), {}, {}, {}, {}});
  EXPECT_NEAR(r.group_scores[1], 1.2, 1e-6);
  EXPECT_EQ(r.group_kept, (std::vector<std::uint8_t>{0, 1, 0, 1}));
  EXPECT_EQ(r.ids, (Ids{6, 2, 3, 7}));
}

TEST(Groups, BestMemberAlone) {
  auto settings = route_settings(8, 4, DROPLESS_SCORE_SIGMOID);
  settings.num_groups = 4;
  settings.kept_groups = 2;  // maxima 0.9, 0.6, 0.5, 0.7
  settings.group_score = DROPLESS_GROUP_SCORE_MAX;
  EXPECT_EQ(ids_of(settings, default_profile(), logits_of(kGroupScores)), (Ids{0, 6, 7, 1}));
}

TEST(Groups, WidthTwoDiffersFromKOverKept) {
  auto settings = route_settings(8, 1, DROPLESS_SCORE_SIGMOID);
  settings.num_groups = 4;
  settings.kept_groups = 1;
  auto profile = default_profile();  // w = 1: the group with 0.9
  EXPECT_EQ(ids_of(settings, profile, logits_of(kGroupScores)), Ids{0});
  profile.group_width = DROPLESS_GROUP_WIDTH_TWO;  // the group with 0.6 + 0.6
  EXPECT_EQ(ids_of(settings, profile, logits_of(kGroupScores)), Ids{2});
}

TEST(Groups, WidthIsAtMostTheGroupSize) {
  auto settings = route_settings(4, 2, DROPLESS_SCORE_SIGMOID);
  settings.num_groups = 4;
  settings.kept_groups = 2;
  auto profile = default_profile();
  profile.group_width = DROPLESS_GROUP_WIDTH_TWO;
  EXPECT_EQ(ids_of(settings, profile, {0, 3, 1, 2}), (Ids{1, 3}));
}

TEST(Groups, ExpertsOutsideAreNotSelectedWhateverTheSign) {
  auto settings = route_settings(6, 3, DROPLESS_SCORE_SIGMOID);
  settings.num_groups = 2;
  settings.kept_groups = 1;
  // All selection scores are negative; zero would beat them.
  const Doubles logits{0, 0, 0, 1, -20, -30}, bias{-5, -5, -5, -1, -2, -3};
  EXPECT_EQ(ids_of(settings, default_profile(), logits, bias), (Ids{3, 4, 5}));
}

TEST(Groups, MaskedMembersCountAsMinusInfinity) {
  auto settings = route_settings(6, 2, DROPLESS_SCORE_SIGMOID);
  settings.num_groups = 3;
  settings.kept_groups = 1;  // w = 2
  const Doubles logits{9, -kInf, -3, -3, -4, -4};
  const Routing r = route(settings, default_profile(), {1, logits, {}, {}, {}, {}});
  EXPECT_EQ(r.group_scores[0], -kInf);
  EXPECT_EQ(r.ids, (Ids{2, 3}));
}

// ROUTING-4: -Inf also beside a member whose bias is +Inf.
TEST(Groups, AMaskedMemberOutweighsAnInfiniteBias) {
  auto settings = route_settings(4, 2, DROPLESS_SCORE_SIGMOID);
  settings.num_groups = 2;
  settings.kept_groups = 1;  // w = 2
  const Doubles logits{1, -kInf, -3, -3}, bias{kInf, 0, 0, 0};
  const Routing r = route(settings, default_profile(), {1, logits, bias, {}, {}, {}});
  EXPECT_EQ(r.group_scores[0], -kInf);
  EXPECT_EQ(r.ids, (Ids{2, 3}));
}

TEST(Groups, OneGroupIsNoGroupLimit) {
  auto settings = route_settings(4, 2, DROPLESS_SCORE_SOFTMAX);
  settings.softmax_order = DROPLESS_SOFTMAX_AFTER_TOP_K;
  settings.num_groups = 1;
  settings.kept_groups = 0;
  EXPECT_EQ(ids_of(settings, default_profile(), {0, 3, 1, 2}), (Ids{1, 3}));
}

// The definition by counting: an expert is selected exactly if fewer than K experts precede it,
// where only experts of kept groups count; a group is kept if fewer than `kept` groups precede it.
struct Counting {
  const dropless_route_settings& settings;
  const dropless_profile& profile;

  [[nodiscard]] bool precedes(double a, Index i, double b, Index j, Index count) const {
    if (a != b) return a > b;
    switch (profile.tie_rule) {
      case DROPLESS_TIE_HIGHEST_INDEX:
        return i > j;
      case DROPLESS_TIE_DECLARED:
        return scrambled(count, i) < scrambled(count, j);
      default:
        return i < j;
    }
  }
  // Sum of the w largest by trying every pair or single member.
  [[nodiscard]] double group_score(const Doubles& s, Index g) const {
    const Index size = settings.num_experts / settings.num_groups;
    Index w =
        profile.group_width == DROPLESS_GROUP_WIDTH_TWO ? 2 : settings.top_k / settings.kept_groups;
    if (settings.group_score == DROPLESS_GROUP_SCORE_MAX) w = 1;
    w = std::min(w, size);
    EXPECT_LE(w, 2);
    double best = -kInf;
    for (Index i = g * size; i < (g + 1) * size; ++i) {
      if (w == 1) best = std::max(best, s[at(i)]);
      for (Index j = i + 1; w == 2 && j < (g + 1) * size; ++j) {
        best = std::max(best, s[at(i)] + s[at(j)]);
      }
    }
    return best;
  }
  [[nodiscard]] bool kept(const Doubles& s, Index g) const {
    Index before = 0;
    for (Index h = 0; h < settings.num_groups; ++h) {
      if (precedes(group_score(s, h), h, group_score(s, g), g, settings.num_groups)) ++before;
    }
    return before < settings.kept_groups;
  }
  [[nodiscard]] std::set<Index> selected(const Doubles& s) const {
    const bool grouped = settings.num_groups > 1;
    const Index size = settings.num_experts / std::max<Index>(settings.num_groups, 1);
    const auto reachable = [&](Index e) { return !grouped || kept(s, e / size); };
    std::set<Index> result;
    for (Index e = 0; e < settings.num_experts; ++e) {
      Index before = 0;
      for (Index f = 0; f < settings.num_experts; ++f) {
        if (reachable(f) && precedes(s[at(f)], f, s[at(e)], e, settings.num_experts)) ++before;
      }
      if (reachable(e) && before < settings.top_k) result.insert(e);
    }
    return result;
  }
};

TEST(Selection, AgreesWithTheDefinitionByCounting) {
  std::mt19937_64 random(1);
  const auto pick = [&](Index low, Index high) {
    return std::uniform_int_distribution<Index>(low, high)(random);
  };
  int grouped = 0, tied = 0;
  for (int trial = 0; trial < 3000; ++trial) {
    const Index size = std::array<Index, 4>{1, 2, 3, 6}[at(pick(0, 3))], groups = pick(1, 4);
    auto settings = route_settings(size * groups, 1, static_cast<int>(pick(0, 2)));
    settings.num_groups = groups;
    settings.kept_groups = pick(1, groups);
    settings.group_score = static_cast<int32_t>(pick(0, 1));
    const Index per_group = pick(1, std::min<Index>(size, 2));
    settings.top_k = per_group * settings.kept_groups;
    auto profile = default_profile();
    profile.tie_rule = static_cast<int32_t>(pick(0, settings.num_experts % 5 == 0 ? 2 : 3));
    profile.tie_rank = scrambled;
    profile.group_width = static_cast<int32_t>(pick(0, 1));
    Doubles logits, bias;
    for (Index e = 0; e < settings.num_experts; ++e) {
      // Few different values, so that ties are frequent.
      logits.push_back(static_cast<double>(pick(-2, 2)));
      bias.push_back(static_cast<double>(pick(-1, 1)) / 8);
    }
    const Routing r = route(settings, profile, {1, logits, bias, {}, {}, {}});
    const std::set<Index> got(r.ids.begin(), r.ids.end());
    const std::set<Index> expected = Counting{settings, profile}.selected(r.selection);
    ASSERT_EQ(got, expected) << "trial " << trial;
    grouped += groups > 1 && settings.kept_groups < groups ? 1 : 0;
    const std::set<double> values(r.selection.begin(), r.selection.end());
    tied += values.size() < r.selection.size() ? 1 : 0;
  }
  EXPECT_GT(grouped, 500);
  EXPECT_GT(tied, 500);
}

// ROUTING-11 on exact data: multiples of 2^-10.
TEST(Selection, Metamorphic) {
  std::mt19937_64 random(2);
  std::uniform_int_distribution<int> grid(-2048, 2048);
  const auto settings = route_settings(16, 4, DROPLESS_SCORE_SOFTMAX);
  for (int trial = 0; trial < 200; ++trial) {
    Doubles logits;
    std::set<int> used;
    while (logits.size() < 16) {
      const int value = grid(random);
      if (used.insert(value).second) logits.push_back(value * 0x1p-10);
    }
    const Routing r = route(settings, default_profile(), {1, logits, {}, {}, {}, {}});
    Doubles shifted = logits, permuted(16);
    for (double& x : shifted) x += 200;
    const Routing s = route(settings, default_profile(), {1, shifted, {}, {}, {}, {}});
    EXPECT_EQ(s.ids, r.ids);
    EXPECT_EQ(s.weights, r.weights);
    const Doubles bias(16, -3);
    EXPECT_EQ(route(settings, default_profile(), {1, logits, bias, {}, {}, {}}).ids, r.ids);
    for (std::size_t e = 0; e < 16; ++e) permuted[(5 * e + 3) % 16] = logits[e];
    const Routing p = route(settings, default_profile(), {1, permuted, {}, {}, {}, {}});
    for (std::size_t j = 0; j < 4; ++j) EXPECT_EQ(p.ids[j], (5 * r.ids[j] + 3) % 16);
  }
}

}  // namespace
}  // namespace dropless::reference::testing
