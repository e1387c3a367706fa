// SPDX-License-Identifier: Apache-2.0
// The bounds of the short sums: unpermute, dot products, combine over ranks.
#include <cmath>
#include <random>

#include "tests/accumulators/accumulators.h"
#include "tests/tolerances/measure/gate.h"
#include "tests/tolerances/measure/gemm_data.h"
#include "tests/tolerances/measure/proof.h"
#include "tolerances/bounds.h"
#include "tolerances/interval.h"

namespace dropless::tolerances {
namespace {

using models::Doubles;
using models::Format;
using models::Kind;
using models::Row;

// The partial sums of `ranks` ranks, each stored in bf16.
float by_rank(const Row& row, std::size_t ranks) {
  return accumulators::split(static_cast<int>(ranks), accumulators::sequential, true, row.a, row.b);
}

Gate sum_gate(double factor) {
  Gate gate("sum (unpermute, dot)", factor);
  std::mt19937_64 random(5);
  const auto judge = [&](const Row& row) {
    const double y = row.exact(), error = sum(static_cast<Index>(row.a.size()), row.gauge());
    gate.legal("slot order", DROPLESS_FP32, y, error, accumulators::sequential(row.a, row.b));
    gate.legal("reverse order", DROPLESS_FP32, y, error, accumulators::reversed(row.a, row.b));
    gate.legal("pairwise", DROPLESS_FP32, y, error, accumulators::pairwise(row.a, row.b));
    gate.legal("fused", DROPLESS_FP32, y, error, accumulators::fused(row.a, row.b));
  };
  for (const int terms : {0, 1, 2, 4, 8, 22, 2048}) {
    for (int i = 0; i < 50; ++i) {
      for (const Kind kind : {Kind::same_sign, Kind::zero_mean, Kind::cancelling}) {
        judge(models::make_row(Format::fp32, kind, terms, random));
      }
    }
  }
  judge(models::worst_for_nearest(8));
  judge(models::worst_for_nearest(2048));
  for (int i = 0; i < 20; ++i) {
    const Row row = models::make_row(Format::fp32, Kind::same_sign, 8, random);
    const double y = row.exact(), error = sum(8, row.gauge());
    Doubles rounded = row.a, dropped = row.a;
    for (double& w : rounded) w = round_to(DROPLESS_BF16, w);
    dropped.back() = 0;
    gate.fault("bf16 accumulator", DROPLESS_FP32, y, error, accumulators::all_bf16(row.a, row.b));
    gate.fault("weights rounded to bf16", DROPLESS_FP32, y, error,
               accumulators::sequential(rounded, row.b));
    gate.fault("one slot dropped", DROPLESS_FP32, y, error,
               accumulators::sequential(dropped, row.b));
    gate.fault("two roundings to bf16", DROPLESS_FP32, y, error, by_rank(row, 2));
    // The longest sum that this bound is used for, with the smallest thing that can be lost.
    const Row dot = models::make_row(Format::fp32, Kind::same_sign, 2048, random);
    Doubles one_less = dot.a;
    one_less.back() = 0;
    gate.fault("one of 2048 dropped", DROPLESS_FP32, dot.exact(), sum(2048, dot.gauge()),
               accumulators::sequential(one_less, dot.b));
  }
  return gate;
}

Gate combine_gate(int rounding, double factor) {
  Gate gate(rounding == DROPLESS_COMBINE_ROUNDS_ONCE ? "combine, one rounding"
                                                     : "combine, rounds per rank",
            factor);
  std::mt19937_64 random(6);
  dropless_profile profile{};
  profile.combine_rounding = rounding;
  for (int i = 0; i < 200; ++i) {
    for (const Kind kind : {Kind::same_sign, Kind::zero_mean, Kind::cancelling}) {
      const Row row = models::make_row(Format::fp32, kind, 8, random);
      const double y = row.exact(), error = combine(profile, DROPLESS_BF16, 8, row.gauge());
      gate.legal("one rounding", DROPLESS_FP32, y, error, accumulators::sequential(row.a, row.b));
      if (rounding != DROPLESS_COMBINE_ROUNDS_ONCE) {
        gate.legal("4 ranks", DROPLESS_FP32, y, error, by_rank(row, 4));
        gate.legal("2 nodes", DROPLESS_FP32, y, error, by_rank(row, 2));
      }
      if (kind != Kind::same_sign) continue;
      if (rounding == DROPLESS_COMBINE_ROUNDS_ONCE) {
        gate.fault("4 ranks round", DROPLESS_FP32, y, error, by_rank(row, 4));
      }
      gate.fault("bf16 accumulator", DROPLESS_FP32, y, error, accumulators::all_bf16(row.a, row.b));
      gate.fault("one rank missing", DROPLESS_FP32, y, error,
                 by_rank({{row.a.begin(), row.a.begin() + 6}, row.b, {}, {}}, 3));
    }
  }
  // A row whose rank sums are just below a tie of bf16.
  const Row tie{{1 + 0x1.fep-9, 0, 1 + 0x1.fep-9, 0}, {1, 1, 1, 1}, {}, {}};
  gate.legal("two ties", DROPLESS_FP32, tie.exact(),
             combine(profile, DROPLESS_BF16, 4, tie.gauge()),
             rounding == DROPLESS_COMBINE_ROUNDS_ONCE ? accumulators::sequential(tie.a, tie.b)
                                                      : by_rank(tie, 2));
  return gate;
}

}  // namespace

void add_sums(std::vector<Proof>& proofs) {
  proofs.push_back(
      {"sum (unpermute, dot)", "Short sums, combine", "one of 2048 dropped", sum_gate, 0.5, 64});
  proofs.push_back({"combine, one rounding", "Short sums, combine", "4 ranks round",
                    [](double f) { return combine_gate(DROPLESS_COMBINE_ROUNDS_ONCE, f); }, 0.125,
                    8192});
  proofs.push_back({"combine, rounds per rank", "Short sums, combine", "bf16 accumulator",
                    [](double f) { return combine_gate(DROPLESS_COMBINE_ROUNDS_PER_RANK, f); }, 0.5,
                    8});
}

}  // namespace dropless::tolerances
