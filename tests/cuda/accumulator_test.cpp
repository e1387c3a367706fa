// SPDX-License-Identifier: Apache-2.0
// What the products of the GPU implementation really keep of a small term beside a large one,
// beside what its profile declares (GROUPED_GEMM-6). One step of a tensor core adds 16 products: 1
// and 15 times 2^-f. With f bits at the alignment and truncation, 15 * 2^-25 leaves 3 of its 3.75
// units of 2^-23. Skipped where there is no GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "conformance/adapters/device_memory.h"
#include "conformance/adapters/load.h"
#include "conformance/cases/case_run.h"
#include "conformance/judge/memory.h"

namespace dropless::conformance {
namespace {

constexpr Index side = 128;  // rows and columns, so that the fast kernel takes it
constexpr Index depth = 64;  // products; those from the 17th on are zero
constexpr int terms = 16;

struct Probe {
  dropless_dtype operands;
  double large;                               // of both operands, so that large^2 leads
  std::pair<int, int> (*exponents)(int sum);  // of the small factors
};

// dot = large^2 * (1 + 15 * 2^-f), in units of large^2.
double dot(const LoadedImplementation& cuda, const Probe& probe, int f) {
  Buffers buffers(DROPLESS_CUDA_DEVICE);
  const int sum = static_cast<int>(2 * std::log2(probe.large)) - f;
  const auto [a, b] = probe.exponents(sum);
  std::vector<double> x(side * depth, 0.0), w(side * depth, 0.0);
  for (std::size_t row = 0; row < x.size(); row += depth) {
    x[row] = w[row] = probe.large;
    for (std::size_t i = 1; i < terms; ++i) x[row + i] = std::ldexp(1.0, a);
    for (std::size_t i = 1; i < terms; ++i) w[row + i] = std::ldexp(1.0, b);
  }
  EXPECT_TRUE(representable(probe.operands, x) && representable(probe.operands, w)) << f;

  auto rows = make_args<dropless_operand>(), weights = make_args<dropless_operand>();
  rows.values = buffers.input("x", probe.operands, {side, depth}, x).tensor();
  weights.values = buffers.input("w", probe.operands, {1, side, depth}, w).tensor();
  if (probe.operands != DROPLESS_BF16) {
    const std::vector<double> one(side * depth / 32, 1.0);
    rows.scales = buffers.input("x scales", DROPLESS_E8M0, {side, depth / 32}, one).tensor();
    weights.scales = buffers.input("w scales", DROPLESS_E8M0, {1, side, depth / 32}, one).tensor();
  }
  const std::vector<Index> offsets{0, side};
  const Buffer& y = buffers.output("y", DROPLESS_FP32, {side, side});
  auto args = make_args<dropless_gemm_fprop_args>();
  args.alpha = 1, args.x = &rows, args.w = &weights;
  args.offsets = buffers.input("offsets", DROPLESS_I64, {2}, offsets).tensor();
  args.y = y.tensor();
  auto call = make_args<dropless_call>();
  call.stream = memory_of(DROPLESS_CUDA_DEVICE)->stream();
  EXPECT_EQ(cuda.table().gemm_fprop(cuda.table().context, &call, &args), DROPLESS_OK)
      << call.message;
  auto waiting = make_args<dropless_call>();
  waiting.stream = call.stream;
  auto nothing = make_args<dropless_synchronize_args>();
  EXPECT_EQ(cuda.table().synchronize(cuda.table().context, &waiting, &nothing), DROPLESS_OK)
      << waiting.message;
  testing::Test::RecordProperty("path", call.path);
  const std::vector<double> all = y.values();
  EXPECT_TRUE(std::ranges::all_of(all, [&](double one) { return one == all[0]; })) << f;
  return all[0] / (probe.large * probe.large);
}

// The largest f whose terms are still seen.
int bits_kept(const LoadedImplementation& cuda, const Probe& probe) {
  int kept = 0;
  for (int f = 8; f <= 30; ++f) {
    if (dot(cuda, probe, f) > 1.0) kept = f;
  }
  return kept;
}

void expect_declared(const Probe& probe, int32_t dropless_profile::*model) {
  if (const std::string why = no_gpu_because(); !why.empty()) GTEST_SKIP() << why;
  const LoadedImplementation cuda = load_implementation("cuda");
  const int kept = bits_kept(cuda, probe);
  const double at_25 = (dot(cuda, probe, 25) - 1.0) * std::ldexp(1.0, 23);
  testing::Test::RecordProperty("fraction_bits", kept);
  switch (cuda.table().profile->*model) {
    case DROPLESS_ACCUMULATOR_TENSOR_CORE_25:
      EXPECT_GE(kept, 25);
      EXPECT_GE(at_25, 3.0);  // 3 truncated, 4 rounded
      break;
    case DROPLESS_ACCUMULATOR_HOPPER_FP8_13:
      EXPECT_GE(kept, 13);
      break;
    default:  // every partial result rounded to fp32: half a unit of the last place is seen
      EXPECT_GE(kept, 20);
  }
}

TEST(Accumulator, Bf16KeepsWhatTheProfileDeclares) {
  expect_declared({DROPLESS_BF16, 1.0,
                   [](int sum) {
                     return std::pair{sum / 2, sum - sum / 2};
                   }},
                  &dropless_profile::accumulator_bf16);
}

// Codes reach from 2^-9 to 448: products of one block are up to 2^34 apart.
TEST(Accumulator, Mxfp8KeepsWhatTheProfileDeclares) {
  expect_declared({DROPLESS_E4M3, 256.0,
                   [](int sum) {
                     return std::pair{sum / 2, sum - sum / 2};
                   }},
                  &dropless_profile::accumulator_mxfp8);
}

}  // namespace
}  // namespace dropless::conformance
