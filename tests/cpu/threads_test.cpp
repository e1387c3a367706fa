// SPDX-License-Identifier: Apache-2.0
// The declared determinism: the same bits for any number of threads, for every operation with
// enough work to be cut.
#include <gtest/gtest.h>

#include <functional>

#include "tests/cpu/layer_case.h"

namespace dropless::cpu::testing {
namespace {

using Bytes = std::vector<std::byte>;

void same_for_any_threads(const std::function<Bytes(int)>& run) {
  const Bytes once = run(1);
  ASSERT_FALSE(once.empty());
  for (const int threads : {2, 3, 7, 0}) EXPECT_EQ(run(threads), once) << threads << " threads";
}

void append(Bytes& all, const Array& array) {
  all.insert(all.end(), array.bytes().begin(), array.bytes().end());
}

template <class Args>
void ok(dropless_status (*operation)(void*, dropless_call*, Args*), Args& args, int threads) {
  const Outcome outcome = perform(operation, args, threads);
  ASSERT_EQ(outcome.status, DROPLESS_OK) << outcome.message;
  EXPECT_EQ(outcome.path.rfind("cpu", 0), 0U) << outcome.path;
}

TEST(AnyThreads, Products) {
  const Index rows = 700, out = 300, in = 410;
  const Array x = Array(DROPLESS_BF16, {rows, in}).random(1);
  const Array w = Array(DROPLESS_FP32, {3, out, in}).random(2);
  const Array dy = Array(DROPLESS_FP32, {rows, out}).random(3);
  const Array offsets = Array(DROPLESS_I64, {4}).set({0, 501, 501, 690});
  const dropless_operand xo = operand(x), wo = operand(w), dyo = operand(dy);
  same_for_any_threads([&](int threads) {
    const Array y(DROPLESS_FP32, {rows, out}), dx(DROPLESS_BF16, {rows, in});
    const Array dw(DROPLESS_FP32, {3, out, in});
    auto f = make_args<dropless_gemm_fprop_args>();
    f.alpha = 1, f.x = &xo, f.w = &wo, f.offsets = offsets.get(), f.y = y.get();
    ok(implementation().gemm_fprop, f, threads);
    auto d = make_args<dropless_gemm_dgrad_args>();
    d.alpha = 1, d.dy = &dyo, d.w = &wo, d.offsets = offsets.get(), d.dx = dx.get();
    ok(implementation().gemm_dgrad, d, threads);
    auto g = make_args<dropless_gemm_wgrad_args>();
    g.alpha = 1, g.dy = &dyo, g.x = &xo, g.offsets = offsets.get(), g.dw = dw.get();
    ok(implementation().gemm_wgrad, g, threads);
    Bytes all;
    for (const Array* a : {&y, &dx, &dw}) append(all, *a);
    return all;
  });
}

TEST(AnyThreads, RoutingAndItsLosses) {
  const Index tokens = 3000, experts = 64, k = 4;
  auto settings = route_settings(experts, k, DROPLESS_SCORE_SIGMOID);
  settings.renormalize = 1;
  const Array logits = Array(DROPLESS_FP32, {tokens, experts}).random(1);
  const Array scale = Array(DROPLESS_FP32, {experts}).random(2);
  const Array d_weights = Array(DROPLESS_FP32, {tokens, k}).random(3);
  const Array one = Array(DROPLESS_FP32, {1}).fill(1);
  same_for_any_threads([&](int threads) {
    const Array ids(DROPLESS_I32, {tokens, k}), weights(DROPLESS_FP32, {tokens, k});
    const Array counts(DROPLESS_I64, {experts}), d_scale(DROPLESS_FP32, {experts});
    const Array d_logits(DROPLESS_FP32, {tokens, experts}), loss(DROPLESS_FP32, {1});
    Bytes all;
    auto f = make_args<dropless_route_args>();
    f.settings = &settings, f.logits = logits.get(), f.expert_scale = scale.get();
    f.ids = ids.get(), f.weights = weights.get(), f.tokens_per_expert = counts.get();
    ok(implementation().route_forward, f, threads);
    auto b = make_args<dropless_route_backward_args>();
    b.settings = &settings, b.logits = logits.get(), b.expert_scale = scale.get();
    b.ids = ids.get(), b.d_weights = d_weights.get(), b.d_logits = d_logits.get();
    b.d_expert_scale = d_scale.get();
    ok(implementation().route_backward, b, threads);
    for (const Array* a : {&ids, &weights, &counts, &d_logits, &d_scale}) append(all, *a);
    auto balance = make_args<dropless_balance_loss_args>();
    balance.settings = &settings, balance.coeff = 1, balance.logits = logits.get();
    balance.ids = ids.get(), balance.loss = loss.get(), balance.d_loss = one.get();
    balance.d_logits = d_logits.get();
    ok(implementation().balance_loss_forward, balance, threads);
    ok(implementation().balance_loss_backward, balance, threads);
    append(all, loss), append(all, d_logits);
    auto z = make_args<dropless_z_loss_args>();
    z.coeff = 1, z.logits = logits.get(), z.loss = loss.get(), z.d_loss = one.get();
    z.d_logits = d_logits.get();
    ok(implementation().z_loss_forward, z, threads);
    ok(implementation().z_loss_backward, z, threads);
    append(all, loss), append(all, d_logits);
    return all;
  });
}

TEST(AnyThreads, PermutationAndQuantisation) {
  const Index tokens = 2500, experts = 9, k = 3, hidden = 100, rows = tokens * k;
  const Array ids = random_ids(tokens, k, experts, 4);
  const Array x = Array(DROPLESS_BF16, {tokens, hidden}).random(5);
  const Array weights = Array(DROPLESS_FP32, {tokens, k}).random(6);
  same_for_any_threads([&](int threads) {
    const Array counts(DROPLESS_I64, {experts}), offsets(DROPLESS_I64, {experts + 1});
    const Array map(DROPLESS_I64, {tokens, k}), source(DROPLESS_I64, {rows});
    const Array demand(DROPLESS_I64, {1}), moved(DROPLESS_BF16, {rows, hidden});
    const Array y(DROPLESS_FP32, {tokens, hidden}), d_weights(DROPLESS_FP32, {tokens, k});
    const Array d_rows(DROPLESS_BF16, {rows, hidden});
    auto plan = make_args<dropless_permute_plan_args>();
    plan.num_experts = experts, plan.row_capacity = -1, plan.ids = ids.get();
    plan.tokens_per_expert = counts.get(), plan.offsets = offsets.get();
    plan.row_map = map.get(), plan.source = source.get(), plan.demand = demand.get();
    ok(implementation().permute_plan, plan, threads);
    auto p = make_args<dropless_permute_args>();
    p.offsets = offsets.get(), p.row_map = map.get(), p.source = source.get();
    p.x = x.get(), p.rows = moved.get();
    ok(implementation().permute_forward, p, threads);
    auto u = make_args<dropless_unpermute_args>();
    u.row_map = map.get(), u.rows = moved.get(), u.weights = weights.get(), u.y = y.get();
    ok(implementation().unpermute_forward, u, threads);
    auto b = make_args<dropless_unpermute_backward_args>();
    b.offsets = offsets.get(), b.row_map = map.get(), b.source = source.get();
    b.rows = moved.get(), b.weights = weights.get(), b.d_y = y.get();
    b.d_rows = d_rows.get(), b.d_weights = d_weights.get();
    ok(implementation().unpermute_backward, b, threads);
    const Array row_codes(DROPLESS_E4M3, {rows, hidden}), row_scales(DROPLESS_E8M0, {rows, 4});
    const Array column_codes(DROPLESS_E5M2, {rows, hidden});
    const Array column_scales = Array(DROPLESS_E8M0, {rows / 32 + experts, hidden}).fill(0);
    auto q = make_args<dropless_quantize_args>();
    q.x = moved.get(), q.offsets = offsets.get();
    q.row_codes = row_codes.get(), q.row_scales = row_scales.get();
    q.column_codes = column_codes.get(), q.column_scales = column_scales.get();
    ok(implementation().quantize, q, threads);
    Bytes all;
    for (const Array* a : {&counts, &offsets, &map, &source, &demand, &moved, &y, &d_weights,
                           &d_rows, &row_codes, &row_scales, &column_codes, &column_scales}) {
      append(all, *a);
    }
    return all;
  });
}

TEST(AnyThreads, StochasticRounding) {
  const Index n = 100000;
  const Array gradient = Array(DROPLESS_FP32, {n}).random(1);
  same_for_any_threads([&](int threads) {
    const Array weight = Array(DROPLESS_BF16, {n}).random(2);
    const Array first = Array(DROPLESS_FP32, {n}).fill(0),
                second = Array(DROPLESS_FP32, {n}).fill(0);
    auto args = make_args<dropless_adamw_args>();
    args.learning_rate = 0.01, args.beta1 = 0.9, args.beta2 = 0.99, args.eps = 1e-8;
    args.gradient_scale = 1, args.step = 3, args.weight_rounding = DROPLESS_ROUND_STOCHASTIC;
    args.gradient = gradient.get(), args.first_moment = first.get();
    args.second_moment = second.get(), args.weight = weight.get();
    ok(implementation().adamw, args, threads);
    return weight.bytes();
  });
}

TEST(AnyThreads, Layer) {
  for (const int recipe : {DROPLESS_RECIPE_PLAIN, DROPLESS_RECIPE_MXFP8}) {
    same_for_any_threads([&](int threads) {
      LayerCase layer;
      layer.tokens = 300, layer.hidden = 160;
      layer.recipe = recipe, layer.threads = threads;
      return layer.run();
    });
  }
}

}  // namespace
}  // namespace dropless::cpu::testing
