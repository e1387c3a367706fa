// SPDX-License-Identifier: Apache-2.0
// The reference's routing against brute force, over thousands of small cases with ties, masked
// experts, NaN, token masks, given ids and both kinds of group limit.
#include "tests/oracles/brute_force_routing.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "tests/oracles/routing_formula.h"

namespace dropless::oracles {
namespace {

using Index = std::int64_t;
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

class Source {
 public:
  explicit Source(std::uint64_t seed) : random_(seed) {}
  Index between(Index low, Index high) {
    return std::uniform_int_distribution<Index>(low, high)(random_);
  }
  bool chance(Index one_in) { return between(1, one_in) == 1; }
  double normal() { return static_cast<double>(std::normal_distribution<float>()(random_)); }
  template <typename T>
  T pick(std::initializer_list<T> values) {
    return *(values.begin() + between(0, static_cast<Index>(values.size()) - 1));
  }
  std::mt19937_64& engine() { return random_; }

 private:
  std::mt19937_64 random_;
};

// A total order that is neither ascending nor descending: odd indices first.
Index odd_first(Index count, Index index) {
  return index % 2 != 0 ? index / 2 : count / 2 + index / 2;
}

void draw_settings(Source& source, RoutingProblem& problem) {
  auto& s = problem.settings;
  s.struct_size = sizeof s;
  s.struct_version = DROPLESS_STRUCT_VERSION;
  s.num_groups = source.pick<Index>({0, 1, 2, 3, 4});
  const Index size = source.between(1, s.num_groups > 2 ? 2 : 4);
  s.num_experts = std::max<Index>(1, s.num_groups) * size;
  s.kept_groups = s.num_groups > 1 ? source.between(1, s.num_groups) : source.between(0, 1);
  const Index allowed = s.num_groups > 1 ? size * s.kept_groups : s.num_experts;
  s.top_k = source.between(1, allowed);
  s.group_score = source.pick({DROPLESS_GROUP_SCORE_TOP_SUM, DROPLESS_GROUP_SCORE_MAX});
  problem.profile.group_width =
      source.pick({DROPLESS_GROUP_WIDTH_K_OVER_KEPT, DROPLESS_GROUP_WIDTH_TWO});
  if (s.num_groups > 1 && s.top_k % s.kept_groups != 0) s.top_k = s.kept_groups;
  s.score_function =
      source.pick({DROPLESS_SCORE_SOFTMAX, DROPLESS_SCORE_SIGMOID, DROPLESS_SCORE_SQRT_SOFTPLUS});
  s.renormalize = source.pick({0, 1});
  s.renormalize_single = source.pick({0, 1});
  s.eps_form = source.pick({DROPLESS_EPS_ADDED, DROPLESS_EPS_MAXIMUM});
  s.renormalize_eps = source.pick({1e-20, 1e-6, 0.25});
  s.scaling_factor = source.pick({1.0, 2.5, 0.5});
  if (s.score_function == DROPLESS_SCORE_SOFTMAX && s.num_groups <= 1 && source.chance(2)) {
    s.softmax_order = DROPLESS_SOFTMAX_AFTER_TOP_K;
    s.renormalize = s.renormalize_single = 0;
  }
  auto& p = problem.profile;
  p.struct_size = sizeof p;
  p.struct_version = DROPLESS_STRUCT_VERSION;
  p.tie_rule = static_cast<int>(source.between(0, 3));
  p.tie_rank = odd_first;
  p.selection_order = static_cast<int>(source.between(0, 2));
}

void draw_values(Source& source, RoutingProblem& problem) {
  const auto& s = problem.settings;
  problem.tokens = source.between(0, 6);
  const bool lattice = source.chance(2);
  const bool hostile = source.chance(3);
  const bool softmax = s.score_function == DROPLESS_SCORE_SOFTMAX;
  for (Index i = 0; i < problem.tokens * s.num_experts; ++i) {
    double l = lattice ? static_cast<double>(source.between(-2, 2)) * 0.5 : 3 * source.normal();
    if (source.chance(200)) l = source.pick({-120.0, 90.0, -800.0});
    if (hostile && source.chance(5)) l = -kInf;
    if (hostile && source.chance(40)) l = kNaN;
    if (hostile && softmax && source.chance(40)) l = kInf;
    if (hostile && s.score_function == DROPLESS_SCORE_SIGMOID && source.chance(20)) l = kInf;
    problem.logits.push_back(l);
  }
  const bool after = s.softmax_order == DROPLESS_SOFTMAX_AFTER_TOP_K;
  if (!after && source.chance(2)) {
    for (Index e = 0; e < s.num_experts; ++e) {
      problem.expert_bias.push_back(lattice ? static_cast<double>(source.between(-2, 1)) * 0.25
                                            : source.normal());
    }
  }
  if (source.chance(3)) {
    for (Index e = 0; e < s.num_experts; ++e) problem.expert_scale.push_back(source.normal());
  }
  if (source.chance(3)) {
    for (Index t = 0; t < problem.tokens; ++t) {
      problem.token_mask.push_back(static_cast<std::uint8_t>(source.between(0, 2)));
    }
  }
  if (source.chance(6)) {
    std::vector<Index> experts(static_cast<std::size_t>(s.num_experts));
    for (Index t = 0; t < problem.tokens; ++t) {
      std::iota(experts.begin(), experts.end(), 0);
      std::shuffle(experts.begin(), experts.end(), source.engine());
      for (Index j = 0; j < s.top_k; ++j) {
        problem.given_ids.push_back(source.chance(4) ? -1 : experts[static_cast<std::size_t>(j)]);
      }
    }
  }
}

RoutingProblem draw(std::uint64_t seed) {
  Source source(seed);
  RoutingProblem problem;
  draw_settings(source, problem);
  draw_values(source, problem);
  return problem;
}

reference::Routing route(const RoutingProblem& problem) {
  return reference::route(problem.settings, problem.profile, problem.input());
}

TEST(BruteForceRouting, ThousandsOfSmallCases) {
  RoutingCensus census;
  for (std::uint64_t seed = 0; seed < 12000; ++seed) {
    const RoutingProblem problem = draw(seed);
    const auto got = route(problem);
    ASSERT_EQ(check_routing(problem, got), "") << "seed " << seed;
    take_census(problem, got, census);
  }
  EXPECT_GT(census.tied_boundaries, 1000);
  EXPECT_GT(census.tied_groups, 300);
  EXPECT_GT(census.nan_rows, 300);
  EXPECT_GT(census.short_rows, 100);
}

// ROUTING-8: a NaN row changes no other row by a bit.
TEST(BruteForceRouting, NaNRowsAreIsolated) {
  int compared = 0;
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    const RoutingProblem problem = draw(seed);
    RoutingProblem clean = problem;
    bool has_nan_row = false;
    const Index experts = problem.settings.num_experts;
    for (Index t = 0; t < problem.tokens; ++t) {
      if (!is_nan_row(problem, t)) continue;
      has_nan_row = true;
      for (Index e = 0; e < experts; ++e) {
        clean.logits[static_cast<std::size_t>(t * experts + e)] = static_cast<double>(e);
      }
    }
    if (!has_nan_row) continue;
    const auto with = route(problem);
    const auto without = route(clean);
    for (Index t = 0; t < problem.tokens; ++t) {
      if (is_nan_row(problem, t)) continue;
      for (Index j = 0; j < problem.settings.top_k; ++j) {
        const auto i = static_cast<std::size_t>(t * problem.settings.top_k + j);
        ASSERT_EQ(with.ids[i], without.ids[i]) << seed;
        ASSERT_EQ(with.weights[i], without.weights[i]) << seed;
        ++compared;
      }
    }
  }
  EXPECT_GT(compared, 500);
}

// The check must notice a swapped expert, a wrong order, a wrong weight and a wrong count.
TEST(BruteForceRouting, CheckNoticesDamage) {
  int damaged = 0;
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    RoutingProblem problem = draw(seed);
    problem.profile.tie_rule = DROPLESS_TIE_LOWEST_INDEX;
    problem.profile.selection_order = DROPLESS_ORDER_DESCENDING_SCORE;
    problem.given_ids.clear();
    problem.token_mask.clear();
    for (double& l : problem.logits) l = std::isfinite(l) ? l : 0.25;
    const auto good = route(problem);
    ASSERT_EQ(check_routing(problem, good), "") << seed;
    if (problem.tokens == 0) continue;
    ++damaged;
    auto bad = good;
    bad.weights[0] *= 1 + 1e-9;
    EXPECT_NE(check_routing(problem, bad), "") << seed;
    bad = good;
    ++bad.tokens_per_expert.back();
    EXPECT_NE(check_routing(problem, bad), "") << seed;
    if (problem.settings.top_k > 1) {
      bad = good;
      std::swap(bad.ids[0], bad.ids[1]);
      std::swap(bad.weights[0], bad.weights[1]);
      EXPECT_NE(check_routing(problem, bad), "") << seed;
    }
    for (Index e = 0; e < problem.settings.num_experts; ++e) {
      const auto end = good.ids.begin() + problem.settings.top_k;
      if (std::find(good.ids.begin(), end, e) != end) continue;
      bad = good;
      --bad.tokens_per_expert[static_cast<std::size_t>(bad.ids[0])];
      ++bad.tokens_per_expert[static_cast<std::size_t>(e)];
      bad.ids[0] = e;
      EXPECT_NE(check_routing(problem, bad), "") << seed << " expert " << e;
    }
  }
  EXPECT_GT(damaged, 200);
}

// ROUTING-12: derivatives by forward differentiation of the same formulas.
TEST(BruteForceRouting, BackwardIsTheDerivative) {
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    const RoutingProblem problem = draw(seed);
    const auto forward = route(problem);
    const Index experts = problem.settings.num_experts;
    const Index top_k = problem.settings.top_k;
    Source source(seed + 77);
    std::vector<double> d_weights;
    for (Index i = 0; i < problem.tokens * top_k; ++i) d_weights.push_back(source.normal());
    const auto got = reference::route_backward(
        problem.settings, {problem.tokens, problem.logits, problem.token_mask, problem.expert_scale,
                           forward.ids, d_weights});
    std::vector<long double> d_scale(static_cast<std::size_t>(experts), 0.0L);
    bool any_nan_row = false;
    for (Index t = 0; t < problem.tokens; ++t) {
      const bool masked =
          !problem.token_mask.empty() && problem.token_mask[static_cast<std::size_t>(t)] == 0;
      if (!masked && is_nan_row(problem, t)) {
        any_nan_row = true;
        continue;
      }
      const std::vector<Index> ids(forward.ids.begin() + t * top_k,
                                   forward.ids.begin() + (t + 1) * top_k);
      for (Index e = 0; e < experts; ++e) {
        std::vector<Dual> logits;
        for (Index i = 0; i < experts; ++i) {
          const double l = problem.logits[static_cast<std::size_t>(t * experts + i)];
          logits.emplace_back(l, i == e && std::isfinite(l) ? 1.0L : 0.0L);
        }
        long double expected = 0;
        long double size = 0;
        if (!masked) {
          const auto weights = weight_formula(problem.settings, logits, ids);
          for (std::size_t j = 0; j < ids.size(); ++j) {
            if (ids[j] < 0) continue;
            const auto id = static_cast<std::size_t>(ids[j]);
            const double d_w = d_weights[static_cast<std::size_t>(t * top_k) + j];
            const long double scale = problem.expert_scale.empty() ? 1 : problem.expert_scale[id];
            expected += d_w * scale * weights[j].slope;
            size += std::fabs(d_w * scale * weights[j].value);
            if (e == 0) d_scale[id] += d_w * weights[j].value;
          }
        }
        const auto at = static_cast<std::size_t>(t * experts + e);
        ASSERT_NEAR(static_cast<double>(expected), got.d_logits.value[at],
                    1e-12 * static_cast<double>(size + std::fabs(expected)) + 1e-290)
            << "seed " << seed << " token " << t << " expert " << e;
        ASSERT_GE(got.d_logits.gauge[at], std::fabs(got.d_logits.value[at])) << seed;
        if (masked) {
          ASSERT_EQ(got.d_logits.value[at], 0) << seed;
        }
      }
    }
    if (problem.expert_scale.empty() || any_nan_row) continue;
    for (std::size_t e = 0; e < d_scale.size(); ++e) {
      ASSERT_NEAR(static_cast<double>(d_scale[e]), got.d_expert_scale.value[e],
                  1e-12 * got.d_expert_scale.gauge[e])
          << "seed " << seed << " expert " << e;
    }
  }
}

TEST(BruteForceRouting, BiasUpdate) {
  std::mt19937_64 random(9);
  for (int run = 0; run < 300; ++run) {
    const Index experts = 1 + static_cast<Index>(random() % 7);
    const Index rows = static_cast<Index>(random() % 4);
    std::vector<Index> counts;
    for (Index i = 0; i < rows * experts; ++i) counts.push_back(static_cast<Index>(random() % 4));
    std::vector<float> bias;
    for (Index e = 0; e < experts; ++e) bias.push_back(std::normal_distribution<float>()(random));
    const double rate = 0.001;
    const auto got = reference::bias_update(rate, experts, counts, bias);
    ASSERT_EQ(got.size(), bias.size());
    for (Index e = 0; e < experts; ++e) {
      Index total = 0;
      Index own = 0;
      for (Index i = 0; i < rows * experts; ++i) {
        total += counts[static_cast<std::size_t>(i)];
        if (i % experts == e) own += counts[static_cast<std::size_t>(i)];
      }
      const Index difference = total - experts * own;
      const int sign = difference > 0 ? 1 : (difference < 0 ? -1 : 0);
      const auto at = static_cast<std::size_t>(e);
      const long double moved = bias[at] + static_cast<long double>(rate) * sign;
      ASSERT_EQ(got[at], static_cast<float>(moved)) << run;
    }
  }
}

}  // namespace
}  // namespace dropless::oracles
