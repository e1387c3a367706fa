// SPDX-License-Identifier: Apache-2.0
// Refusals: the right status, a message that names the argument, and untouched outputs
// (GENERAL-3).
#include <gtest/gtest.h>

#include "tests/cpu/support.h"

namespace dropless::cpu::testing {
namespace {

// Expects a refusal whose message contains `words`, and every output as it was.
template <class Args>
void refused(dropless_status (*operation)(void*, dropless_call*, Args*), Args args,
             const std::string& words, std::vector<const Array*> outputs) {
  std::vector<std::vector<std::byte>> before;
  for (const Array* output : outputs) before.push_back(output->bytes());
  const Outcome outcome = perform(operation, args);
  EXPECT_EQ(outcome.status, DROPLESS_INVALID_ARGUMENT) << words;
  EXPECT_NE(outcome.message.find(words), std::string::npos) << outcome.message;
  for (std::size_t i = 0; i < outputs.size(); ++i) EXPECT_EQ(outputs[i]->bytes(), before[i]);
}

TEST(Refusals, RoutingSettings) {
  const Array logits = Array(DROPLESS_FP32, {2, 6}).random(1);
  const Array bias = Array(DROPLESS_FP32, {6}).fill(0);
  const Array ids(DROPLESS_I32, {2, 2}), weights(DROPLESS_FP32, {2, 2}), counts(DROPLESS_I64, {6});
  const std::vector<const Array*> outputs = {&ids, &weights, &counts};
  const auto refuse = [&](const std::string& words, auto change) {
    auto settings = route_settings(6, 2, DROPLESS_SCORE_SOFTMAX);
    auto args = make_args<dropless_route_args>();
    args.settings = &settings, args.logits = logits.get(), args.ids = ids.get();
    args.weights = weights.get(), args.tokens_per_expert = counts.get();
    change(settings, args);
    refused(implementation().route_forward, args, words, outputs);
  };
  using Settings = dropless_route_settings;
  using Args = dropless_route_args;
  refuse("top_k", [](Settings& s, Args&) { s.top_k = 7; });
  refuse("top_k", [](Settings& s, Args&) { s.top_k = 0; });
  refuse("num_groups", [](Settings& s, Args&) { s.num_groups = 4, s.kept_groups = 2; });
  refuse("kept", [](Settings& s, Args&) { s.num_groups = 6, s.kept_groups = 1; });
  refuse("width", [](Settings& s, Args&) {
    s.num_groups = 3, s.kept_groups = 3, s.group_score = DROPLESS_GROUP_SCORE_TOP_SUM;
  });
  refuse("renormalisation", [](Settings& s, Args&) {
    s.softmax_order = DROPLESS_SOFTMAX_AFTER_TOP_K, s.renormalize = 1;
  });
  refuse("bias", [&](Settings& s, Args& a) {
    s.softmax_order = DROPLESS_SOFTMAX_AFTER_TOP_K, a.expert_bias = bias.get();
  });
  refuse("score_function", [](Settings& s, Args&) { s.score_function = 3; });
  refuse("logits", [](Settings& s, Args&) { s.num_experts = 5; });
  refuse("settings", [](Settings&, Args& a) { a.settings = nullptr; });
  const Array twice = Array(DROPLESS_I32, {2, 2}).set({0, 1, 3, 3});
  refuse("twice", [&](Settings&, Args& a) { a.given_ids = twice.get(); });
  const Array beyond = Array(DROPLESS_I32, {2, 2}).set({0, 6, 3, 4});
  refuse("given_ids", [&](Settings&, Args& a) { a.given_ids = beyond.get(); });
}

TEST(Refusals, Plans) {
  const Array counts(DROPLESS_I64, {3}), offsets(DROPLESS_I64, {4}), map(DROPLESS_I64, {1, 2});
  const Array source(DROPLESS_I64, {2}), short_source(DROPLESS_I64, {1}), demand(DROPLESS_I64, {1});
  const std::vector<const Array*> outputs = {&counts, &offsets, &map, &source, &demand};
  const auto refuse = [&](const std::string& words, const std::vector<double>& values,
                          const Array& rows, Index capacity) {
    const Array ids = Array(DROPLESS_I64, {1, 2}).set(values);
    auto args = make_args<dropless_permute_plan_args>();
    args.num_experts = 3, args.row_capacity = capacity, args.ids = ids.get();
    args.tokens_per_expert = counts.get(), args.offsets = offsets.get();
    args.row_map = map.get(), args.source = rows.get(), args.demand = demand.get();
    refused(implementation().permute_plan, args, words, outputs);
  };
  refuse("ids", {0, 3}, source, -1);
  refuse("ids", {-2, 1}, source, -1);
  refuse("twice", {1, 1}, source, -1);
  refuse("source", {0, 1}, short_source, -1);
  refuse("row_capacity", {0, 1}, source, -2);
}

TEST(Refusals, Products) {
  const Array x = Array(DROPLESS_FP32, {4, 8}).random(1),
              w = Array(DROPLESS_FP32, {2, 3, 8}).random(2);
  const Array narrow = Array(DROPLESS_FP32, {4, 7}).random(3);
  const Array y(DROPLESS_FP32, {4, 3});
  const dropless_operand x_operand = operand(x), w_operand = operand(w), bad = operand(narrow);
  const auto refuse = [&](const std::string& words, const dropless_operand& left,
                          const std::vector<double>& zones, const std::vector<double>& real) {
    const Array offsets = Array(DROPLESS_I64, {3}).set(zones);
    const Array counts = Array(DROPLESS_I64, {2}).set(real);
    auto args = make_args<dropless_gemm_fprop_args>();
    args.alpha = 1, args.x = &left, args.w = &w_operand, args.offsets = offsets.get();
    args.counts = counts.get(), args.y = y.get();
    refused(implementation().gemm_fprop, args, words, {&y});
  };
  refuse("falling", x_operand, {0, 3, 2}, {0, 0});
  refuse("beyond", x_operand, {0, 3, 5}, {0, 0});
  refuse("begin", x_operand, {1, 3, 4}, {0, 0});
  refuse("counts", x_operand, {0, 3, 4}, {3, 2});
  refuse("counts", x_operand, {0, 3, 4}, {-1, 1});
  refuse("x", bad, {0, 3, 4}, {3, 1});
  dropless_operand with_scales = x_operand;
  const Array scales(DROPLESS_E8M0, {4, 1});
  with_scales.scales = scales.get();
  refuse("scales", with_scales, {0, 3, 4}, {3, 1});
}

TEST(Refusals, TensorsOfTheWrongKind) {
  const Array x = Array(DROPLESS_BF16, {2, 32}).random(1);
  const Array codes(DROPLESS_E4M3, {2, 32}), scales(DROPLESS_E8M0, {2, 1});
  const auto refuse = [&](const std::string& words, auto change) {
    Array input = x, output = codes;
    auto args = make_args<dropless_quantize_args>();
    args.x = input.get(), args.row_codes = output.get(), args.row_scales = scales.get();
    change(input.raw(), output.raw(), args);
    refused(implementation().quantize, args, words, {&output, &scales});
  };
  using Tensor = dropless_tensor;
  using Args = dropless_quantize_args;
  refuse("x: dtype", [](Tensor& in, Tensor&, Args&) { in.dtype = DROPLESS_I64; });
  refuse("x: rank", [](Tensor& in, Tensor&, Args&) { in.rank = 1; });
  refuse("x: not in host",
         [](Tensor& in, Tensor&, Args&) { in.memory_space = DROPLESS_CUDA_DEVICE; });
  refuse("x: null", [](Tensor& in, Tensor&, Args&) { in.data = nullptr; });
  refuse("x: struct_size", [](Tensor& in, Tensor&, Args&) { in.struct_size = 0; });
  refuse("row_codes: dtype", [](Tensor&, Tensor& out, Args&) { out.dtype = DROPLESS_U8; });
  refuse("row_codes: shape", [](Tensor&, Tensor& out, Args&) { out.shape[1] = 31; });
  refuse("only one", [](Tensor&, Tensor&, Args& a) { a.row_scales = nullptr; });
  refuse("scale_layout", [](Tensor&, Tensor&, Args& a) { a.scale_layout = 2; });
  refuse("row_scales: too short", [](Tensor&, Tensor&, Args& a) {
    static const Array little(DROPLESS_E8M0, {511});
    a.scale_layout = DROPLESS_SCALES_PACKED, a.row_scales = little.get();
  });
}

TEST(Refusals, OptimizerAndLabels) {
  const Array n = Array(DROPLESS_FP32, {2}).fill(1), weight = Array(DROPLESS_FP32, {2}).fill(1);
  auto adam = make_args<dropless_adamw_args>();
  adam.gradient = n.get(), adam.first_moment = n.get(), adam.second_moment = n.get();
  adam.weight = weight.get();
  refused(implementation().adamw, adam, "step", {&n, &weight});
  const Array logits = Array(DROPLESS_FP32, {1, 3}).random(1), loss(DROPLESS_FP32, {1});
  const Array labels = Array(DROPLESS_I32, {1}).set({3});
  auto entropy = make_args<dropless_cross_entropy_args>();
  entropy.logits = logits.get(), entropy.labels = labels.get(), entropy.loss = loss.get();
  refused(implementation().cross_entropy_forward, entropy, "labels", {&loss});
}

TEST(Refusals, NullArguments) {
  auto call = make_args<dropless_call>();
  EXPECT_EQ(implementation().adamw(nullptr, &call, nullptr), DROPLESS_INVALID_ARGUMENT);
  EXPECT_NE(std::string(call.message), "");
}

}  // namespace
}  // namespace dropless::cpu::testing
