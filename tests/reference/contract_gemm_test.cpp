// SPDX-License-Identifier: Apache-2.0
// Grouped GEMM and activation of the reference through the contract.
#include <gtest/gtest.h>

#include <cstring>

#include "tests/reference/contract_fixture.h"

namespace dropless::reference::testing {
namespace {

dropless_operand operand(const HostTensor& values) {
  dropless_operand result{};
  result.struct_size = sizeof result;
  result.struct_version = DROPLESS_STRUCT_VERSION;
  result.values = values;
  return result;
}

// Two experts, E = 2, O = 2, I = 3. Zone of expert 0: rows 0..1, row 1 padding; expert 1: row 2;
// row 3 lies beyond the last zone. Padding and tail hold NaN.
struct Fprop : Fixture {
  dropless_gemm_fprop_args args = arguments<dropless_gemm_fprop_args>();
  dropless_operand x, w;
  explicit Fprop(Index gap) : Fixture(gap) {
    args.alpha = 2;
    x = operand(
        input("x", DROPLESS_FP32, {4, 3}, {1, 2, 3, kNaN, 0, 0, 1, 0, -1, kNaN, kNaN, kNaN}));
    w = operand(input("w", DROPLESS_BF16, {2, 2, 3}, {1, 0, 0, 1, 1, 1, 4, 5, 6, 1, 2, 3}));
    args.x = &x, args.w = &w;
    args.bias = input("bias", DROPLESS_FP32, {2, 2}, {0.5, 0, 0, 0.25});
    args.offsets = input("offsets", DROPLESS_I64, {3}, {0, 2, 3});
    args.counts = input("counts", DROPLESS_I64, {2}, {1, 1});
    args.y = output("y", DROPLESS_FP32, {4, 2});
  }
  dropless_status run() override { return table().gemm_fprop(table().context, &call, &args); }
};

TEST(ContractFprop, ByHandWithBothTailRules) {
  Fprop o(0);
  ASSERT_EQ(o.run(), DROPLESS_OK) << o.message();
  const Doubles y = o["y"].values();
  EXPECT_EQ(Doubles(y.begin(), y.begin() + 6), (Doubles{2.5, 12, 0, 0, -4, -3.75}));
  EXPECT_EQ(o["y"].integers()[6], 0xA5A5A5A5);
  Fprop zero(0);
  zero.profile.tail_rows = DROPLESS_TAIL_ZERO;
  ASSERT_EQ(zero.run(), DROPLESS_OK);
  EXPECT_EQ(zero["y"].integers()[6], 0);
}

TEST(ContractFprop, DeclaredAlignmentIsDemanded) {
  Fprop o(0);
  o.profile.gemm_alignment = 2;
  EXPECT_EQ(o.run(), DROPLESS_INVALID_ARGUMENT);
  EXPECT_NE(o.message().find("offsets[2] = 3"), std::string::npos) << o.message();
  o["offsets"].set({0, 2, 4});
  o["x"].set({1, 2, 3, kNaN, 0, 0, 1, 0, -1, kNaN, kNaN, kNaN});
  EXPECT_EQ(o.run(), DROPLESS_OK) << o.message();
}

TEST(ContractFprop, TensorsStridesAndRefusals) {
  expect_strides_are_honoured<Fprop>();
  using O = Fprop;
  expect_tensors_are_checked<O>();
  const auto refused = expect_spoiled_is_refused<O>;
  refused([](O& o) { o.args.x = nullptr; }, "x is null");
  refused([](O& o) { o.x.values = nullptr; }, "x is null");
  refused([](O& o) { o.x.struct_size = 8; }, "x.struct_size = 8");
  refused([](O& o) { o.x.scale_layout = 3; }, "x.scale_layout = 3");
  refused([](O& o) { o.x.scales = o["w"]; }, "x has scales but no codes");
  refused([](O& o) { o["w"].tensor.dtype = DROPLESS_E4M3; }, "w has codes but no scales");
  refused([](O& o) { o.args.offsets = nullptr; }, "offsets is null");
  refused([](O& o) { o["offsets"].set({0, 3, 2}); }, "offsets fall");
  refused([](O& o) { o["offsets"].set({0, 2, 5}); }, "offset 5");
  refused([](O& o) { o["counts"].set({3, 1}); }, "count 3");
}

// x codes 1.0 with scales 2 and 4, w codes 1.0 with scale 1: 32 columns at 2 and one at 4.
TEST(ContractFprop, Mxfp8OperandsInBothLayouts) {
  for (const int layout : {DROPLESS_SCALES_LINEAR, DROPLESS_SCALES_PACKED}) {
    const bool packed = layout == DROPLESS_SCALES_PACKED;
    Fprop o(0);
    HostTensor x("x8", DROPLESS_E4M3, {4, 33}, false, 1),
        w("w8", DROPLESS_E5M2, {2, 2, 33}, false, 0);
    x.set(Doubles(4 * 33, 1.0)), w.set(Doubles(4 * 33, 1.0));
    const std::vector<Index> row_shape{4, 2}, weight_shape{2, 2, 2}, packed_shape{1024};
    HostTensor xs("xs", DROPLESS_E8M0, packed ? packed_shape : row_shape, false, 0),
        ws("ws", DROPLESS_E8M0, packed ? packed_shape : weight_shape, false, 0);
    if (packed) {
      // One tile per expert; row r of a zone at 16 r, padding of the tiles is garbage.
      Doubles x_bytes(1024, 77), w_bytes(1024, 77);
      for (const std::size_t r : {0, 16, 512}) x_bytes[r] = 128, x_bytes[r + 1] = 129;
      for (const std::size_t r : {0, 16, 512, 528}) w_bytes[r] = w_bytes[r + 1] = 127;
      xs.set(x_bytes), ws.set(w_bytes);
    } else {
      xs.set({128, 129, 128, 129, 128, 129, 255, 255});
      ws.set(Doubles(8, 127));
    }
    o.x = operand(x), o.w = operand(w);
    o.x.scales = xs, o.w.scales = ws;
    o.x.scale_layout = o.w.scale_layout = layout;
    ASSERT_EQ(o.run(), DROPLESS_OK) << o.message();
    const Doubles y = o["y"].values();
    const double sum = 2 * (32 * 2 + 4);
    EXPECT_EQ(Doubles(y.begin(), y.begin() + 6), (Doubles{sum + 0.5, sum, 0, 0, sum, sum + 0.25}));
    xs.tensor.shape[0] -= 1;
    EXPECT_EQ(o.run(), DROPLESS_INVALID_ARGUMENT);
    EXPECT_NE(o.message().find("x.scales"), std::string::npos) << o.message();
  }
}

struct Dgrad : Fixture {
  dropless_gemm_dgrad_args args = arguments<dropless_gemm_dgrad_args>();
  dropless_operand dy, w;
  explicit Dgrad(Index gap) : Fixture(gap) {
    args.alpha = 1;
    dy = operand(input("dy", DROPLESS_BF16, {4, 2}, {1, 2, kNaN, kNaN, 3, -1, kNaN, kNaN}));
    w = operand(input("w", DROPLESS_FP32, {2, 2, 3}, {1, 0, 0, 1, 1, 1, 4, 5, 6, 1, 2, 3}));
    args.dy = &dy, args.w = &w;
    args.offsets = input("offsets", DROPLESS_I64, {3}, {0, 2, 3});
    args.counts = input("counts", DROPLESS_I64, {2}, {1, 1});
    args.dx = output("dx", DROPLESS_BF16, {4, 3});
  }
  dropless_status run() override { return table().gemm_dgrad(table().context, &call, &args); }
};

TEST(ContractDgrad, ByHandStridesAndRefusals) {
  Dgrad d(0);
  ASSERT_EQ(d.run(), DROPLESS_OK) << d.message();
  const Doubles dx = d["dx"].values();
  EXPECT_EQ(Doubles(dx.begin(), dx.begin() + 9), (Doubles{3, 2, 2, 0, 0, 0, 11, 13, 15}));
  EXPECT_EQ(d["dx"].integers()[9], 0xA5A5);
  expect_strides_are_honoured<Dgrad>();
  expect_tensors_are_checked<Dgrad>();
}

// Blocks of W run along O: one scale for all of a column of at most 32 rows.
TEST(ContractDgrad, WeightScalesRunAlongTheContraction) {
  Dgrad d(0);
  HostTensor w("w8", DROPLESS_E4M3, {2, 2, 3}, false, 0),
      ws("ws", DROPLESS_E8M0, {2, 1, 3}, false, 0);
  HostTensor dy("dy8", DROPLESS_E4M3, {4, 2}, false, 0),
      dys("dys", DROPLESS_E8M0, {4, 1}, false, 0);
  w.set({1, 0, 0, 1, 1, 1, 4, 5, 6, 1, 2, 3});
  d.w = operand(w), d.w.scales = ws.set({127, 128, 129, 127, 127, 127});
  d.dy = operand(dy.set({1, 2, 0, 0, 3, -1, 0, 0})), d.dy.scales = dys.set({127, 0, 128, 0});
  ASSERT_EQ(d.run(), DROPLESS_OK) << d.message();
  const Doubles dx = d["dx"].values();
  EXPECT_EQ(Doubles(dx.begin(), dx.begin() + 9), (Doubles{3, 4, 8, 0, 0, 0, 22, 26, 30}));
}

struct Wgrad : Fixture {
  dropless_gemm_wgrad_args args = arguments<dropless_gemm_wgrad_args>();
  dropless_operand dy, x;
  explicit Wgrad(Index gap) : Fixture(gap) {
    args.alpha = 1;
    args.beta = 0.5;
    dy = operand(input("dy", DROPLESS_FP32, {4, 1}, {2, kNaN, 3, kNaN}));
    x = operand(input("x", DROPLESS_FP32, {4, 2}, {1, 2, kNaN, kNaN, 4, 5, kNaN, kNaN}));
    args.dy = &dy, args.x = &x;
    args.offsets = input("offsets", DROPLESS_I64, {4}, {0, 2, 2, 3});
    args.counts = input("counts", DROPLESS_I64, {3}, {1, 0, 1});
    args.c = input("c", DROPLESS_FP32, {3, 1, 2}, {10, 20, 30, 40, 50, 60});
    args.dw = output("dw", DROPLESS_FP32, {3, 1, 2});
  }
  dropless_status run() override { return table().gemm_wgrad(table().context, &call, &args); }
};

TEST(ContractWgrad, ByHandForEveryBeta) {
  Wgrad half(0);
  ASSERT_EQ(half.run(), DROPLESS_OK) << half.message();
  EXPECT_EQ(half["dw"].values(), (Doubles{7, 14, 15, 20, 37, 45}));
  Wgrad none(0);
  none.args.beta = 0;
  none["c"].set(Doubles(6, kNaN));  // not read
  ASSERT_EQ(none.run(), DROPLESS_OK);
  EXPECT_EQ(none["dw"].values(), (Doubles{2, 4, 0, 0, 12, 15}));
  none.args.c = nullptr;
  ASSERT_EQ(none.run(), DROPLESS_OK);
  EXPECT_EQ(none["dw"].values(), (Doubles{2, 4, 0, 0, 12, 15}));
}

// GROUPED_GEMM-5: an empty expert's gradient stays bit by bit, in place.
TEST(ContractWgrad, EmptyExpertKeepsItsBits) {
  for (const dropless_dtype dtype : {DROPLESS_FP32, DROPLESS_BF16}) {
    Wgrad o(0);
    HostTensor dw("in_place", dtype, {3, 1, 2}, true, 0);
    dw.set({10, 20, 30, 40, 50, 60});
    const Index signalling = dtype == DROPLESS_FP32 ? 0x7F800123 : 0x7F83;
    const Index minus_zero = dtype == DROPLESS_FP32 ? 0x80000000 : 0x8000;
    dw.view().store_integer(signalling, 1, 0, 0);
    dw.view().store_integer(minus_zero, 1, 0, 1);
    o.args.c = o.args.dw = dw;
    o.args.beta = 1;
    ASSERT_EQ(o.run(), DROPLESS_OK) << o.message();
    EXPECT_EQ(dw.integers()[2], signalling);
    EXPECT_EQ(dw.integers()[3], minus_zero);
    EXPECT_EQ(dw.values()[0], 12);
    EXPECT_EQ(dw.values()[5], 75);
  }
}

TEST(ContractWgrad, TensorsStridesAndRefusals) {
  expect_strides_are_honoured<Wgrad>();
  expect_tensors_are_checked<Wgrad>();
  expect_spoiled_is_refused<Wgrad>([](Wgrad& o) { o.args.c = nullptr; }, "c is null");
}

TEST(ContractGemm, NoRowsStillWritesTheWeightGradient) {
  Wgrad o(0);
  HostTensor dy("no dy", DROPLESS_FP32, {0, 1}, false, 0),
      x("no x", DROPLESS_FP32, {0, 2}, false, 0);
  o.dy = operand(dy), o.x = operand(x);
  o["offsets"].set({0, 0, 0, 0});
  o["counts"].set({0, 0, 0});
  o.args.beta = 0;
  ASSERT_EQ(o.run(), DROPLESS_OK) << o.message();
  EXPECT_EQ(o["dw"].values(), Doubles(6, 0));
  Fprop f(0);
  HostTensor none("no x", DROPLESS_FP32, {0, 3}, false, 0),
      y("no y", DROPLESS_FP32, {0, 2}, true, 0);
  f.x = operand(none), f.args.y = y;
  f["offsets"].set({0, 0, 0});
  f["counts"].set({0, 0});
  EXPECT_EQ(f.run(), DROPLESS_OK) << f.message();
}

dropless_activation_settings swiglu() {
  dropless_activation_settings settings{};
  settings.struct_size = sizeof settings;
  settings.struct_version = DROPLESS_STRUCT_VERSION;
  return settings;
}

struct Activation : Fixture {
  dropless_activation_settings settings = swiglu();
  dropless_activation_args args = arguments<dropless_activation_args>();
  explicit Activation(Index gap) : Fixture(gap) {
    args.settings = &settings;
    args.x = input("x", DROPLESS_FP32, {4, 2}, {0, 5, 1, 2, kNaN, kNaN, kNaN, kNaN});
    args.row_weights = input("row_weights", DROPLESS_FP32, {4}, {1, 0.5, kNaN, kNaN});
    args.offsets = input("offsets", DROPLESS_I64, {2}, {0, 3});
    args.counts = input("counts", DROPLESS_I64, {1}, {2});
    args.h = output("h", DROPLESS_FP32, {4, 1});
  }
  dropless_status run() override {
    return table().activation_forward(table().context, &call, &args);
  }
};

TEST(ContractActivation, ByHand) {
  Activation o(0);
  ASSERT_EQ(o.run(), DROPLESS_OK) << o.message();
  const Doubles h = o["h"].values();
  EXPECT_EQ(h[0], 0);
  EXPECT_EQ(h[1], fp32(1 / (1 + std::exp(-1.0)) * 2 * 0.5));
  EXPECT_EQ(h[2], 0);
  EXPECT_EQ(o["h"].integers()[3], 0xA5A5A5A5);
  o.args.offsets = o.args.counts = nullptr;  // every row is real
  ASSERT_EQ(o.run(), DROPLESS_OK) << o.message();
  EXPECT_TRUE(std::isnan(o["h"].values()[3]));
}

TEST(ContractActivation, TensorsStridesAndRefusals) {
  expect_strides_are_honoured<Activation>();
  expect_tensors_are_checked<Activation>();
  using O = Activation;
  const auto refused = expect_spoiled_is_refused<O>;
  refused([](O& o) { o.settings.kind = 4; }, "unknown activation 4");
  refused([](O& o) { o.settings.gate_up_layout = 2; }, "layout 2");
  refused([](O& o) { o.settings.kind = DROPLESS_RELU2; }, "x has the shape [4,2], not [4,1]");
  refused(
      [](O& o) {
        o.settings.kind = DROPLESS_SWIGLU_CLAMPED;
        o.settings.struct_size = offsetof(dropless_activation_settings, limit);
      },
      "activation settings.struct_size");
  // The same length is enough for a kind without limits.
  Activation control(0);
  control.settings.struct_size = offsetof(dropless_activation_settings, limit);
  EXPECT_EQ(control.run(), DROPLESS_OK) << control.message();
}

struct ActivationBackward : Fixture {
  dropless_activation_settings settings = swiglu();
  dropless_activation_backward_args args = arguments<dropless_activation_backward_args>();
  explicit ActivationBackward(Index gap) : Fixture(gap) {
    args.settings = &settings;
    args.x = input("x", DROPLESS_FP32, {4, 2}, {0, 6, 0, 2, kNaN, kNaN, kNaN, kNaN});
    args.row_weights = input("row_weights", DROPLESS_FP32, {4}, {1, 0.5, kNaN, kNaN});
    args.offsets = input("offsets", DROPLESS_I64, {2}, {0, 3});
    args.counts = input("counts", DROPLESS_I64, {1}, {2});
    args.dh = input("dh", DROPLESS_FP32, {4, 1}, {1, 3, kNaN, kNaN});
    args.d_x = output("d_x", DROPLESS_FP32, {4, 2});
    args.d_row_weights = output("d_row_weights", DROPLESS_FP32, {4});
  }
  dropless_status run() override {
    return table().activation_backward(table().context, &call, &args);
  }
};

TEST(ContractActivationBackward, ByHandStridesAndRefusals) {
  ActivationBackward o(0);
  ASSERT_EQ(o.run(), DROPLESS_OK) << o.message();
  // At gate 0 the slope of silu is 1/2 and silu itself is 0.
  const Doubles d_x = o["d_x"].values(), d_w = o["d_row_weights"].values();
  EXPECT_EQ(Doubles(d_x.begin(), d_x.begin() + 6), (Doubles{3, 0, 1.5, 0, 0, 0}));
  EXPECT_EQ(Doubles(d_w.begin(), d_w.begin() + 3), (Doubles{0, 0, 0}));
  EXPECT_EQ(o["d_row_weights"].integers()[3], 0xA5A5A5A5);
  expect_strides_are_honoured<ActivationBackward>();
  expect_tensors_are_checked<ActivationBackward>();
  expect_spoiled_is_refused<ActivationBackward>(
      [](ActivationBackward& a) { a.args.d_row_weights = nullptr; }, "d_row_weights is null");
}

}  // namespace
}  // namespace dropless::reference::testing
