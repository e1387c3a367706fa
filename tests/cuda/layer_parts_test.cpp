// SPDX-License-Identifier: Apache-2.0
// Parts of the layer that no operation of the contract shows by itself, on the GPU: the activation
// that quantises its output, dense products by cuBLASLt, and what the chip says to products with
// block scales. Skipped where there is no GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "conformance/adapters/device_memory.h"
#include "conformance/adapters/load.h"
#include "conformance/cases/case_run.h"
#include "conformance/judge/memory.h"
#include "optimized/cuda/dense_gemm.h"
#include "optimized/cuda/layer_dense.h"
#include "optimized/cuda/operations.h"

namespace dropless::cuda {
namespace {

using conformance::Buffer;
using conformance::Buffers;
using conformance::make_args;
using Values = std::vector<double>;

class LayerParts : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = conformance::no_gpu_because(); !why.empty()) GTEST_SKIP() << why;
    static const conformance::LoadedImplementation cuda = conformance::load_implementation("cuda");
    buffers = std::make_unique<Buffers>(DROPLESS_CUDA_DEVICE);
  }

  // Runs body(call) to its end and returns what it says; nothing else may be refused.
  template <class Body>
  auto run(const Body& body) {
    auto raw = make_args<dropless_call>();
    raw.stream = conformance::memory_of(DROPLESS_CUDA_DEVICE)->stream();
    Call call(&raw);
    std::invoke_result_t<Body, Call&> said{};
    const dropless_status status = guarded(call, [&] { said = body(call); });
    EXPECT_EQ(status, DROPLESS_OK) << raw.message;
    EXPECT_EQ(cudaStreamSynchronize(call.stream()), cudaSuccess);
    return said;
  }

  const dropless_tensor* input(dropless_dtype dtype, conformance::Shape shape, const Values& values,
                               conformance::Layout layout = {}) {
    return buffers->input("input", dtype, std::move(shape), values, layout).tensor();
  }

  std::unique_ptr<Buffers> buffers;
};

// Numbers of many magnitudes, signs and kinds.
Values hostile(Index count) {
  Values values;
  for (Index i = 0; i < count; ++i) {
    const auto noise =
        static_cast<double>((static_cast<std::uint64_t>(i) * 0x9E3779B97F4A7C15ULL) >> 40);
    values.push_back((i % 3 == 0 ? -1 : 1) *
                     std::ldexp(1 + noise * 0x1p-24, static_cast<int>(i * 7 % 23) - 12));
  }
  return values;
}

struct Activated {
  dropless_dtype dtype;
  std::int32_t kind;
  Index width;
  bool interleaved, weighted;
};

class QuantizedActivation : public LayerParts, public testing::WithParamInterface<Activated> {};

// The codes and scales that the activation writes are those that quantize() makes of its output.
TEST_P(QuantizedActivation, WritesTheBitsOfAQuantisationAfterwards) {
  const Activated& p = GetParam();
  constexpr Index rows = 7, used = 6;
  const Index columns = p.kind == DROPLESS_RELU2 ? p.width : 2 * p.width;
  Values x = hostile(rows * columns);
  for (Index i = 0; i < columns; ++i)
    x[static_cast<std::size_t>(columns + i)] = 0;  // a row of zeros
  x[static_cast<std::size_t>(2 * columns)] = std::numeric_limits<double>::quiet_NaN();
  x[static_cast<std::size_t>(3 * columns + 1)] = std::numeric_limits<double>::infinity();
  const Values weights = {1, 1, 0.25, 3, -0.5, 0, 1};
  const std::vector<Index> zones = {0, 2, used};
  const Index blocks = (p.width + 31) / 32;

  auto settings = make_args<dropless_activation_settings>();
  settings.kind = p.kind, settings.limit = 7, settings.alpha = 1.702, settings.offset = 1;
  settings.gate_up_layout =
      p.interleaved ? DROPLESS_GATE_UP_INTERLEAVED : DROPLESS_GATE_UP_CONCATENATED;
  auto args = make_args<dropless_activation_args>();
  args.settings = &settings;
  args.x = input(p.dtype, {rows, columns}, x);
  args.row_weights = p.weighted ? input(DROPLESS_FP32, {rows}, weights) : nullptr;
  const dropless_tensor* offsets = buffers->input("offsets", DROPLESS_I64, {3}, zones).tensor();
  args.offsets = offsets;

  const Buffer& fused_h = buffers->output("h of both", p.dtype, {rows, p.width});
  const Buffer& fused_codes = buffers->output("codes", DROPLESS_E4M3, {rows, p.width});
  const Buffer& fused_scales = buffers->output("scales", DROPLESS_E8M0, {rows, blocks});
  const Buffer& h = buffers->output("h", p.dtype, {rows, p.width});
  const Buffer& codes = buffers->output("codes afterwards", DROPLESS_E4M3, {rows, p.width});
  const Buffer& scales = buffers->output("scales afterwards", DROPLESS_E8M0, {rows, blocks});
  run([&](Call& call) {
    args.h = fused_h.tensor();
    activation_quantized(call, args, {*fused_codes.tensor(), *fused_scales.tensor()});
    args.h = h.tensor();
    activation_forward(call, args);
    auto second = make_args<dropless_quantize_args>();
    second.x = h.tensor(), second.offsets = offsets;
    second.row_codes = codes.tensor(), second.row_scales = scales.tensor();
    quantize(call, second);
    return true;
  });
  EXPECT_EQ(fused_h.bytes(), h.bytes());
  EXPECT_EQ(fused_codes.bytes(), codes.bytes());
  EXPECT_EQ(fused_scales.bytes(), scales.bytes());
  for (const Buffers::Damage& damage : buffers->damage()) {
    ADD_FAILURE() << damage.label << ": " << damage.what;
  }
  // Not all the same, and rows beyond the last zone untouched.
  const std::vector<std::uint8_t> all = scales.bytes();
  EXPECT_GT(*std::max_element(all.begin(), all.end() - blocks), 0);
  const std::vector<bool> untouched = fused_codes.untouched();
  EXPECT_TRUE(
      std::all_of(untouched.end() - p.width, untouched.end(), [](bool one) { return one; }));
  EXPECT_FALSE(std::all_of(untouched.begin(), untouched.end(), [](bool one) { return one; }));
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, QuantizedActivation,
    testing::Values(Activated{DROPLESS_BF16, DROPLESS_SWIGLU, 2048, false, false},
                    Activated{DROPLESS_BF16, DROPLESS_SWIGLU, 64, false, true},
                    Activated{DROPLESS_BF16, DROPLESS_SWIGLU, 2080, false, true},
                    Activated{DROPLESS_FP32, DROPLESS_SWIGLU, 4104, true, false},
                    Activated{DROPLESS_BF16, DROPLESS_SWIGLU, 40, true, true},
                    Activated{DROPLESS_BF16, DROPLESS_SWIGLU_CLAMPED, 33, true, false},
                    Activated{DROPLESS_BF16, DROPLESS_RELU2, 31, false, false},
                    Activated{DROPLESS_FP32, DROPLESS_GEGLU_TANH, 96, false, true},
                    Activated{DROPLESS_FP32, DROPLESS_SWIGLU, 7, false, false}));

struct Dense {
  dropless_dtype x, w, y;
  Index rows, out, in, gap;  // gap: unused elements after the rows of x and w
};

class DenseProducts : public LayerParts, public testing::WithParamInterface<Dense> {
 protected:
  static Values whole_numbers(Index count, int step) {
    Values values;
    for (Index i = 0; i < count; ++i) values.push_back(static_cast<double>(i * step % 13 - 6));
    return values;
  }
  // One group, whose products go through cuBLASLt.
  Linear map(const dropless_tensor* w, const dropless_tensor* offsets) {
    return {stacked(*w), {}, offsets, true, false, DROPLESS_E4M3};
  }
};

// Sums of products of small whole numbers are exact in fp32, whatever the order; rounded once.
Values multiplied(const Values& a, const Values& b, Index m, Index n, Index k, bool a_turned,
                  bool b_turned, dropless_dtype dtype) {
  Values out;
  for (Index i = 0; i < m; ++i) {
    for (Index j = 0; j < n; ++j) {
      double sum = 0;
      for (Index c = 0; c < k; ++c) {
        sum += a[static_cast<std::size_t>(a_turned ? c * m + i : i * k + c)] *
               b[static_cast<std::size_t>(b_turned ? j * k + c : c * n + j)];
      }
      EXPECT_TRUE(dtype == DROPLESS_FP32 || conformance::representable(dtype, Values{sum}));
      out.push_back(sum);
    }
  }
  return out;
}

TEST_P(DenseProducts, AreExactOnWholeNumbers) {
  const Dense& p = GetParam();
  const conformance::Layout layout{.row_gap = p.gap};
  Values x = whole_numbers(p.rows * p.in, 5), w = whole_numbers(p.out * p.in, 7),
         dy = whole_numbers(p.rows * p.out, 11);
  // Few terms that are not 0, so that sums fit into bf16.
  if (p.y == DROPLESS_BF16) {
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = i % 17 == 0 ? x[i] : 0;
  }
  const dropless_tensor* xt = input(p.x, {p.rows, p.in}, x, layout);
  const dropless_tensor* wt = input(p.w, {p.out, p.in}, w, layout);
  const dropless_tensor* dyt = input(p.y, {p.rows, p.out}, dy);
  const std::vector<Index> zones = {0, p.rows};
  const Linear linear = map(wt, buffers->input("offsets", DROPLESS_I64, {2}, zones).tensor());

  const Buffer& y = buffers->output("y", p.y, {p.rows, p.out});
  ASSERT_TRUE(run([&](Call& call) { return dense_forward(call, linear, *xt, *y.tensor()); }));
  EXPECT_EQ(y.values(), multiplied(x, w, p.rows, p.out, p.in, false, true, p.y));

  const Buffer& dx = buffers->output("dx", DROPLESS_FP32, {p.rows, p.in});
  ASSERT_TRUE(
      run([&](Call& call) { return dense_backward_input(call, linear, *dyt, *dx.tensor()); }));
  EXPECT_EQ(dx.values(), multiplied(dy, w, p.rows, p.in, p.out, false, false, DROPLESS_FP32));

  const Buffer& dw = buffers->output("dw", DROPLESS_FP32, {p.out, p.in});
  const dropless_tensor stack = stacked(*dw.tensor());
  const bool dense =
      run([&](Call& call) { return dense_backward_weight(call, linear, *dyt, *xt, stack); });
  EXPECT_EQ(dense, !(p.x == DROPLESS_BF16 && p.y == DROPLESS_BF16));
  if (dense) {
    EXPECT_EQ(dw.values(), multiplied(dy, x, p.out, p.in, p.rows, true, false, DROPLESS_FP32));
  }
  EXPECT_TRUE(buffers->damage().empty()) << buffers->damage().front().what;
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, DenseProducts,
    testing::Values(Dense{DROPLESS_BF16, DROPLESS_BF16, DROPLESS_FP32, 64, 32, 128, 0},
                    Dense{DROPLESS_BF16, DROPLESS_BF16, DROPLESS_BF16, 128, 256, 64, 0},
                    Dense{DROPLESS_BF16, DROPLESS_BF16, DROPLESS_FP32, 48, 16, 64, 8},
                    Dense{DROPLESS_BF16, DROPLESS_FP32, DROPLESS_FP32, 9, 7, 21, 0},
                    Dense{DROPLESS_FP32, DROPLESS_FP32, DROPLESS_FP32, 33, 5, 70, 3}));

// GENERAL-6: how operands lie in memory changes no bit, not even of sums that are rounded.
TEST_F(LayerParts, DenseProductsDoNotDependOnStrides) {
  constexpr Index rows = 96, out = 32, in = 2048;
  const Values x = hostile(rows * in), w = hostile(out * in + 1);
  const Values shifted(w.begin() + 1, w.end());
  Values turned;  // x with its axes in each other's place
  for (Index c = 0; c < in; ++c) {
    for (Index r = 0; r < rows; ++r) turned.push_back(x[static_cast<std::size_t>(r * in + c)]);
  }
  const dropless_tensor* xt = input(DROPLESS_BF16, {rows, in}, x);
  const dropless_tensor* wt = input(DROPLESS_BF16, {out, in}, shifted);
  dropless_tensor x_turned = *input(DROPLESS_BF16, {in, rows}, turned);
  std::swap(x_turned.shape[0], x_turned.shape[1]),
      std::swap(x_turned.strides[0], x_turned.strides[1]);
  const std::vector<std::pair<const dropless_tensor*, const dropless_tensor*>> layouts = {
      {xt, wt},
      {input(DROPLESS_BF16, {rows, in}, x, {.row_gap = 24}), wt},
      {input(DROPLESS_BF16, {rows, in}, x, {.offset_bytes = 2}), wt},
      {xt, input(DROPLESS_BF16, {out, in}, shifted, {.row_gap = 3, .offset_bytes = 6})},
      {&x_turned, wt}};
  std::vector<std::vector<std::uint8_t>> bits;
  for (const auto& [rows_of_x, weights] : layouts) {
    const Buffer& y = buffers->output("y", DROPLESS_FP32, {rows, out});
    const Linear linear{stacked(*weights), {}, nullptr, true, false, DROPLESS_E4M3};
    ASSERT_TRUE(run([&, given = rows_of_x](Call& call) {
      return dense_forward(call, linear, *given, *y.tensor());
    }));
    bits.push_back(y.bytes());
    EXPECT_EQ(bits.back(), bits.front());
  }
}

// The gradient of a weight is the caller's: not written when the device refused the call before.
TEST_F(LayerParts, RefusedCallsLeaveGradientsAlone) {
  const Values dy(6 * 4, 1.0), x(6 * 8, 1.0);
  const dropless_tensor* dyt = input(DROPLESS_FP32, {6, 4}, dy);
  const dropless_tensor* xt = input(DROPLESS_FP32, {6, 8}, x);
  const Buffer& dw = buffers->output("dw", DROPLESS_BF16, {4, 8}, {.row_gap = 5});
  const Linear linear{stacked(*dw.tensor()), {}, nullptr, true, false, DROPLESS_E4M3};
  const auto backward = [&](int refusal) {
    return run([&](Call& call) {
      EXPECT_EQ(cudaMemsetAsync(call.refusal_word(), refusal, sizeof(int), call.stream()),
                cudaSuccess);
      const bool done = dense_backward_weight(call, linear, *dyt, *xt, stacked(*dw.tensor()));
      EXPECT_EQ(cudaMemsetAsync(call.refusal_word(), 0, sizeof(int), call.stream()), cudaSuccess);
      return done;
    });
  };
  ASSERT_TRUE(backward(1));
  const std::vector<bool> untouched = dw.untouched();
  EXPECT_TRUE(std::all_of(untouched.begin(), untouched.end(), [](bool same) { return same; }));
  ASSERT_TRUE(backward(0));
  EXPECT_EQ(dw.values(), Values(4 * 8, 6.0));
  EXPECT_TRUE(buffers->damage().empty());
}

// What cuBLASLt does not take, or what has a bias, is left to the grouped GEMM.
TEST_F(LayerParts, WhatIsNotDenseIsLeftAlone) {
  const Values x(6 * 8, 1.0), w(4 * 8, 1.0), bias(4, 1.0);
  const dropless_tensor* xt = input(DROPLESS_FP32, {6, 8}, x);
  const dropless_tensor* wt = input(DROPLESS_FP32, {4, 8}, w);
  const Buffer& y = buffers->output("y", DROPLESS_BF16, {6, 4});
  Linear linear{stacked(*wt), {}, nullptr, true, false, DROPLESS_E4M3};
  // cuBLASLt rounds no fp32 product to bf16.
  EXPECT_FALSE(run([&](Call& call) { return dense_forward(call, linear, *xt, *y.tensor()); }));
  const Buffer& wide = buffers->output("wide y", DROPLESS_FP32, {6, 4});
  linear.bias = stacked(*input(DROPLESS_FP32, {4}, bias));
  EXPECT_FALSE(run([&](Call& call) { return dense_forward(call, linear, *xt, *wide.tensor()); }));
  for (const Buffer* one : {&y, &wide}) {
    const std::vector<bool> untouched = one->untouched();
    EXPECT_TRUE(std::all_of(untouched.begin(), untouched.end(), [](bool same) { return same; }));
  }
}

// Hopper refuses scales per 32 elements, and nothing is enqueued. Where a GPU takes them, the
// product is what the exact one is.
TEST_F(LayerParts, BlockScalesAreRefusedOrRight) {
  constexpr Index m = 128, n = 64, k = 256;
  const auto codes_of = [](Index count, int step) {  // 0, 1, 2, -1, -2 with 1 = 0x38, 2 = 0x40
    constexpr std::uint8_t some[] = {0x00, 0x38, 0x40, 0xB8, 0xC0};
    std::vector<std::uint8_t> codes;
    for (Index i = 0; i < count; ++i) codes.push_back(some[i * step % 5]);
    return codes;
  };
  const std::vector<std::uint8_t> a = codes_of(m * k, 3), b = codes_of(n * k, 2);
  // Of whole tiles; the same everywhere but for the block along k.
  const auto scales_of = [](Index outer, int first) {
    std::vector<std::uint8_t> scales(
        static_cast<std::size_t>((outer + 127) / 128 * 128 * (k / 32)));
    for (std::size_t i = 0; i < scales.size(); ++i) {
      const std::size_t block = i / 512 % (k / 128) * 4 + i % 4;
      scales[i] = static_cast<std::uint8_t>(127 + (block + static_cast<std::size_t>(first)) % 3);
    }
    return scales;
  };
  const std::vector<std::uint8_t> a_scales = scales_of(m, 0), b_scales = scales_of(n, 1);
  ScaledProduct product;
  product.m = m, product.n = n, product.k = k;
  product.a = buffers->input("a", DROPLESS_E4M3, {m, k}, a).tensor()->data;
  product.b = buffers->input("b", DROPLESS_E4M3, {n, k}, b).tensor()->data;
  const auto bytes = [](const auto& list) { return static_cast<Index>(list.size()); };
  product.a_scales =
      buffers->input("a scales", DROPLESS_E8M0, {bytes(a_scales)}, a_scales).tensor()->data;
  product.b_scales =
      buffers->input("b scales", DROPLESS_E8M0, {bytes(b_scales)}, b_scales).tensor()->data;
  const Buffer& out = buffers->output("out", DROPLESS_FP32, {m, n});
  product.out = {out.tensor()->data, DROPLESS_FP32, n};

  const int major = run([](Call& call) { return call.device().major; });
  const bool has = run([](Call& call) { return has_block_scales(call); });
  const bool taken = run([&](Call& call) { return scaled_gemm(call, product); });
  EXPECT_EQ(has, major >= 10);
  EXPECT_EQ(taken, has);
  if (!taken) {
    const std::vector<bool> untouched = out.untouched();
    EXPECT_TRUE(std::all_of(untouched.begin(), untouched.end(), [](bool same) { return same; }));
    return;
  }
  const auto value = [](std::uint8_t code) {
    const double size = (code & 0x7F) == 0 ? 0 : (code & 0x7F) == 0x38 ? 1 : 2;
    return (code & 0x80) != 0 ? -size : size;
  };
  Values expected;
  for (Index i = 0; i < m; ++i) {
    for (Index j = 0; j < n; ++j) {
      double sum = 0;
      for (Index c = 0; c < k; ++c) {
        const double scale = std::ldexp(1.0, static_cast<int>(c / 32 % 3 + (c / 32 + 1) % 3));
        sum += value(a[static_cast<std::size_t>(i * k + c)]) *
               value(b[static_cast<std::size_t>(j * k + c)]) * scale;
      }
      expected.push_back(sum);
    }
  }
  EXPECT_EQ(out.values(), expected);
}

}  // namespace
}  // namespace dropless::cuda
