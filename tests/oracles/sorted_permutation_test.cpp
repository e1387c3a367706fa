// SPDX-License-Identifier: Apache-2.0
// The reference's permutation against a stable sort, its byte copies, its sums and its gradients.
#include "tests/oracles/sorted_permutation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>

namespace dropless::oracles {
namespace {

using Index = std::int64_t;
using reference::Doubles;
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

class Source {
 public:
  explicit Source(std::uint64_t seed) : random_(seed) {}
  Index between(Index low, Index high) {
    return std::uniform_int_distribution<Index>(low, high)(random_);
  }
  bool chance(Index one_in) { return between(1, one_in) == 1; }
  double normal() { return std::normal_distribution<double>()(random_); }
  std::mt19937_64& engine() { return random_; }

 private:
  std::mt19937_64 random_;
};

PermutationProblem draw(Source& source) {
  PermutationProblem problem;
  auto& profile = problem.profile;
  profile.struct_size = sizeof profile;
  profile.struct_version = DROPLESS_STRUCT_VERSION;
  const int alignments[] = {0, 1, 16, 32, 128, 256};
  profile.alignment = alignments[source.chance(2) ? source.between(0, 1) : source.between(2, 5)];
  profile.empty_expert =
      source.chance(2) ? DROPLESS_EMPTY_EXPERT_NONE : DROPLESS_EMPTY_EXPERT_ONE_BLOCK;
  problem.num_experts = source.between(1, 12);
  problem.top_k = source.between(1, std::min<Index>(problem.num_experts, 5));
  problem.tokens = source.chance(10) ? 0 : source.between(1, 70);
  const Index favourite = source.between(0, problem.num_experts - 1);
  const Index sparsity = source.chance(3) ? 2 : 10;
  std::vector<Index> experts(static_cast<std::size_t>(problem.num_experts));
  for (Index t = 0; t < problem.tokens; ++t) {
    std::iota(experts.begin(), experts.end(), 0);
    std::shuffle(experts.begin(), experts.end(), source.engine());
    if (source.chance(2)) {  // an uneven load
      std::swap(experts[0], *std::find(experts.begin(), experts.end(), favourite));
    }
    for (Index j = 0; j < problem.top_k; ++j) {
      problem.ids.push_back(source.chance(sparsity) ? -1 : experts[static_cast<std::size_t>(j)]);
    }
  }
  if (source.chance(2)) {
    const Index block = std::max(1, profile.alignment);
    const Index pairs = problem.tokens * problem.top_k;
    problem.row_capacity = block * source.between(0, pairs / block + problem.num_experts + 1);
  }
  return problem;
}

reference::PermutePlan plan_of(const PermutationProblem& p) {
  return reference::permute_plan(p.profile, p.tokens, p.top_k, p.num_experts, p.ids,
                                 p.row_capacity);
}

TEST(SortedPermutation, Plans) {
  int limited = 0;
  int padded = 0;
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    Source source(seed);
    const PermutationProblem problem = draw(source);
    const auto plan = plan_of(problem);
    ASSERT_EQ(check_plan(problem, plan), "") << "seed " << seed;
    limited += plan.demand > plan.rows();
    padded += std::count(plan.source.begin(), plan.source.end(), -1) > 0;
  }
  EXPECT_GT(limited, 300);
  EXPECT_GT(padded, 1000);
}

TEST(SortedPermutation, CheckNoticesDamage) {
  int damaged = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    Source source(seed);
    const PermutationProblem problem = draw(source);
    const auto good = plan_of(problem);
    if (good.source.size() < 2 || good.row_map.empty()) continue;
    ++damaged;
    auto bad = good;
    std::swap(bad.source[0], bad.source[1]);
    if (bad.source != good.source) {
      EXPECT_NE(check_plan(problem, bad), "") << seed;
    }
    bad = good;
    ++bad.offsets.back();
    EXPECT_NE(check_plan(problem, bad), "") << seed;
    bad = good;
    ++bad.tokens_per_expert[0];
    EXPECT_NE(check_plan(problem, bad), "") << seed;
    bad = good;
    ++bad.row_map[0];
    EXPECT_NE(check_plan(problem, bad), "") << seed;
  }
  EXPECT_GT(damaged, 100);
}

TEST(SortedPermutation, ByteCopies) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    Source source(seed);
    const PermutationProblem problem = draw(source);
    const auto plan = plan_of(problem);
    const std::size_t row_bytes = static_cast<std::size_t>(source.between(0, 9));
    const std::size_t slot_bytes = static_cast<std::size_t>(source.between(1, 4));
    std::vector<std::byte> x(static_cast<std::size_t>(problem.tokens) * row_bytes);
    std::vector<std::byte> slots(problem.ids.size() * slot_bytes);
    for (auto& byte : x) byte = static_cast<std::byte>(source.between(0, 255));
    for (auto& byte : slots) byte = static_cast<std::byte>(source.between(0, 255));
    const auto rows = reference::permute(plan, x, row_bytes);
    const auto row_slots = reference::permute_slots(plan, slots, slot_bytes);
    ASSERT_EQ(rows.size(), plan.source.size() * row_bytes);
    ASSERT_EQ(row_slots.size(), plan.source.size() * slot_bytes);
    for (std::size_t row = 0; row < plan.source.size(); ++row) {
      const Index pair = plan.source[row];
      for (std::size_t i = 0; i < row_bytes; ++i) {
        const auto token = static_cast<std::size_t>(pair / problem.top_k);
        ASSERT_EQ(rows[row * row_bytes + i], pair < 0 ? std::byte{0} : x[token * row_bytes + i]);
      }
      for (std::size_t i = 0; i < slot_bytes; ++i) {
        ASSERT_EQ(row_slots[row * slot_bytes + i],
                  pair < 0 ? std::byte{0} : slots[static_cast<std::size_t>(pair) * slot_bytes + i]);
      }
    }
  }
}

// Everything that flows back, from the plan's pairs alone; padding rows hold NaN (PERMUTATION-3).
struct Flow {
  PermutationProblem problem;
  reference::PermutePlan plan;
  Index hidden = 0;
  Doubles rows, weights, d_y, row_weights;
};

Flow draw_flow(std::uint64_t seed) {
  Source source(seed);
  Flow flow;
  flow.problem = draw(source);
  flow.plan = plan_of(flow.problem);
  flow.hidden = source.between(0, 6);
  // Small integers: every order of summation is exact, so equality is demanded.
  const auto draw_value = [&] { return static_cast<double>(source.between(-50, 50)) / 8; };
  for (Index pair : flow.plan.source) {
    for (Index h = 0; h < flow.hidden; ++h) flow.rows.push_back(pair < 0 ? kNaN : draw_value());
    flow.row_weights.push_back(pair < 0 ? kNaN : draw_value());
  }
  for (std::size_t i = 0; i < flow.problem.ids.size(); ++i) flow.weights.push_back(draw_value());
  for (Index i = 0; i < flow.problem.tokens * flow.hidden; ++i) flow.d_y.push_back(draw_value());
  return flow;
}

TEST(SortedPermutation, SumsOverSlots) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const Flow f = draw_flow(seed);
    const auto d_x = reference::permute_backward(f.plan, f.hidden, f.rows);
    const auto y = reference::unpermute(f.plan, f.hidden, f.rows, f.weights);
    const auto plain = reference::unpermute(f.plan, f.hidden, f.rows, {});
    Doubles sum(f.d_y.size(), 0.0), sum_gauge(sum), weighted(sum), weighted_gauge(sum);
    for (std::size_t row = 0; row < f.plan.source.size(); ++row) {
      if (f.plan.source[row] < 0) continue;
      const auto pair = static_cast<std::size_t>(f.plan.source[row]);
      const std::size_t token = pair / static_cast<std::size_t>(f.problem.top_k);
      for (std::size_t h = 0; h < static_cast<std::size_t>(f.hidden); ++h) {
        const auto hidden = static_cast<std::size_t>(f.hidden);
        const double value = f.rows[row * hidden + h];
        sum[token * hidden + h] += value;
        sum_gauge[token * hidden + h] += std::fabs(value);
        weighted[token * hidden + h] += f.weights[pair] * value;
        weighted_gauge[token * hidden + h] += std::fabs(f.weights[pair] * value);
      }
    }
    ASSERT_EQ(d_x.value, sum) << seed;
    ASSERT_EQ(d_x.gauge, sum_gauge) << seed;
    ASSERT_EQ(plain.value, sum) << seed;
    ASSERT_EQ(y.value, weighted) << seed;
    ASSERT_EQ(y.gauge, weighted_gauge) << seed;
  }
}

TEST(SortedPermutation, Gradients) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const Flow f = draw_flow(seed);
    const auto got = reference::unpermute_backward(f.plan, f.hidden, f.rows, f.weights, f.d_y);
    const auto plain = reference::unpermute_backward(f.plan, f.hidden, {}, {}, f.d_y);
    const auto returned = reference::permute_weights_backward(f.plan, f.row_weights);
    Doubles d_rows(f.rows.size(), 0.0), d_plain(d_rows), d_weights(f.weights.size(), 0.0),
        travelled(d_weights);
    const auto hidden = static_cast<std::size_t>(f.hidden);
    for (std::size_t row = 0; row < f.plan.source.size(); ++row) {
      if (f.plan.source[row] < 0) continue;
      const auto pair = static_cast<std::size_t>(f.plan.source[row]);
      const std::size_t token = pair / static_cast<std::size_t>(f.problem.top_k);
      travelled[pair] = f.row_weights[row];
      for (std::size_t h = 0; h < hidden; ++h) {
        const double dy = f.d_y[token * hidden + h];
        d_plain[row * hidden + h] = dy;
        d_rows[row * hidden + h] = f.weights[pair] * dy;
        d_weights[pair] += dy * f.rows[row * hidden + h];
      }
    }
    ASSERT_EQ(got.d_rows.value, d_rows) << seed;
    ASSERT_EQ(got.d_weights.value, d_weights) << seed;
    ASSERT_EQ(plain.d_rows.value, d_plain) << seed;
    ASSERT_TRUE(plain.d_weights.value.empty()) << seed;
    ASSERT_EQ(returned, travelled) << seed;
  }
}

TEST(SortedPermutation, Refusals) {
  const auto refused = [](std::vector<Index> ids, Index capacity, int alignment) {
    dropless_profile profile = {};
    profile.struct_size = sizeof profile;
    profile.struct_version = DROPLESS_STRUCT_VERSION;
    profile.alignment = alignment;
    try {
      (void)reference::permute_plan(profile, 2, 2, 4, ids, capacity);
    } catch (const reference::Refused&) {
      return true;
    }
    return false;
  };
  EXPECT_FALSE(refused({0, 1, 1, 0}, -1, 1));
  EXPECT_FALSE(refused({-1, -1, 3, -1}, -1, 1));
  EXPECT_TRUE(refused({0, 4, 1, 0}, -1, 1));
  EXPECT_TRUE(refused({0, -2, 1, 0}, -1, 1));
  EXPECT_TRUE(refused({0, 1, 2, 2}, -1, 1));
  EXPECT_FALSE(refused({0, 1, 1, 0}, 32, 16));
  EXPECT_FALSE(refused({0, 1, 1, 0}, 0, 16));
  EXPECT_TRUE(refused({0, 1, 1, 0}, 33, 16));
  EXPECT_TRUE(refused({0, 1, 1, 0}, -5, 1));
  EXPECT_TRUE(refused({0, 1, 1, 0}, -1, -16));
  EXPECT_TRUE(refused({0, 1, 1}, -1, 1));  // three ids for two tokens of two slots
}

// GENERAL-4: no tokens, or no experts, is a legal request.
TEST(SortedPermutation, ZeroExtents) {
  PermutationProblem problem;
  problem.profile.struct_size = sizeof problem.profile;
  problem.profile.struct_version = DROPLESS_STRUCT_VERSION;
  problem.profile.empty_expert = DROPLESS_EMPTY_EXPERT_ONE_BLOCK;
  problem.profile.alignment = 16;
  problem.num_experts = 3;
  problem.tokens = 0;
  ASSERT_EQ(check_plan(problem, plan_of(problem)), "");
  EXPECT_EQ(plan_of(problem).rows(), 48);
  problem.num_experts = 0;
  problem.tokens = 2;
  problem.ids = {-1, -1};
  ASSERT_EQ(check_plan(problem, plan_of(problem)), "");
}

}  // namespace
}  // namespace dropless::oracles
