// SPDX-License-Identifier: Apache-2.0
// MXFP8 of approximate values: exact values give the reference's codes, and whatever lies within
// the errors quantises inside the result.
#include "tolerances/quantisation.h"

#include <dropless/formats.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "reference/mxfp8.h"
#include "tolerances/interval.h"

namespace dropless::tolerances {
namespace {

constexpr int rules[] = {DROPLESS_SCALE_RCEIL, DROPLESS_SCALE_FLOOR, DROPLESS_SCALE_CEIL,
                         DROPLESS_SCALE_EVEN};

TEST(Quantisation, ScaleExponentsAreThoseOfTheReference) {
  for (const int rule : rules) {
    for (const dropless_dtype format : {DROPLESS_E4M3, DROPLESS_E5M2}) {
      for (std::uint32_t bits = 0; bits < 0x7F80; ++bits) {
        const double amax = Bf16::from_bits(bits).to_double();
        ASSERT_EQ(scale_exponent(format, rule, amax) + 127,
                  reference::scale_byte(amax, format, rule))
            << amax << " rule " << rule;
      }
    }
  }
}

Doubles by_reference(dropless_dtype format, bool row_wise, Index rows, Index columns, Input x,
                     const std::vector<Index>& offsets) {
  reference::QuantizeSettings settings;
  settings.row_format = settings.column_format = format;
  const reference::Groups groups{offsets, {}};
  const auto q = reference::quantize(settings, dropless_profile{}, rows, columns, x, groups);
  return reference::dequantize(row_wise ? DROPLESS_BLOCKS_ROW_WISE : DROPLESS_BLOCKS_COLUMN_WISE,
                               settings.scale_layout, format, rows, columns,
                               row_wise ? q.row_codes : q.column_codes,
                               row_wise ? q.row_scales : q.column_scales, groups);
}

TEST(Quantisation, EverythingWithinTheErrorsStaysInside) {
  std::mt19937_64 random(41);
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> uniform(-1, 1);
  const Index rows = 75, columns = 70;
  const std::vector<Index> offsets = {0, 40, 40, 41, 75};
  for (const double relative : {0.0, 1e-6, 0.01, 0.3}) {
    Approximate x(static_cast<std::size_t>(rows * columns));
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double value = round_to(DROPLESS_BF16, normal(random) * std::exp2(4 * uniform(random)));
      set(x, i, {value, relative * std::abs(value)});
    }
    for (const bool row_wise : {true, false}) {
      for (const dropless_dtype format : {DROPLESS_E4M3, DROPLESS_E5M2}) {
        const Approximate q =
            row_wise ? requantised_rows(format, DROPLESS_SCALE_RCEIL, x, columns)
                     : requantised_columns(format, DROPLESS_SCALE_RCEIL, x, columns, offsets);
        const Doubles exact = by_reference(format, row_wise, rows, columns, x.value, offsets);
        for (std::size_t i = 0; i < x.size(); ++i) ASSERT_EQ(q.value[i], exact[i]) << i;
        Doubles moved = x.value;
        bool differs = false;
        for (std::size_t i = 0; i < x.size(); ++i) {
          moved[i] = round_to(DROPLESS_FP32, moved[i] + x.error[i] * 0.999 * uniform(random));
        }
        const Doubles got = by_reference(format, row_wise, rows, columns, moved, offsets);
        for (std::size_t i = 0; i < x.size(); ++i) {
          ASSERT_LE(std::abs(got[i] - q.value[i]), q.error[i]) << i << " relative " << relative;
          differs = differs || got[i] != q.value[i];
        }
        EXPECT_EQ(differs, relative > 0);  // bf16 values lie on ties of the codes
        if (relative == 0) {
          for (const double error : q.error) ASSERT_EQ(error, 0);
        }
      }
    }
  }
}

TEST(Store, KeepsOrRounds) {
  Approximate x(3);
  set(x, 0, {1 + 0x1p-9, 0});        // below the tie: rounds to 1
  set(x, 1, {1 + 0x1p-8, 0x1p-20});  // on the tie: 1 or 1 + 2^-7
  set(x, 2, {0, 0});
  Approximate kept = x;
  store(DROPLESS_BF16, kept);
  EXPECT_EQ(kept.value, (Doubles{1, 1, 0}));
  EXPECT_EQ(kept.error, (Doubles{0x1p-9, 0x1p-7, 0}));  // not rounding at all is legal
  Approximate strict = x;
  store(DROPLESS_BF16, strict, Kept::in_format);
  EXPECT_EQ(strict.error, (Doubles{0, 0x1p-7, 0}));
  Approximate maybe = x;
  maybe_store(DROPLESS_BF16, maybe);
  EXPECT_EQ(maybe.value, x.value);
  EXPECT_EQ(maybe.error[0], 0x1p-8);
  EXPECT_EQ(maybe.error[2], 0);
}

}  // namespace
}  // namespace dropless::tolerances
