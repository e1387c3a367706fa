// SPDX-License-Identifier: Apache-2.0
// Everything there is: every bf16 amax and every pair of code and scale byte. MXFP8-9a, 9b, 5.
#include <bit>
#include <cmath>
#include <cstdint>

#include "conformance/cases/mxfp8/setup.h"
#include "tolerances/interval.h"

namespace dropless::conformance {
namespace {

constexpr Index kAmaxes = 0x7F7F;  // positive finite bf16 values: codes 1 .. 0x7F7F

double bf16_value(Index code) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(code) << 16);
}

// One block per amax, its largest element at a place that moves, the others below it on a grid that
// reaches every code of the element format.
void run_every_amax(CaseRun& run) {
  GroupedMatrix matrix;
  matrix.columns = run.word("direction") == "row" ? 32 : kAmaxes;
  matrix.rows = run.word("direction") == "row" ? kAmaxes : 32;
  matrix.values.resize(static_cast<std::size_t>(matrix.rows * matrix.columns));
  Random random = run.random("values");
  for (Index block = 0; block < kAmaxes; ++block) {
    const double amax = bf16_value(block + 1);
    const Index place = block % 32;
    for (Index i = 0; i < 32; ++i) {
      double x = amax;
      if (i != place) {
        const double fraction = (1 + static_cast<double>(random.below(255))) / 256;
        x = tolerances::round_to(DROPLESS_BF16,
                                 amax * std::ldexp(fraction, -static_cast<int>(random.below(12))));
      }
      if (random.chance(0.5)) x = -x;
      const Index row = run.word("direction") == "row" ? block : i;
      const Index column = run.word("direction") == "row" ? i : block;
      matrix.values[static_cast<std::size_t>(row * matrix.columns + column)] = x;
    }
  }
  reference::QuantizeSettings settings;
  settings.row_format = settings.column_format = element_format(run.word("format"));
  const QuantizeCall call =
      quantize_call(run, matrix, value_dtype(run.word("input")), settings, run.word("direction"));
  auto args = call.args;
  run.perform("quantize", run.implementation().quantize, args);
  const auto expected =
      reference::quantize(settings, run.profile(), matrix.rows, matrix.columns, matrix.values);
  if (call.row_codes != nullptr) {
    run.judge().exact_bytes("MXFP8-9a", "scales", *call.row_scales, expected.row_scales);
    run.judge().exact_codes("MXFP8-9a", "codes", *call.row_codes, expected.row_codes);
  } else {
    run.judge().exact_bytes("MXFP8-9a", "scales", *call.column_scales, expected.column_scales);
    run.judge().exact_codes("MXFP8-9a", "codes", *call.column_codes, expected.column_codes);
  }
}

// Row r has scale byte r and holds all 256 codes (transposed for column-wise blocks).
void run_every_code(CaseRun& run) {
  const bool row_wise = run.word("direction") == "row";
  const int direction = row_wise ? DROPLESS_BLOCKS_ROW_WISE : DROPLESS_BLOCKS_COLUMN_WISE;
  const dropless_dtype format = element_format(run.word("format"));
  const dropless_dtype output = value_dtype(run.word("output"));
  std::vector<std::uint8_t> codes(65536), scales(2048);
  for (Index byte = 0; byte < 256; ++byte) {
    for (Index code = 0; code < 256; ++code) {
      codes[static_cast<std::size_t>(row_wise ? byte * 256 + code : code * 256 + byte)] =
          static_cast<std::uint8_t>(code);
    }
    for (Index block = 0; block < 8; ++block) {
      scales[static_cast<std::size_t>(row_wise ? byte * 8 + block : block * 256 + byte)] =
          static_cast<std::uint8_t>(byte);
    }
  }
  Buffers& buffers = run.buffers();
  Buffer& code_buffer = buffers.input("codes", format, {256, 256}, codes);
  Buffer& scale_buffer =
      buffers.input("scales", DROPLESS_E8M0, row_wise ? Shape{256, 8} : Shape{8, 256}, scales);
  Buffer& y = buffers.output("y", output, {256, 256});
  auto args = make_args<dropless_dequantize_args>();
  args.direction = direction, args.scale_layout = DROPLESS_SCALES_LINEAR;
  args.codes = code_buffer.tensor(), args.scales = scale_buffer.tensor(), args.y = y.tensor();
  run.perform("dequantize", run.implementation().dequantize, args);
  auto expected =
      reference::dequantize(direction, DROPLESS_SCALES_LINEAR, format, 256, 256, codes, scales);
  for (double& value : expected) value = tolerances::round_to(output, value);
  run.judge().exact(output == DROPLESS_FP32 ? "MXFP8-9b" : "MXFP8-5", "y", y, expected);
}

}  // namespace

void add_mxfp8_exhaustive(Registry& registry) {
  const Parameter direction{"direction", {"row", "column"}, 0, 0, "of the blocks"};
  const Parameter format{"format", {"e4m3", "e5m2"}, 0, 0, "element format"};
  registry.add({"mxfp8.every_amax",
                "Proves scale and codes for every positive finite bf16 amax.",
                {"MXFP8-9a"},
                {direction,
                 format,
                 {"input", {"bf16", "fp32"}, 0, 0, "dtype of the values"},
                 {"seed", {}, 0, std::int64_t{1} << 62, "of the random numbers"}},
                [](Tier tier) {
                  const auto axes = [](std::vector<std::string> directions,
                                       std::vector<std::string> inputs) {
                    return product({{"direction", std::move(directions)},
                                    {"format", {"e4m3", "e5m2"}},
                                    {"input", std::move(inputs)},
                                    {"seed", {"1"}}});
                  };
                  const auto smoke = axes({"row"}, {"bf16"});
                  if (tier == Tier::smoke) return smoke;
                  if (tier == Tier::full) return std::vector<Values>{};
                  return without(axes({"row", "column"}, {"bf16", "fp32"}), smoke);
                },
                run_every_amax});
  registry.add({"mxfp8.every_code",
                "Proves the dequantised value of every code under every scale byte.",
                {"MXFP8-9b", "MXFP8-5"},
                {direction, format, {"output", {"fp32", "bf16"}, 0, 0, "dtype of the result"}},
                [](Tier tier) {
                  const auto axes = [](std::vector<std::string> directions) {
                    return product({{"direction", std::move(directions)},
                                    {"format", {"e4m3", "e5m2"}},
                                    {"output", {"fp32", "bf16"}}});
                  };
                  if (tier == Tier::smoke) return axes({"row"});
                  if (tier == Tier::standard) return axes({"column"});
                  return std::vector<Values>{};
                },
                run_every_code});
}

}  // namespace dropless::conformance
