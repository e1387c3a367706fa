// SPDX-License-Identifier: Apache-2.0
// The GEMM bounds: legal accumulators, and the faults of their size class.
#include <dropless/contract.h>

#include <cmath>

#include "tests/accumulators/accumulators.h"
#include "tests/tolerances/measure/gate.h"
#include "tests/tolerances/measure/gemm_data.h"
#include "tests/tolerances/measure/proof.h"
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
  const char* anchor;
  const char* size_class;
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
       {256, 4096},
       "fp32, any order",
       "split-K 4 with bf16 partials, K 4096"},
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
       {256, 4096},
       "fp32, any order",
       "split-K 4 with bf16 partials, K 4096"},
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
       {256, 4096},
       "Tensor core, 25 bits",
       "13 bits promoted every 128, K 4096"},
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
       {256, 4096},
       "Tensor core, 25 bits",
       "13 bits promoted every 128, K 4096"},
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
       {4096},
       "Hopper FP8, 13 bits",
       "last block of 32 dropped"},
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
       {256},
       "Hopper FP8, 13 bits",
       "last block of 32 dropped"},
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
       {256},
       "Declared bf16 partials",
       "bf16 accumulator, K 256"},
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

// The same with what follows the products: alpha, a bias, beta * C, each rounded to fp32.
Gate epilogue_gate(double factor) {
  Gate gate("gemm with an epilogue", factor);
  std::mt19937_64 random(321);
  const dropless_profile profile{};
  for (const int length : {1, 2, 7, 33}) {
    for (int i = 0; i < 400; ++i) {
      const Row row = models::make_row(Format::bf16, Kind::same_sign, length, random);
      const double scale = row.exact() * static_cast<double>(random() % 5);
      const auto alpha = 0.7, beta = 1.3;
      const double bias = round_to(DROPLESS_BF16, scale), c = round_to(DROPLESS_FP32, 0.9 * scale);
      const float sum = accumulators::sequential(row.a, row.b);
      const auto scaled = static_cast<float>(alpha) * sum;
      const Index terms = static_cast<Index>(row.a.size());
      const double y = alpha * row.exact() + bias, gauge = alpha * row.gauge() + std::abs(bias);
      const double error =
          gemm(profile, Operands::bf16, terms, gauge, epilogue_roundings(alpha, true, 0));
      gate.legal("alpha and bias", DROPLESS_FP32, y, error, scaled + static_cast<float>(bias));
      const double y_c = alpha * row.exact() + beta * c;
      const double error_c = gemm(profile, Operands::bf16, terms, alpha * row.gauge() + beta * c,
                                  epilogue_roundings(alpha, false, beta));
      const float old = static_cast<float>(beta) * static_cast<float>(c);
      gate.legal("alpha and beta", DROPLESS_FP32, y_c, error_c, scaled + old);
      if (scale == 0) continue;
      gate.fault("sum rounded to bf16 before the bias", DROPLESS_FP32, y, error,
                 round_to(DROPLESS_BF16, scaled) + bias);
      gate.fault("beta rounded to bf16", DROPLESS_FP32, y_c, error_c,
                 scaled + round_to(DROPLESS_BF16, beta) * c);
      gate.fault("bias times alpha", DROPLESS_FP32, y, error, alpha * (sum + bias));
    }
  }
  return gate;
}

}  // namespace

void add_gemm(std::vector<Proof>& proofs) {
  for (const Class& c : classes()) {
    proofs.push_back({c.name, c.anchor, c.size_class,
                      [c](double factor) { return gemm_gate(c, factor); }, 0.25, 32});
  }
  proofs.push_back({"gemm with an epilogue", "fp32, any order",
                    "sum rounded to bf16 before the bias", epilogue_gate, 1.0 / 16, 1 << 18});
  for (const std::size_t which : {2, 3}) {
    const Class c = classes()[which];
    proofs.push_back({std::string("statistical, ") + c.name, "Statistical accumulation",
                      "13 bits promoted every 128",
                      [c](double factor) { return statistical_gate(c, factor); }, 1.0 / 128, 16});
  }
}

}  // namespace dropless::tolerances
