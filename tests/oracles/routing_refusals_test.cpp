// SPDX-License-Identifier: Apache-2.0
// Requests that routing must refuse (GENERAL-3), each next to a legal neighbour.
#include <gtest/gtest.h>

#include <functional>

#include "tests/oracles/brute_force_routing.h"

namespace dropless::oracles {
namespace {

RoutingProblem legal() {
  RoutingProblem problem;
  auto& s = problem.settings;
  s.struct_size = sizeof s;
  s.struct_version = DROPLESS_STRUCT_VERSION;
  s.num_experts = 8;
  s.top_k = 4;
  s.num_groups = 4;
  s.kept_groups = 2;
  s.score_function = DROPLESS_SCORE_SIGMOID;
  s.renormalize = 1;
  s.renormalize_eps = 1e-20;
  s.scaling_factor = 1;
  problem.profile.struct_size = sizeof problem.profile;
  problem.profile.struct_version = DROPLESS_STRUCT_VERSION;
  problem.tokens = 2;
  problem.logits.assign(16, 0.5);
  return problem;
}

bool refused(const std::function<void(RoutingProblem&)>& change) {
  RoutingProblem problem = legal();
  change(problem);
  try {
    (void)reference::route(problem.settings, problem.profile, problem.input());
  } catch (const reference::Refused&) {
    return true;
  }
  return false;
}

TEST(RoutingRefusals, Settings) {
  EXPECT_FALSE(refused([](auto&) {}));
  EXPECT_TRUE(refused([](auto& p) { p.settings.top_k = 9, p.settings.num_groups = 1; }));
  EXPECT_FALSE(refused([](auto& p) { p.settings.top_k = 8, p.settings.num_groups = 1; }));
  EXPECT_TRUE(refused([](auto& p) { p.settings.top_k = 0; }));
  EXPECT_TRUE(refused([](auto& p) { p.settings.top_k = -1; }));
  EXPECT_TRUE(refused([](auto& p) { p.settings.num_groups = 3; }));
  EXPECT_TRUE(refused([](auto& p) { p.settings.top_k = 6; }));  // the kept groups hold 4
  EXPECT_TRUE(refused([](auto& p) { p.settings.top_k = 3; }));  // w = 3 / 2
  EXPECT_FALSE(refused([](auto& p) { p.settings.top_k = 2; }));
  EXPECT_FALSE(refused([](auto& p) {  // w is not used
    p.settings.top_k = 3, p.settings.group_score = DROPLESS_GROUP_SCORE_MAX;
  }));
  EXPECT_FALSE(refused(
      [](auto& p) { p.settings.top_k = 3, p.profile.group_width = DROPLESS_GROUP_WIDTH_TWO; }));
}

TEST(RoutingRefusals, SoftmaxOverTheSelected) {
  const auto after = [](RoutingProblem& p) {
    p.settings.score_function = DROPLESS_SCORE_SOFTMAX;
    p.settings.softmax_order = DROPLESS_SOFTMAX_AFTER_TOP_K;
    p.settings.renormalize = 0;
    p.settings.num_groups = 1;
  };
  EXPECT_FALSE(refused([&](auto& p) { after(p); }));
  EXPECT_TRUE(refused([&](auto& p) { after(p), p.settings.renormalize = 1; }));
  EXPECT_TRUE(refused([&](auto& p) { after(p), p.settings.num_groups = 4; }));
  EXPECT_TRUE(refused([&](auto& p) { after(p), p.expert_bias.assign(8, 0.0); }));
}

TEST(RoutingRefusals, GivenIds) {
  using Ids = std::vector<std::int64_t>;
  const auto with = [](Ids ids) { return refused([&](RoutingProblem& p) { p.given_ids = ids; }); };
  EXPECT_FALSE(with({0, 1, 2, 3, 7, 6, 5, 4}));
  EXPECT_FALSE(with({0, -1, -1, 3, -1, -1, -1, -1}));
  EXPECT_TRUE(with({0, 1, 2, 8, 7, 6, 5, 4}));
  EXPECT_TRUE(with({0, 1, 2, -2, 7, 6, 5, 4}));
  EXPECT_TRUE(with({0, 1, 2, 0, 7, 6, 5, 4}));
  EXPECT_FALSE(with({0, 1, 2, 3, 0, 1, 2, 3}));  // the same id in two tokens is no repetition
}

}  // namespace
}  // namespace dropless::oracles
