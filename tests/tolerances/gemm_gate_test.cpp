// SPDX-License-Identifier: Apache-2.0
// The gate of the GEMM bounds: legal accumulators pass, the faults of their size class fail.
#include <dropless/contract.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/accumulators/accumulators.h"
#include "tests/tolerances/gate.h"
#include "tests/tolerances/gemm_data.h"
#include "tolerances/bounds.h"
#include "tolerances/interval.h"

namespace dropless::tolerances {
namespace {

using accumulators::Dot;
using accumulators::Values;
using models::Format;
using models::Kind;
using models::Row;

struct Named {
  const char* name;
  Dot dot;
};

const Named fp32_sequential{"fp32 sequential", accumulators::sequential};
const Named fp32_reversed{"fp32 reversed", accumulators::reversed};
const Named fp32_pairwise{"fp32 pairwise", accumulators::pairwise};
const Named fp32_fused{"fp32 fused", accumulators::fused};
const Named fp32_split{"split-K 4 of fp32", [](Values a, Values b) {
                         return accumulators::split(4, accumulators::sequential, false, a, b);
                       }};
const Named core_16{"tensor core 16 x 25 bits", [](Values a, Values b) {
                      return accumulators::tensor_core(accumulators::hopper_bf16, a, b);
                    }};
const Named core_32{"tensor core 32 x 25 bits", [](Values a, Values b) {
                      return accumulators::tensor_core(accumulators::blackwell_fp8, a, b);
                    }};
const Named core_split{"split-K 4 of tensor core", [](Values a, Values b) {
                         return accumulators::split(4, core_16.dot, false, a, b);
                       }};
const Named hopper_128{"13 bits promoted every 128", [](Values a, Values b) {
                         return accumulators::tensor_core(accumulators::hopper_fp8, a, b, 128);
                       }};
const Named hopper{"13-bit accumulator", [](Values a, Values b) {
                     return accumulators::tensor_core(accumulators::hopper_fp8, a, b);
                   }};
const Named bf16_partials{"split-K 4 with bf16 partials", [](Values a, Values b) {
                            return accumulators::split(4, accumulators::sequential, true, a, b);
                          }};
const Named all_bf16{"bf16 accumulator", accumulators::all_bf16};

struct Class {
  const char* name;
  Operands operands;
  Format format;
  int accumulator;
  int promotion_period;
  int partials;
  std::vector<Named> legal;
  std::vector<Named> faulty;
  std::vector<Row> worst;
  int block_length;                      // where dropping or rescaling a block must be seen
  std::vector<int> accumulator_lengths;  // where the faulty accumulators must be seen
};

std::vector<Class> classes() {
  const std::vector<Named> nearest = {fp32_sequential, fp32_reversed, fp32_pairwise, fp32_fused,
                                      fp32_split};
  std::vector<Named> truncating = nearest;
  truncating.insert(truncating.end(), {core_16, core_32, core_split});
  std::vector<Named> promoted = truncating;
  promoted.push_back(hopper_128);
  std::vector<Named> unpromoted = promoted;
  unpromoted.push_back(hopper);
  std::vector<Named> partials = nearest;
  partials.push_back(bf16_partials);
  const std::vector<Row> worst_nearest = {models::worst_for_nearest(4096)};
  const std::vector<Row> worst_25 = {models::worst_for_nearest(4096),
                                     models::worst_for_truncation(4096, 16, 25, 23)};
  const std::vector<Row> worst_13 = {models::worst_for_truncation(128, 32, 13, 13)};
  return {
      {"gemm fp32, fp32",
       Operands::fp32,
       Format::fp32,
       DROPLESS_ACCUMULATOR_FP32,
       0,
       DROPLESS_PARTIALS_FP32,
       nearest,
       {hopper, bf16_partials},
       worst_nearest,
       4096,
       {256, 4096}},
      {"gemm bf16, fp32",
       Operands::bf16,
       Format::bf16,
       DROPLESS_ACCUMULATOR_FP32,
       0,
       DROPLESS_PARTIALS_FP32,
       nearest,
       {hopper, hopper_128, bf16_partials},
       worst_nearest,
       4096,
       {256, 4096}},
      {"gemm bf16, 25 bits",
       Operands::bf16,
       Format::bf16,
       DROPLESS_ACCUMULATOR_TENSOR_CORE_25,
       0,
       DROPLESS_PARTIALS_FP32,
       truncating,
       {hopper, hopper_128, bf16_partials},
       worst_25,
       4096,
       {256, 4096}},
      {"gemm mxfp8, 25 bits",
       Operands::mxfp8,
       Format::mxfp8,
       DROPLESS_ACCUMULATOR_TENSOR_CORE_25,
       0,
       DROPLESS_PARTIALS_FP32,
       truncating,
       {hopper, hopper_128, bf16_partials},
       worst_25,
       4096,
       {256, 4096}},
      {"gemm mxfp8, 13 bits / 128",
       Operands::mxfp8,
       Format::mxfp8,
       DROPLESS_ACCUMULATOR_HOPPER_FP8_13,
       128,
       DROPLESS_PARTIALS_FP32,
       promoted,
       {hopper},
       worst_13,
       256,
       {4096}},
      {"gemm mxfp8, 13 bits",
       Operands::mxfp8,
       Format::mxfp8,
       DROPLESS_ACCUMULATOR_HOPPER_FP8_13,
       0,
       DROPLESS_PARTIALS_FP32,
       unpromoted,
       {all_bf16},
       worst_13,
       128,
       {256}},
      {"gemm bf16, bf16 partials",
       Operands::bf16,
       Format::bf16,
       DROPLESS_ACCUMULATOR_FP32,
       0,
       DROPLESS_PARTIALS_BF16,
       partials,
       {all_bf16},
       {},
       256,
       {256}},
  };
}

dropless_profile profile_of(const Class& c) {
  dropless_profile profile{};
  profile.accumulator_fp32 = profile.accumulator_bf16 = profile.accumulator_mxfp8 = c.accumulator;
  profile.promotion_period = c.promotion_period;
  profile.partials = c.partials;
  return profile;
}

double bound(const Class& c, const Row& row, Index extra = 0) {
  return gemm(profile_of(c), c.operands, static_cast<Index>(row.a.size()), row.gauge(), extra);
}

void run_legal(Gate& gate, const Class& c, std::mt19937_64& random) {
  const auto judge = [&](const Row& row) {
    for (const Named& legal : c.legal) {
      const float got = legal.dot(row.a, row.b);
      gate.legal(legal.name, DROPLESS_FP32, row.exact(), bound(c, row), got);
      gate.legal(legal.name, DROPLESS_BF16, row.exact(), bound(c, row),
                 round_to(DROPLESS_BF16, got));
    }
  };
  for (const Kind kind : {Kind::same_sign, Kind::zero_mean, Kind::cancelling, Kind::one_hot}) {
    for (const int length : {0, 1, 2, 3, 31, 32, 33, 127, 4096}) {
      const int rows = length == 4096 ? 8 : 40;
      for (int i = 0; i < rows; ++i) judge(models::make_row(c.format, kind, length, random));
    }
  }
  for (const Row& row : c.worst) judge(row);
}

// What a fault makes of the operands: a is changed, the exact result is that of the honest row.
void run_operand_faults(Gate& gate, const Class& c, std::mt19937_64& random) {
  const Named& honest = c.legal.front();
  const auto judge = [&](const char* name, const Row& row, const models::Doubles& a) {
    gate.fault(name, DROPLESS_FP32, row.exact(), bound(c, row), honest.dot(a, row.b));
  };
  for (int i = 0; i < 8; ++i) {
    for (const int length : {1, 31, 32, 33}) {
      const Row row = models::make_row(c.format, Kind::same_sign, length, random);
      models::Doubles a = row.a;
      a.back() = 0;
      judge(length == 1    ? "last k of 1 dropped"
            : length == 31 ? "last k of 31 dropped"
            : length == 32 ? "last k of 32 dropped"
                           : "last k of 33 dropped",
            row, a);
    }
    const Row one_hot = models::make_row(c.format, Kind::one_hot, 4096, random);
    judge("last k of 4096 dropped (one-hot)", one_hot, models::Doubles(4096, 0.0));

    const Row row = models::make_row(c.format, Kind::same_sign, c.block_length, random);
    models::Doubles dropped = row.a;
    for (std::size_t k = dropped.size() - 32; k < dropped.size(); ++k) dropped[k] = 0;
    judge("last block of 32 dropped", row, dropped);
    if (c.format != Format::mxfp8) continue;
    models::Doubles doubled = row.a, neighbours = row.a, cut = row.a;
    const Row next = models::make_row(c.format, Kind::same_sign, c.block_length, random);
    for (std::size_t k = 0; k < doubled.size(); ++k) {
      if (k < 32) doubled[k] *= 2;
      neighbours[k] *= next.scales[k / 32] / row.scales[k / 32];
      // Codes rounded towards zero instead of to nearest even.
      const double code = row.unquantised[k] / row.scales[k / 32];
      const double spacing = ulp(DROPLESS_E4M3, code);
      cut[k] = std::trunc(code / spacing) * spacing * row.scales[k / 32];
    }
    judge("one block scale doubled", row, doubled);
    judge("scales of the next row", row, neighbours);
    judge("codes rounded towards zero", row, cut);
  }
}

void run_accumulator_faults(Gate& gate, const Class& c, std::mt19937_64& random) {
  for (const int length : c.accumulator_lengths) {
    for (int i = 0; i < 8; ++i) {
      const Row row = models::make_row(c.format, Kind::same_sign, length, random);
      for (const Named& faulty : c.faulty) {
        gate.fault(std::string(faulty.name) + ", K " + std::to_string(length), DROPLESS_FP32,
                   row.exact(), bound(c, row), faulty.dot(row.a, row.b));
      }
    }
  }
}

// On exact data the honest sum is the exact integer: an output that is truncated instead of rounded
// is outside the interval whenever it is not within E of the tie.
void run_truncated_output(Gate& gate, const Class& c, std::mt19937_64& random) {
  for (int i = 0; i < 40; ++i) {
    const Row row = models::make_row(c.format, Kind::exact, 256, random);
    const double y = row.exact(), spacing = ulp(DROPLESS_BF16, y);
    gate.fault("output truncated to bf16", DROPLESS_BF16, y, bound(c, row),
               std::trunc(y / spacing) * spacing);
  }
}

Gate gemm_gate(const Class& c, double factor = 1) {
  Gate gate(c.name, factor);
  std::mt19937_64 random(12345);
  run_legal(gate, c, random);
  run_operand_faults(gate, c, random);
  run_accumulator_faults(gate, c, random);
  if (c.accumulator != DROPLESS_ACCUMULATOR_HOPPER_FP8_13 && c.partials == DROPLESS_PARTIALS_FP32) {
    run_truncated_output(gate, c, random);
  }
  return gate;
}

TEST(GemmGate, LegalAccumulatorsPassAndFaultsFail) {
  for (const Class& c : classes()) {
    const Gate gate = gemm_gate(c);
    EXPECT_TRUE(gate.passed()) << c.name << ": " << gate.complaints();
    gate.print();
  }
}

TEST(GemmGate, AWrongFactorTurnsItRed) {
  for (const Class& c : classes()) {
    EXPECT_FALSE(gemm_gate(c, 0.25).passed()) << c.name;
    EXPECT_FALSE(gemm_gate(c, 32).passed()) << c.name;
  }
}

Gate statistical_gate(const Class& c, double factor) {
  Gate gate(std::string("statistical, ") + c.name, factor);
  std::mt19937_64 random(99);
  const auto judged = [&](const Row& row) {
    return gemm_statistical(profile_of(c), c.operands, static_cast<Index>(row.a.size()), row.root(),
                            row.exact());
  };
  for (const int length : {32, 512, 4096}) {
    for (int i = 0; i < 40; ++i) {
      const Row row = models::make_row(c.format, Kind::zero_mean, length, random);
      for (const Named& legal : c.legal) {
        gate.legal(legal.name, DROPLESS_FP32, row.exact(), judged(row), legal.dot(row.a, row.b));
      }
      if (length != 4096) continue;
      for (const Named& faulty : c.faulty) {
        gate.fault(faulty.name, DROPLESS_FP32, row.exact(), judged(row), faulty.dot(row.a, row.b));
      }
      models::Doubles dropped = row.a;
      dropped.back() = 0;
      gate.fault("last k dropped", DROPLESS_FP32, row.exact(), judged(row),
                 accumulators::sequential(dropped, row.b));
    }
  }
  return gate;
}

TEST(GemmGate, Statistical) {
  for (const std::size_t which : {2, 3}) {
    const Class c = classes()[which];
    const Gate gate = statistical_gate(c, 1);
    EXPECT_TRUE(gate.passed()) << gate.complaints();
    gate.print();
    EXPECT_FALSE(statistical_gate(c, 1.0 / 128).passed()) << c.name;
    EXPECT_FALSE(statistical_gate(c, 16).passed()) << c.name;
  }
}

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
  const auto loss = [](const Row& row, const Named& named) {
    return (row.exact() - named.dot(row.a, row.b)) / row.exact();
  };
  for (int i = 0; i < 5; ++i) {
    const Row fp8 = models::make_row(Format::mxfp8, Kind::same_sign, 4096, random);
    EXPECT_GT(loss(fp8, hopper), 0.07 / 3);
    EXPECT_LT(loss(fp8, hopper), 0.07 * 3);
    EXPECT_GT(loss(fp8, hopper_128), 5e-4 / 3);
    EXPECT_LT(loss(fp8, hopper_128), 5e-4 * 3);
    const Row bf16 = models::make_row(Format::bf16, Kind::same_sign, 4096, random);
    EXPECT_GT(loss(bf16, core_16), 1.1e-5 / 3);
    EXPECT_LT(loss(bf16, core_16), 1.1e-5 * 3);
  }
}

}  // namespace
}  // namespace dropless::tolerances
