// SPDX-License-Identifier: Apache-2.0
// Dequantise on ragged matrices: MXFP8-5, 6a, 7a, 7c, 8.
#include <algorithm>
#include <cmath>

#include "conformance/cases/mxfp8/setup.h"
#include "conformance/judge/trust.h"
#include "tolerances/interval.h"

namespace dropless::conformance {
namespace {

void run_dequantize(CaseRun& run) {
  const GroupedMatrix matrix = grouped_matrix(run);
  const bool row_wise = run.word("direction") == "row";
  const int direction = row_wise ? DROPLESS_BLOCKS_ROW_WISE : DROPLESS_BLOCKS_COLUMN_WISE;
  const int layout = layout_of(run.word("layout"));
  const dropless_dtype format = element_format(run.word("format"));
  const dropless_dtype output = value_dtype(run.word("output"));

  // Random codes and scales of ordinary size; NaN codes wherever nobody may look. Padding bytes of
  // the packed layout hold NaN scales.
  Random random = run.random("codes");
  const Shape shape = scale_shape(matrix, direction, layout);
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(matrix.rows * matrix.columns), 0x7F);
  std::vector<std::uint8_t> scales(static_cast<std::size_t>(element_count(shape)), 0xFF);
  const std::vector<bool> real_rows = matrix.real_rows();
  const std::vector<Index> positions = scale_positions(matrix, direction, layout);
  const std::vector<Index> order = random.permutation(61);  // no two of so many blocks are alike
  std::size_t blocks = 0;
  for (std::size_t i = 0; i < codes.size(); ++i) {
    if (!real_rows[i / static_cast<std::size_t>(matrix.columns)]) continue;
    codes[i] = static_cast<std::uint8_t>(random.below(256));
    auto& byte = scales[static_cast<std::size_t>(positions[i])];
    if (byte == 0xFF) byte = static_cast<std::uint8_t>(97 + order[blocks++ % order.size()]);
  }
  Buffers& buffers = run.buffers();
  const Layout gaps{.row_gap = run.word("strides") == "gaps" ? 9 : 0};
  const Index groups = static_cast<Index>(matrix.counts.size());
  Buffer& code_buffer = buffers.input("codes", format, matrix.shape(), codes, gaps);
  Buffer& scale_buffer = buffers.input("scales", DROPLESS_E8M0, shape, scales);
  Buffer& y = buffers.output("y", output, matrix.shape(), gaps);
  auto args = make_args<dropless_dequantize_args>();
  args.direction = direction, args.scale_layout = layout;
  args.codes = code_buffer.tensor(), args.scales = scale_buffer.tensor();
  args.offsets = buffers.input("offsets", DROPLESS_I64, {groups + 1}, matrix.offsets).tensor();
  args.counts = buffers.input("counts", DROPLESS_I64, {groups}, matrix.counts).tensor();
  args.y = y.tensor();
  run.perform("dequantize", run.implementation().dequantize, args);

  auto expected = reference::dequantize(direction, layout, format, matrix.rows, matrix.columns,
                                        codes, scales, matrix.groups());
  Judged real(expected.size()), padding(expected.size()), tail(expected.size());
  for (Index row = 0; row < matrix.rows; ++row) {
    for (Index c = 0; c < matrix.columns; ++c) {
      const std::size_t i = static_cast<std::size_t>(row * matrix.columns + c);
      expected[i] = tolerances::round_to(output, expected[i]);
      real[i] = real_rows[static_cast<std::size_t>(row)];
      tail[i] = row >= matrix.used_rows();
      padding[i] = !real[i] && !tail[i];
    }
  }
  Judge& judge = run.judge();
  judge.exact(layout == DROPLESS_SCALES_PACKED ? "MXFP8-7c" : "MXFP8-5", "y", y, expected, real);
  judge.exact("MXFP8-6a", "rows beyond the counts", y, expected, padding);
  if (run.profile().tail_rows == DROPLESS_TAIL_UNTOUCHED) {
    judge.untouched("MXFP8-8", "rows beyond the last zone", y, tail);
  } else {
    judge.exact("MXFP8-8", "rows beyond the last zone", y,
                std::vector<double>(expected.size(), 0.0), tail);
  }
  judge.require(trust::distinct(scales) >= std::min<Index>(16, static_cast<Index>(blocks)),
                "at least 16 distinct scale bytes, or as many as there are blocks");
  const Index elements = matrix.real_row_count() * matrix.columns;
  judge.require(trust::distinct(codes) >= std::min<Index>(128, elements / 2),
                "at least 128 distinct codes, or half as many as there are elements");
}

std::vector<Axis> axes(std::vector<std::string> models, std::vector<std::string> rows,
                       std::vector<std::string> loads) {
  return {{"model", std::move(models)},
          {"divisor", {"64"}},
          {"rows", std::move(rows)},
          {"load", std::move(loads)},
          {"columns", {"hidden", "odd"}},
          {"zones", {"padded", "tight"}},
          {"input", {"bf16"}},
          {"direction", {"row", "column"}},
          {"layout", {"packed", "linear"}},
          {"format", {"e4m3", "e5m2"}},
          {"output", {"bf16", "fp32"}},
          {"strides", {"dense", "gaps"}},
          {"seed", {"1"}}};
}

std::vector<Values> select(Tier tier) {
  const auto smoke =
      pairwise(axes({"deepseek-v3", "gpt-oss-20b"}, {"193"}, {"zipf", "empty_first"}));
  if (tier == Tier::smoke) return smoke;
  const auto standard =
      without(pairwise(axes({"deepseek-v3", "mixtral-8x7b", "qwen3-30b-a3b", "grok-1"},
                            {"0", "1", "300"}, load_names())),
              smoke);
  if (tier == Tier::standard) return standard;
  std::vector<std::string> all;
  for (const Model& model : models()) all.push_back(model.name);
  return without(pairwise(axes(all, {"1000"}, load_names())), standard);
}

}  // namespace

void add_mxfp8_dequantize(Registry& registry) {
  std::vector<std::string> names;
  for (const Model& model : models()) names.push_back(model.name);
  registry.add({"mxfp8.dequantize",
                "Proves values of random codes and scales on ragged matrices, with NaN in every "
                "scale and code that nobody may read.",
                {"MXFP8-5", "MXFP8-6a", "MXFP8-7c", "MXFP8-8"},
                {{"model", names, 0, 0, "published model: experts and widths"},
                 {"divisor", {}, 1, 1024, "widths are divided by this"},
                 {"rows", {}, 0, 1 << 20, "real rows over all groups"},
                 load_parameter("how the rows spread over the groups"),
                 {"columns", {"hidden", "intermediate", "odd"}, 0, 0, "width"},
                 {"zones", {"padded", "tight"}, 0, 0, "zones rounded up to 16 rows, or exact"},
                 {"input", {"bf16"}, 0, 0, "of the values that shape the groups"},
                 {"direction", {"row", "column"}, 0, 0, "of the blocks"},
                 {"layout", {"packed", "linear"}, 0, 0, "of the scales"},
                 {"format", {"e4m3", "e5m2"}, 0, 0, "element format"},
                 {"output", {"bf16", "fp32"}, 0, 0, "dtype of the result"},
                 {"strides", {"dense", "gaps"}, 0, 0, "gaps between rows"},
                 {"seed", {}, 0, std::int64_t{1} << 62, "of the random numbers"}},
                select,
                run_dequantize});
}

}  // namespace dropless::conformance
