// SPDX-License-Identifier: Apache-2.0
// Losses by hand: balance loss in its scopes, z-loss, cross-entropy.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/cpu/support.h"

namespace dropless::cpu::testing {
namespace {

struct Balance {
  dropless_route_settings settings = route_settings(2, 1, DROPLESS_SCORE_SOFTMAX);
  Array logits = Array(DROPLESS_FP32, {4, 2})
                     .set({std::log(3.0), 0, std::log(3.0), 0, 0, std::log(3.0), 5, 5});
  Array ids = Array(DROPLESS_I32, {4, 1}).set({0, 0, 1, 0});
  Array mask = Array(DROPLESS_U8, {4}).set({1, 1, 1, 0});
  Array loss = Array(DROPLESS_FP32, {1}), d_loss = Array(DROPLESS_FP32, {1}).set({1});
  Array d_logits = Array(DROPLESS_FP32, {4, 2});
  dropless_balance_loss_args args = make_args<dropless_balance_loss_args>();
  Balance() {
    args.settings = &settings, args.coeff = 10, args.logits = logits.get(), args.ids = ids.get();
    args.token_mask = mask.get(), args.loss = loss.get(), args.d_loss = d_loss.get();
    args.d_logits = d_logits.get();
  }
};

TEST(Losses, BalanceOverTheMicroBatch) {
  Balance b;
  ASSERT_EQ(perform(implementation().balance_loss_forward, b.args).status, DROPLESS_OK);
  // f = (2/3, 1/3), P = (7/12, 5/12): 10 * 2 * (14 + 5) / 36.
  EXPECT_NEAR(b.loss.at(0), 20.0 * 19 / 36, 1e-5);
  ASSERT_EQ(perform(implementation().balance_loss_backward, b.args).status, DROPLESS_OK);
  // dP0/dl0 = p0 (1 - p0) / 3 = 1/16; d = 20 / 16 * (f0 - f1).
  EXPECT_NEAR(b.d_logits.at(0), 20.0 / 16 / 3, 1e-6);
  EXPECT_NEAR(b.d_logits.at(1), -20.0 / 16 / 3, 1e-6);
  EXPECT_EQ(b.d_logits.at(6), 0);
}

TEST(Losses, BalanceBySequenceAndGlobal) {
  Balance b;
  const Array boundaries = Array(DROPLESS_I64, {4}).set({0, 2, 3, 4});  // the last one is masked
  b.args.scope = DROPLESS_SCOPE_SEQUENCE, b.args.sequence_boundaries = boundaries.get();
  ASSERT_EQ(perform(implementation().balance_loss_forward, b.args).status, DROPLESS_OK);
  EXPECT_NEAR(b.loss.at(0), 20 * (0.75 + 0.75) / 2, 1e-5);

  const Array counts = Array(DROPLESS_I64, {2}).set({0, 3}),
              tokens = Array(DROPLESS_I64, {1}).set({3});
  b.args.scope = DROPLESS_SCOPE_GLOBAL;
  b.args.accumulated_counts = counts.get(), b.args.accumulated_tokens = tokens.get();
  ASSERT_EQ(perform(implementation().balance_loss_forward, b.args).status, DROPLESS_OK);
  EXPECT_EQ(counts.values(), (std::vector<double>{2, 4}));
  EXPECT_EQ(tokens.at(0), 6);
  EXPECT_NEAR(b.loss.at(0), 20 * (2.0 / 6 * 7 / 12 + 4.0 / 6 * 5 / 12), 1e-5);
  ASSERT_EQ(perform(implementation().balance_loss_backward, b.args).status, DROPLESS_OK);
  EXPECT_EQ(tokens.at(0), 6) << "the backward pass must not accumulate again";
  EXPECT_NEAR(b.d_logits.at(0), 20.0 / 16 * (2.0 / 6 - 4.0 / 6), 1e-6);
}

TEST(Losses, ZLoss) {
  const Array logits = Array(DROPLESS_FP32, {2, 2}).set({1, 1, 9, 9});
  const Array mask = Array(DROPLESS_U8, {2}).set({1, 0});
  const Array loss(DROPLESS_FP32, {1}), d_logits(DROPLESS_FP32, {2, 2});
  const Array d_loss = Array(DROPLESS_FP32, {1}).set({2});
  auto args = make_args<dropless_z_loss_args>();
  args.coeff = 0.5, args.logits = logits.get(), args.token_mask = mask.get();
  args.loss = loss.get(), args.d_loss = d_loss.get(), args.d_logits = d_logits.get();
  ASSERT_EQ(perform(implementation().z_loss_forward, args).status, DROPLESS_OK);
  ASSERT_EQ(perform(implementation().z_loss_backward, args).status, DROPLESS_OK);
  const double lse = 1 + std::log(2.0);
  EXPECT_NEAR(loss.at(0), 0.5 * lse * lse, 1e-6);
  EXPECT_NEAR(d_logits.at(0), 2 * 0.5 * 2 * lse * 0.5, 1e-6);
  EXPECT_EQ(d_logits.at(2), 0);
}

TEST(Losses, CrossEntropy) {
  const Array logits = Array(DROPLESS_FP32, {3, 2}).set({1e4, -1e4, 0, 0, 7, 7});
  const Array labels = Array(DROPLESS_I64, {3}).set({1, 0, -100});
  const Array loss(DROPLESS_FP32, {1}), d_logits(DROPLESS_FP32, {3, 2});
  const Array d_loss = Array(DROPLESS_FP32, {1}).set({1});
  auto args = make_args<dropless_cross_entropy_args>();
  args.logits = logits.get(), args.labels = labels.get(), args.loss = loss.get();
  args.d_loss = d_loss.get(), args.d_logits = d_logits.get();
  ASSERT_EQ(perform(implementation().cross_entropy_forward, args).status, DROPLESS_OK);
  ASSERT_EQ(perform(implementation().cross_entropy_backward, args).status, DROPLESS_OK);
  EXPECT_NEAR(loss.at(0), (2e4 + std::log(2.0)) / 2, 1e-2);
  EXPECT_EQ(d_logits.values(), (std::vector<double>{0.5, -0.5, -0.25, 0.25, 0, 0}));
}

TEST(Losses, NothingGivesZero) {
  const Array logits(DROPLESS_FP32, {0, 4}), labels(DROPLESS_I32, {0});
  const Array loss = Array(DROPLESS_FP32, {1}).fill(3);
  auto args = make_args<dropless_cross_entropy_args>();
  args.logits = logits.get(), args.labels = labels.get(), args.loss = loss.get();
  ASSERT_EQ(perform(implementation().cross_entropy_forward, args).status, DROPLESS_OK);
  EXPECT_EQ(loss.at(0), 0);
}

}  // namespace
}  // namespace dropless::cpu::testing
