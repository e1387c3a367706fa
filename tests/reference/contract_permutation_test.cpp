// SPDX-License-Identifier: Apache-2.0
// Permutation of the reference through the contract.
#include <gtest/gtest.h>

#include <cstring>

#include "tests/reference/contract_fixture.h"

namespace dropless::reference::testing {
namespace {

using Ids = std::vector<Index>;

// Three tokens, two slots, three experts, alignment 2: zones of expert 0 = rows 0..1 (token 1 slot
// 0, padding), expert 1 = rows 2..5 (tokens 0, 1, 2, padding), expert 2 empty. Buffers of 8 rows.
constexpr std::initializer_list<double> kRowMap{2, -1, 0, 3, 4, -1};
constexpr std::initializer_list<double> kSource{2, -1, 0, 3, 4, -1, 77, 78};
constexpr std::initializer_list<double> kOffsets{0, 2, 6, 6};

struct PermutePlan : Fixture {
  dropless_permute_plan_args args = arguments<dropless_permute_plan_args>();
  explicit PermutePlan(Index gap) : Fixture(gap) {
    profile.alignment = 16;
    args.num_experts = 3;
    args.row_capacity = -1;
    args.ids = input("ids", DROPLESS_I32, {3, 2}, {1, -1, 0, 1, 1, -1});
    args.tokens_per_expert = output("tokens_per_expert", DROPLESS_I64, {3});
    args.offsets = output("offsets", DROPLESS_I64, {4});
    args.row_map = output("row_map", DROPLESS_I64, {3, 2});
    args.source = output("source", DROPLESS_I64, {34});
    args.demand = output("demand", DROPLESS_I64, {1});
  }
  dropless_status run() override { return table().permute_plan(table().context, &call, &args); }
};

TEST(ContractPermutePlan, ByHand) {
  PermutePlan o(0);
  const Index poison = o["source"].integers()[33];
  ASSERT_EQ(o.run(), DROPLESS_OK) << o.message();
  EXPECT_EQ(o["tokens_per_expert"].integers(), (Ids{1, 3, 0}));
  EXPECT_EQ(o["offsets"].integers(), (Ids{0, 16, 32, 32}));
  EXPECT_EQ(o["row_map"].integers(), (Ids{16, -1, 0, 17, 18, -1}));
  EXPECT_EQ(o["demand"].integers(), Ids{32});
  Ids source(34, -1);
  source[0] = 2, source[16] = 0, source[17] = 3, source[18] = 4;
  source[32] = source[33] = poison;
  EXPECT_EQ(o["source"].integers(), source);
  PermutePlan zero(0);
  zero.profile.tail_rows = DROPLESS_TAIL_ZERO;
  ASSERT_EQ(zero.run(), DROPLESS_OK);
  source[32] = source[33] = -1;
  EXPECT_EQ(zero["source"].integers(), source);
}

TEST(ContractPermutePlan, Capacity) {
  PermutePlan o(0);
  o.profile.alignment = 1;
  o.args.row_capacity = 2;
  ASSERT_EQ(o.run(), DROPLESS_OK) << o.message();
  EXPECT_EQ(o["tokens_per_expert"].integers(), (Ids{1, 1, 0}));
  EXPECT_EQ(o["offsets"].integers(), (Ids{0, 1, 2, 2}));
  EXPECT_EQ(o["row_map"].integers(), (Ids{1, -1, 0, -1, -1, -1}));
  EXPECT_EQ(o["demand"].integers(), Ids{4});
}

TEST(ContractPermutePlan, TensorsStridesAndRefusals) {
  expect_strides_are_honoured<PermutePlan>();
  expect_tensors_are_checked<PermutePlan>({"source:0"});
  using O = PermutePlan;
  const auto refused = expect_spoiled_is_refused<O>;
  refused([](O& o) { o["source"].tensor.shape[0] = 31; }, "source holds 31 rows, 32 are needed");
  refused([](O& o) { o.args.row_capacity = 17; }, "row capacity 17");
  refused([](O& o) { o.args.num_experts = -1; }, "num_experts = -1");
  refused([](O& o) { o["ids"].set({1, -1, 0, 3, 1, -1}); }, "id 3");
  refused([](O& o) { o["ids"].set({1, 1, 0, 1, 1, -1}); }, "id 1 at token 0, slot 1 repeats");
  refused([](O& o) { o.args.demand = nullptr; }, "demand is null");
}

TEST(ContractPermutePlan, NoTokensAndNoExperts) {
  PermutePlan o(0);
  HostTensor none("ids", DROPLESS_I64, {0, 2}, false, 0), map("map", DROPLESS_I64, {0, 2}, true, 0),
      source("source", DROPLESS_I64, {0}, true, 0);
  o.args.ids = none, o.args.row_map = map, o.args.source = source;
  ASSERT_EQ(o.run(), DROPLESS_OK) << o.message();
  EXPECT_EQ(o["offsets"].integers(), (Ids{0, 0, 0, 0}));
  EXPECT_EQ(o["demand"].integers(), Ids{0});
}

struct Permute : Fixture {
  dropless_permute_args args = arguments<dropless_permute_args>();
  explicit Permute(Index gap) : Fixture(gap) {
    args.offsets = input("offsets", DROPLESS_I64, {4}, kOffsets);
    args.row_map = input("row_map", DROPLESS_I64, {3, 2}, kRowMap);
    args.source = input("source", DROPLESS_I64, {8}, kSource);
    args.x = input("x", DROPLESS_BF16, {3, 2}, {1, 2, 3, 4, 5, 6});
    args.weights = input("weights", DROPLESS_FP32, {3, 2}, {0.5, 9, 0, 0.125, 0.25, 9});
    args.scales = input("scales", DROPLESS_E8M0, {3, 1}, {11, 12, 13});
    args.rows = output("rows", DROPLESS_BF16, {8, 2});
    args.row_weights = output("row_weights", DROPLESS_FP32, {8});
    args.row_scales = output("row_scales", DROPLESS_E8M0, {8, 1});
  }
  dropless_status run() override { return table().permute_forward(table().context, &call, &args); }
};

TEST(ContractPermute, ByHandWithBothTailRules) {
  Permute o(0);
  // Bits that arithmetic would not keep: a signalling NaN with a payload, -0, a subnormal.
  const std::array<std::uint16_t, 2> bits{0x7F83, 0x8000};
  std::memcpy(o["x"].view().address(0, 0), bits.data(), 4);
  o["x"].view().store_integer(0x0001, 1, 0);
  const Ids x = o["x"].integers();
  ASSERT_EQ(o.run(), DROPLESS_OK) << o.message();
  const Index poison = 0xA5A5;
  const Ids rows = {x[2], x[3], 0, 0, x[0], x[1], x[2], x[3], x[4], x[5], 0, 0};
  Ids expected = rows;
  expected.insert(expected.end(), 4, poison);
  EXPECT_EQ(o["rows"].integers(), expected);
  // A weight of exactly zero did not erase row 0.
  const Doubles weights = o["row_weights"].values();
  EXPECT_EQ(Doubles(weights.begin(), weights.begin() + 6), (Doubles{0, 0, 0.5, 0.125, 0.25, 0}));
  EXPECT_EQ(o["row_scales"].integers(), (Ids{12, 0, 11, 12, 13, 0, 0xA5, 0xA5}));

  Permute zero(0);
  zero.profile.tail_rows = DROPLESS_TAIL_ZERO;
  ASSERT_EQ(zero.run(), DROPLESS_OK);
  for (const std::size_t i : {12, 13, 14, 15}) EXPECT_EQ(zero["rows"].integers()[i], 0);
  EXPECT_EQ(zero["row_scales"].integers()[7], 0);
}

TEST(ContractPermute, TensorsStridesAndRefusals) {
  expect_strides_are_honoured<Permute>();
  expect_tensors_are_checked<Permute>({"offsets:0"});  // fewer experts, the last one is empty
  using O = Permute;
  const auto refused = expect_spoiled_is_refused<O>;
  refused([](O& o) { o["rows"].tensor.dtype = DROPLESS_FP16; }, "rows has another dtype than x");
  refused([](O& o) { --o["rows"].tensor.shape[1]; }, "rows has the shape");
  refused([](O& o) { o.args.row_weights = nullptr; }, "row_weights is null");
  refused([](O& o) { o.args.scales = nullptr; }, "scales is null");
  refused([](O& o) { o["row_scales"].tensor.dtype = DROPLESS_U8; }, "row_scales has another dtype");
  refused([](O& o) { o["offsets"].set({0, 2, 9, 9}); }, "offset 9");
  refused([](O& o) { o["offsets"].set({0, 3, 2, 6}); }, "offsets fall");
  refused([](O& o) { o["source"].set({3, -1, 0, 3, 4, -1, 77, 78}); }, "source[0] = 3");
  refused([](O& o) { o["source"].set({2, -1, 0, 3, 6, -1, 77, 78}); }, "source[4] = 6");
  refused([](O& o) { o["row_map"].set({2, 5, 0, 3, 4, -1}); }, "row_map[1] = 5");
  refused([](O& o) { o["row_map"].set({2, -1, 0, 3, 4, 6}); }, "row_map[5] = 6");
}

struct PermuteBackward : Fixture {
  dropless_permute_backward_args args = arguments<dropless_permute_backward_args>();
  explicit PermuteBackward(Index gap) : Fixture(gap) {
    args.row_map = input("row_map", DROPLESS_I64, {3, 2}, kRowMap);
    args.d_rows = input("d_rows", DROPLESS_FP32, {8, 1}, {1, kNaN, 2, 4, 8, kNaN, kNaN, kNaN});
    args.d_x = output("d_x", DROPLESS_FP32, {3, 1});
    args.d_row_weights = input("d_row_weights", DROPLESS_FP32, {8}, {1, kNaN, 2, 3, 4, 0, 0, 0});
    args.d_weights = output("d_weights", DROPLESS_FP32, {3, 2});
  }
  dropless_status run() override { return table().permute_backward(table().context, &call, &args); }
};

TEST(ContractPermuteBackward, ByHand) {
  PermuteBackward o(0);
  ASSERT_EQ(o.run(), DROPLESS_OK) << o.message();
  EXPECT_EQ(o["d_x"].values(), (Doubles{2, 5, 8}));
  EXPECT_EQ(o["d_weights"].values(), (Doubles{2, 0, 1, 3, 4, 0}));
}

TEST(ContractPermuteBackward, TensorsStridesAndRefusals) {
  expect_strides_are_honoured<PermuteBackward>();
  expect_tensors_are_checked<PermuteBackward>();
  using O = PermuteBackward;
  const auto refused = expect_spoiled_is_refused<O>;
  refused([](O& o) { o["row_map"].set({2, -1, 0, 3, 8, -1}); }, "row_map[4] = 8");
  refused([](O& o) { o["row_map"].set({2, -1, 0, 2, 4, -1}); }, "row_map[3] = 2 repeats");
  refused([](O& o) { o["row_map"].set({2, -2, 0, 3, 4, -1}); }, "row_map[1] = -2");
  refused([](O& o) { o.args.d_weights = nullptr; }, "d_weights is null");
}

struct Unpermute : Fixture {
  dropless_unpermute_args args = arguments<dropless_unpermute_args>();
  explicit Unpermute(Index gap) : Fixture(gap) {
    args.row_map = input("row_map", DROPLESS_I64, {4, 2}, {2, -1, 0, 3, 4, -1, -1, -1});
    args.rows = input("rows", DROPLESS_BF16, {8, 1}, {1, kNaN, 2, 4, 8, kNaN, kNaN, kNaN});
    args.weights =
        input("weights", DROPLESS_FP32, {4, 2}, {0.5, kNaN, 3, 0.25, 1, kNaN, kNaN, kNaN});
    args.y = output("y", DROPLESS_BF16, {4, 1});
  }
  dropless_status run() override {
    return table().unpermute_forward(table().context, &call, &args);
  }
};

TEST(ContractUnpermute, ByHandStridesAndRefusals) {
  Unpermute o(0);
  ASSERT_EQ(o.run(), DROPLESS_OK) << o.message();
  EXPECT_EQ(o["y"].values(), (Doubles{1, 4, 8, 0}));
  o.args.weights = nullptr;
  ASSERT_EQ(o.run(), DROPLESS_OK) << o.message();
  EXPECT_EQ(o["y"].values(), (Doubles{2, 5, 8, 0}));
  expect_strides_are_honoured<Unpermute>();
  expect_tensors_are_checked<Unpermute>({"rows:0"});
  expect_spoiled_is_refused<Unpermute>([](Unpermute& u) { u["rows"].tensor.shape[0] = 4; },
                                       "row_map[4] = 4");
}

// One rounding to the output type: 1 + 2^-8 + 2^-30 lies above the tie between 1 and 1 + 2^-7; a
// rounding to fp32 in between would lose the 2^-30, and the tie would go to 1.
TEST(ContractUnpermute, RoundsOnce) {
  Unpermute o(0);
  HostTensor rows("rows", DROPLESS_FP32, {8, 1}, false, 0);
  o.args.rows = rows.set({1, 0, 0, 0x1p-8 + 0x1p-30, 0, 0, 0, 0});
  o.args.weights = nullptr;
  ASSERT_EQ(o.run(), DROPLESS_OK) << o.message();
  EXPECT_EQ(o["y"].values()[1], 1 + 0x1p-7);
}

struct UnpermuteBackward : Fixture {
  dropless_unpermute_backward_args args = arguments<dropless_unpermute_backward_args>();
  explicit UnpermuteBackward(Index gap) : Fixture(gap) {
    args.offsets = input("offsets", DROPLESS_I64, {4}, kOffsets);
    args.row_map = input("row_map", DROPLESS_I64, {3, 2}, kRowMap);
    args.source = input("source", DROPLESS_I64, {8}, kSource);
    args.rows = input("rows", DROPLESS_FP32, {8, 2},
                      {1, 2, kNaN, 0, 3, 4, 5, 6, 7, 8, kNaN, 0, kNaN, 0, kNaN, 0});
    args.weights = input("weights", DROPLESS_FP32, {3, 2}, {0.5, kNaN, 2, 4, 0, kNaN});
    args.d_y = input("d_y", DROPLESS_FP32, {3, 2}, {1, 2, 3, 4, 5, 6});
    args.d_rows = output("d_rows", DROPLESS_FP32, {8, 2});
    args.d_weights = output("d_weights", DROPLESS_FP32, {3, 2});
  }
  dropless_status run() override {
    return table().unpermute_backward(table().context, &call, &args);
  }
};

TEST(ContractUnpermuteBackward, ByHand) {
  UnpermuteBackward o(0);
  o.profile.tail_rows = DROPLESS_TAIL_ZERO;
  ASSERT_EQ(o.run(), DROPLESS_OK) << o.message();
  EXPECT_EQ(o["d_rows"].values(), (Doubles{6, 8, 0, 0, 0.5, 1, 12, 16, 0, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(o["d_weights"].values(), (Doubles{11, 0, 11, 39, 83, 0}));

  UnpermuteBackward plain(0);
  plain.args.weights = nullptr, plain.args.d_weights = nullptr, plain.args.rows = nullptr;
  ASSERT_EQ(plain.run(), DROPLESS_OK) << plain.message();
  const Doubles rows = plain["d_rows"].values();
  EXPECT_EQ(Doubles(rows.begin(), rows.begin() + 12),
            (Doubles{3, 4, 0, 0, 1, 2, 3, 4, 5, 6, 0, 0}));
  EXPECT_EQ(plain["d_rows"].integers()[12], 0xA5A5A5A5);  // beyond the last zone: untouched
}

TEST(ContractUnpermuteBackward, TensorsStridesAndRefusals) {
  expect_strides_are_honoured<UnpermuteBackward>();
  expect_tensors_are_checked<UnpermuteBackward>({"offsets:0"});
  using O = UnpermuteBackward;
  const auto refused = expect_spoiled_is_refused<O>;
  refused([](O& o) { o.args.d_weights = nullptr; }, "d_weights is null");
  refused([](O& o) { o.args.weights = nullptr; }, "weights is null");
  refused([](O& o) { o.args.rows = nullptr; }, "rows is null");
  refused([](O& o) { o["row_map"].set({2, 1, 0, 3, 4, -1}); }, "row_map[1] = 1");
}

}  // namespace
}  // namespace dropless::reference::testing
