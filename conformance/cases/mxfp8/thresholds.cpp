// SPDX-License-Identifier: Apache-2.0
// One fp32 unit below, at, and above every amax at which a scale rule changes its mind: MXFP8-2.
#include <cmath>

#include "conformance/cases/mxfp8/setup.h"

namespace dropless::conformance {
namespace {

// Significands at which some rule rounds up: FLOOR and CEIL at 1, RCEIL beyond 1.75, EVEN at
// 2 - 2^-(m+1) for E5M2 (1.875) and E4M3 (1.9375).
constexpr double thresholds[] = {1.0, 1.75, 1.875, 1.9375};
constexpr int least_exponent = -126, most_exponent = 127;
constexpr double lucky_amax = 0x1.c00002p-119;  // two bytes are accepted: has a case of its own

std::vector<double> threshold_amaxes() {
  std::vector<double> amaxes;
  for (int e = least_exponent; e <= most_exponent; ++e) {
    for (const double s : thresholds) {
      const auto amax = static_cast<float>(std::ldexp(s, e));
      for (const float near : {std::nextafter(amax, 0.0f), amax, std::nextafter(amax, INFINITY)}) {
        if (near != lucky_amax) amaxes.push_back(near);
      }
    }
  }
  return amaxes;
}

// One block per amax, its largest element at a place that moves.
void run_thresholds(CaseRun& run) {
  const std::vector<double> amaxes = threshold_amaxes();
  const auto blocks = static_cast<Index>(amaxes.size());
  const bool row_wise = run.word("direction") == "row";
  GroupedMatrix matrix;
  matrix.rows = row_wise ? blocks : 32;
  matrix.columns = row_wise ? 32 : blocks;
  matrix.values.resize(static_cast<std::size_t>(matrix.rows * matrix.columns));
  Random random = run.random("values");
  for (Index block = 0; block < blocks; ++block) {
    const double amax = amaxes[static_cast<std::size_t>(block)];
    for (Index i = 0; i < 32; ++i) {
      double x = i == block % 32 ? amax : static_cast<float>(amax * random.uniform());
      if (random.chance(0.5)) x = -x;
      const Index row = row_wise ? block : i, column = row_wise ? i : block;
      matrix.values[static_cast<std::size_t>(row * matrix.columns + column)] = x;
    }
  }
  reference::QuantizeSettings settings;
  settings.row_format = settings.column_format = element_format(run.word("format"));
  const QuantizeCall call =
      quantize_call(run, matrix, DROPLESS_FP32, settings, run.word("direction"));
  auto args = call.args;
  run.perform("quantize", run.implementation().quantize, args);

  const auto expected =
      reference::quantize(settings, run.profile(), matrix.rows, matrix.columns, matrix.values);
  const auto& scales = row_wise ? expected.row_scales : expected.column_scales;
  Index turns = 0;
  for (std::size_t i = 1; i < scales.size(); ++i) turns += scales[i] != scales[i - 1] ? 1 : 0;
  run.judge().require(turns >= 200, "the byte changes at 200 thresholds at least");
  const std::string codes = run.word("format") == "e4m3" ? "MXFP8-3a" : "MXFP8-3c";
  run.judge().exact_bytes("MXFP8-2", "scales", row_wise ? *call.row_scales : *call.column_scales,
                          scales);
  run.judge().exact_codes(codes, "codes", row_wise ? *call.row_codes : *call.column_codes,
                          row_wise ? expected.row_codes : expected.column_codes);
}

}  // namespace

void add_mxfp8_thresholds(Registry& registry) {
  registry.add({"mxfp8.thresholds",
                "Proves scales and codes where an fp32 amax lies one unit below, at, or above a "
                "value at which a scale rule rounds up, in every binade.",
                {"MXFP8-2", "MXFP8-3a", "MXFP8-3c"},
                {{"direction", {"row", "column"}, 0, 0, "of the blocks"},
                 {"format", {"e4m3", "e5m2"}, 0, 0, "element format"},
                 {"seed", {}, 0, std::int64_t{1} << 62, "of the random numbers"}},
                [](Tier tier) {
                  const auto cases = [](std::vector<std::string> directions) {
                    return product({{"direction", std::move(directions)},
                                    {"format", {"e4m3", "e5m2"}},
                                    {"seed", {"1"}}});
                  };
                  if (tier == Tier::smoke) return cases({"row"});
                  if (tier == Tier::standard) return cases({"column"});
                  return std::vector<Values>{};
                },
                run_thresholds});
}

}  // namespace dropless::conformance
