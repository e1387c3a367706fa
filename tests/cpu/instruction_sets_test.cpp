// SPDX-License-Identifier: Apache-2.0
// One answer from every instruction set. AVX2 and AVX-512 agree bit by bit in everything; the
// baseline has no fused multiply-add, so that its products may differ in the last bits.
#include <gtest/gtest.h>

#include "tests/cpu/layer_case.h"

namespace dropless::cpu::testing {
namespace {

TEST(InstructionSets, PathSaysWhatRan) {
  const Array x = Array(DROPLESS_BF16, {1, 32}).fill(1);
  const Array codes(DROPLESS_E4M3, {1, 32}), scales(DROPLESS_E8M0, {1, 1});
  auto args = make_args<dropless_quantize_args>();
  args.x = x.get(), args.row_codes = codes.get(), args.row_scales = scales.get();
  {
    const WithIsa limit(Isa::scalar);
    EXPECT_EQ(perform(implementation().quantize, args).path, "cpu/scalar");
  }
  EXPECT_EQ(perform(implementation().quantize, args).path, "cpu/" + std::string(isa_name()));
}

TEST(InstructionSets, LayersAgree) {
  for (const int recipe : {DROPLESS_RECIPE_PLAIN, DROPLESS_RECIPE_MXFP8}) {
    LayerCase layer;
    layer.dtype = DROPLESS_FP32;
    layer.recipe = recipe;
    const auto run = [&layer](Isa most) {
      const WithIsa limit(most);
      return layer.run();
    };
    EXPECT_EQ(run(Isa::avx2), run(Isa::avx512));
  }
}

// Everything but products is the same in the baseline as well: no contraction, no reordering.
TEST(InstructionSets, BaselineAgreesOutsideProducts) {
  const Index tokens = 50, experts = 40;
  auto settings = route_settings(experts, 5, DROPLESS_SCORE_SOFTMAX);
  auto activation = make_args<dropless_activation_settings>();
  activation.kind = DROPLESS_GEGLU_TANH;
  const Array logits = Array(DROPLESS_FP32, {tokens, experts}).random(1, 3);
  const auto run = [&](Isa most) {
    const WithIsa limit(most);
    const Array ids(DROPLESS_I32, {tokens, 5}), weights(DROPLESS_FP32, {tokens, 5});
    const Array counts(DROPLESS_I64, {experts}), h(DROPLESS_FP32, {tokens, experts / 2});
    auto args = make_args<dropless_route_args>();
    args.settings = &settings, args.logits = logits.get(), args.ids = ids.get();
    args.weights = weights.get(), args.tokens_per_expert = counts.get();
    EXPECT_EQ(perform(implementation().route_forward, args).status, DROPLESS_OK);
    auto act = make_args<dropless_activation_args>();
    act.settings = &activation, act.x = logits.get(), act.h = h.get();
    EXPECT_EQ(perform(implementation().activation_forward, act).status, DROPLESS_OK);
    std::vector<std::byte> all = weights.bytes();
    all.insert(all.end(), ids.bytes().begin(), ids.bytes().end());
    all.insert(all.end(), h.bytes().begin(), h.bytes().end());
    return all;
  };
  EXPECT_EQ(run(Isa::scalar), run(Isa::avx512));
}

}  // namespace
}  // namespace dropless::cpu::testing
