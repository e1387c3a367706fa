// SPDX-License-Identifier: Apache-2.0
// What the reference's routing refuses (GENERAL-3): each with a control that differs in one value
// and succeeds, and with a message that names the culprit.
#include <gtest/gtest.h>

#include <functional>

#include "tests/reference/refusal.h"
#include "tests/reference/route_setup.h"

namespace dropless::reference::testing {
namespace {

using Ids = std::vector<Index>;

// A legal call: 8 experts, 2 of 4 groups, top 4.
struct Call {
  dropless_route_settings settings = grouped_settings();
  dropless_profile profile = default_profile();
  Doubles logits = {0, 1, 2, 3, 4, 5, 6, 7}, bias, scale;
  std::vector<std::uint8_t> mask;
  Ids given;
  Index tokens = 1;

  static dropless_route_settings grouped_settings() {
    auto settings = route_settings(8, 4, DROPLESS_SCORE_SIGMOID);
    settings.num_groups = 4;
    settings.kept_groups = 2;
    return settings;
  }
  void operator()() const { route(settings, profile, {tokens, logits, bias, mask, given, scale}); }
};

// `spoil` makes a legal call illegal; the call before it is the control.
void expect_refused_after(Call call, const std::function<void(Call&)>& spoil,
                          const std::string& culprit) {
  EXPECT_NO_THROW(call()) << culprit;
  spoil(call);
  expect_refused(call, culprit);
}

Call softmax_after() {
  Call call;
  call.settings = route_settings(8, 4, DROPLESS_SCORE_SOFTMAX);
  call.settings.softmax_order = DROPLESS_SOFTMAX_AFTER_TOP_K;
  return call;
}

TEST(RoutingRefusal, NumberOfExpertsSelected) {
  Call call;
  call.settings = route_settings(8, 8, DROPLESS_SCORE_SIGMOID);
  expect_refused_after(
      call, [](Call& c) { c.settings.top_k = 9; }, "top_k = 9");
  expect_refused_after(
      call, [](Call& c) { c.settings.top_k = 0; }, "top_k = 0");
  expect_refused_after(
      call, [](Call& c) { c.settings.num_experts = 0; }, "num_experts = 0");
}

TEST(RoutingRefusal, Groups) {
  expect_refused_after(
      {}, [](Call& c) { c.settings.num_groups = 3; }, "num_groups = 3");
  expect_refused_after(
      {}, [](Call& c) { c.settings.num_groups = -1; }, "num_groups = -1");
  expect_refused_after(
      {}, [](Call& c) { c.settings.kept_groups = 5; }, "kept_groups = 5");
  expect_refused_after(
      {}, [](Call& c) { c.settings.kept_groups = 0; }, "kept_groups = 0");
  // Two groups of two hold four experts.
  expect_refused_after(
      {}, [](Call& c) { c.settings.top_k = 6; }, "top_k = 6");
}

TEST(RoutingRefusal, TopKThatTheKeptGroupsDoNotDivide) {
  const auto spoil = [](Call& c) { c.settings.top_k = 3; };
  expect_refused_after({}, spoil, "top_k = 3");
  // Only where w = K / kept is used.
  Call two;
  two.profile.group_width = DROPLESS_GROUP_WIDTH_TWO;
  spoil(two);
  EXPECT_NO_THROW(two());
  Call maximum;
  maximum.settings.group_score = DROPLESS_GROUP_SCORE_MAX;
  spoil(maximum);
  EXPECT_NO_THROW(maximum());
}

TEST(RoutingRefusal, SoftmaxOverTheSelected) {
  expect_refused_after(
      softmax_after(), [](Call& c) { c.settings.renormalize = 1; }, "renormalised");
  expect_refused_after(
      softmax_after(), [](Call& c) { c.bias.assign(8, 0); }, "expert_bias");
  expect_refused_after(
      softmax_after(),
      [](Call& c) {
        c.settings.num_groups = 4;
        c.settings.kept_groups = 2;
      },
      "num_groups = 4");
  Call single = softmax_after();
  single.settings.top_k = 1;
  single.settings.renormalize = 1;  // the switch of K > 1 does not matter here
  expect_refused_after(
      single, [](Call& c) { c.settings.renormalize_single = 1; }, "renormalised");
}

TEST(RoutingRefusal, UnknownSettings) {
  expect_refused_after(
      {}, [](Call& c) { c.settings.score_function = 3; }, "score_function = 3");
  expect_refused_after(
      {}, [](Call& c) { c.settings.softmax_order = -1; }, "softmax_order = -1");
  expect_refused_after(
      {}, [](Call& c) { c.settings.eps_form = 2; }, "eps_form = 2");
  expect_refused_after(
      {}, [](Call& c) { c.settings.group_score = 2; }, "group_score = 2");
  expect_refused_after(
      {}, [](Call& c) { c.settings.renormalize = 2; }, "renormalize = 2");
  expect_refused_after(
      {}, [](Call& c) { c.settings.renormalize_single = 7; }, "renormalize_single = 7");
  expect_refused_after(
      {}, [](Call& c) { c.settings.renormalize_eps = -1; }, "renormalize_eps");
  expect_refused_after(
      {}, [](Call& c) { c.settings.renormalize_eps = kNaN; }, "renormalize_eps");
  expect_refused_after(
      {}, [](Call& c) { c.settings.scaling_factor = kInf; }, "scaling_factor");
  expect_refused_after(
      {}, [](Call& c) { c.profile.tie_rule = DROPLESS_TIE_DECLARED; }, "tie_rank");
}

TEST(RoutingRefusal, GivenIds) {
  Call call;
  call.given = {7, -1, 0, -1};
  expect_refused_after(
      call, [](Call& c) { c.given[1] = 8; }, "given_ids[0,1] = 8");
  expect_refused_after(
      call, [](Call& c) { c.given[1] = -2; }, "given_ids[0,1] = -2");
  expect_refused_after(
      call, [](Call& c) { c.given[3] = 7; }, "given_ids[0,3] = 7 repeats");
}

TEST(RoutingRefusal, Sizes) {
  Call call;
  call.bias.assign(8, 0);
  call.scale.assign(8, 1);
  call.mask = {1};
  call.given = {0, 1, 2, 3};
  expect_refused_after(
      call, [](Call& c) { c.logits.pop_back(); }, "logits has 7");
  expect_refused_after(
      call, [](Call& c) { c.bias.pop_back(); }, "expert_bias has 7");
  expect_refused_after(
      call, [](Call& c) { c.scale.pop_back(); }, "expert_scale has 7");
  expect_refused_after(
      call, [](Call& c) { c.mask.push_back(1); }, "token_mask has 2");
  expect_refused_after(
      call, [](Call& c) { c.given.pop_back(); }, "given_ids has 3");
  expect_refused_after(
      call, [](Call& c) { c.tokens = -1; }, "tokens");
}

struct Backward {
  dropless_route_settings settings = route_settings(3, 2, DROPLESS_SCORE_SIGMOID);
  Doubles logits = {0, 1, 2}, scale = {1, 1, 1}, d_weights = {1, 1};
  std::vector<std::uint8_t> mask = {1};
  Ids ids = {0, -1};
  Index tokens = 1;
  void operator()() const {
    route_backward(settings, {tokens, logits, mask, scale, ids, d_weights});
  }
};

TEST(RoutingRefusal, BackwardChecksTheSame) {
  const auto refused = [](const std::function<void(Backward&)>& spoil, const char* culprit) {
    Backward call;
    EXPECT_NO_THROW(call());
    spoil(call);
    expect_refused(call, culprit);
  };
  refused([](Backward& c) { c.settings.top_k = 4; }, "top_k = 4");
  refused([](Backward& c) { c.ids[1] = 0; }, "ids[0,1] = 0 repeats");
  refused([](Backward& c) { c.ids[1] = 3; }, "ids[0,1] = 3");
  refused([](Backward& c) { c.logits.pop_back(); }, "logits has 2");
  refused([](Backward& c) { c.scale.pop_back(); }, "expert_scale has 2");
  refused([](Backward& c) { c.d_weights.pop_back(); }, "d_weights has 1");
  refused([](Backward& c) { c.mask.clear(), c.mask.assign(2, 1); }, "token_mask has 2");
  refused([](Backward& c) { c.tokens = -1; }, "tokens");
}

TEST(RoutingRefusal, BiasUpdate) {
  const std::vector<float> bias{0, 0};
  const auto call = [&](double rate, Index experts, const Ids& counts) {
    return [=, &bias] { bias_update(rate, experts, counts, bias); };
  };
  EXPECT_NO_THROW(call(1, 2, Ids{1, 2})());
  EXPECT_NO_THROW(call(1, 2, Ids{})());
  expect_refused(call(kNaN, 2, Ids{1, 2}), "rate");
  expect_refused(call(1, 3, Ids{1, 2, 3}), "expert_bias has 2");
  expect_refused(call(1, 2, Ids{1, 2, 3}), "counts has 3");
  expect_refused(call(1, 2, Ids{1, -2}), "counts[1]");
  expect_refused(call(1, 2, Ids{Index{1} << 62, Index{1} << 62}), "2^63");
  expect_refused(call(1, 0, Ids{}), "num_experts");
}

}  // namespace
}  // namespace dropless::reference::testing
