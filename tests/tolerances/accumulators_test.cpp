// SPDX-License-Identifier: Apache-2.0
// The models of accumulators: a tensor core does what its description says, and errs as much as was
// measured elsewhere.
#include "tests/accumulators/accumulators.h"

#include <gtest/gtest.h>

#include "tests/tolerances/measure/gemm_data.h"

namespace dropless::tolerances {
namespace {

using models::Format;
using models::Kind;
using models::Row;

TEST(TensorCore, TheModelIsTheDescription) {
  using accumulators::step;
  const models::Doubles one = {1.0};
  // 2^-25 survives the alignment against 1 but not the truncation of the result; together with
  // three more it makes one unit of the result.
  const models::Doubles small = {0x1p-25}, four(4, 0x1p-25), ones(4, 1.0);
  EXPECT_EQ(step(accumulators::hopper_bf16, 1.0, small, one), 1.0);
  EXPECT_EQ(step(accumulators::hopper_bf16, 1.0, four, ones), 1.0 + 0x1p-23);
  const models::Doubles smaller(16, 0x1.fp-26), sixteen(16, 1.0);
  EXPECT_EQ(step(accumulators::hopper_bf16, 1.0, smaller, sixteen), 1.0);  // each is cut to nothing
  // 13 bits: 448 + 7.5 * 2^-7: the addend is below the aligner's last bit of 2^8 * 2^-13.
  EXPECT_EQ(step(accumulators::hopper_fp8, 448.0, models::Doubles{0x1p-6}, one), 448.0);
  EXPECT_EQ(step(accumulators::hopper_fp8, 448.0, models::Doubles{0x1p-5}, one), 448.03125);
  // Truncation is towards zero on both sides.
  EXPECT_EQ(step(accumulators::hopper_bf16, -1.0, models::Doubles{-0x1p-25}, one), -1.0);
  // A product in [2,4) is not renormalised: its exponent counts as 0, so 2^-25 is still aligned.
  EXPECT_EQ(step(accumulators::hopper_bf16, 0.0, models::Doubles{1.5, 0x1p-25},
                 models::Doubles{1.5, 1.0}),
            2.25);
  EXPECT_EQ(accumulators::tensor_core(accumulators::hopper_bf16, {}, {}), 0.0f);
}

TEST(TensorCore, PublishedErrorSizes) {
  // Same-sign, K = 4096. Measured elsewhere: a 13-bit accumulator loses 7 percent of the sum,
  // promoted every 128 products 5e-4, a 25-bit one 1.1e-5. The data differ, so a factor of 3 does.
  std::mt19937_64 random(7);
  const auto loss = [](const Row& row, const accumulators::Unit& unit, int period = 0) {
    return (row.exact() - accumulators::tensor_core(unit, row.a, row.b, period)) / row.exact();
  };
  for (int i = 0; i < 5; ++i) {
    const Row fp8 = models::make_row(Format::mxfp8, Kind::same_sign, 4096, random);
    EXPECT_GT(loss(fp8, accumulators::hopper_fp8), 0.07 / 3);
    EXPECT_LT(loss(fp8, accumulators::hopper_fp8), 0.07 * 3);
    EXPECT_GT(loss(fp8, accumulators::hopper_fp8, 128), 5e-4 / 3);
    EXPECT_LT(loss(fp8, accumulators::hopper_fp8, 128), 5e-4 * 3);
    const Row bf16 = models::make_row(Format::bf16, Kind::same_sign, 4096, random);
    EXPECT_GT(loss(bf16, accumulators::hopper_bf16), 1.1e-5 / 3);
    EXPECT_LT(loss(bf16, accumulators::hopper_bf16), 1.1e-5 * 3);
  }
}

}  // namespace
}  // namespace dropless::tolerances
