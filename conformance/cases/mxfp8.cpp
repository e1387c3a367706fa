// SPDX-License-Identifier: Apache-2.0
// Set-up and judgement of the MXFP8 cases.
#include <algorithm>
#include <cmath>
#include <limits>

#include "conformance/cases/data.h"
#include "conformance/cases/mxfp8/setup.h"
#include "reference/mxfp8_layout.h"

namespace dropless::conformance {
namespace {

// The largest of 32 row amplitudes is much the same everywhere: without a gain of each column the
// column-wise scales of a small matrix would hardly differ, and one could stand for another. Powers
// of two of at most 2^3 keep every value exact and every row block in the normal range of a format.
void vary_columns(GroupedMatrix& matrix, Random random) {
  std::vector<double> gain(static_cast<std::size_t>(matrix.columns));
  for (double& g : gain) g = std::ldexp(1.0, static_cast<int>(random.between(-3, 3)));
  for (std::size_t i = 0; i < matrix.values.size(); ++i) matrix.values[i] *= gain[i % gain.size()];
}

}  // namespace

std::vector<bool> GroupedMatrix::real_rows() const {
  std::vector<bool> real(static_cast<std::size_t>(rows), offsets.empty());
  for (std::size_t g = 0; g + 1 < offsets.size(); ++g) {
    const Index end = counts.empty() ? offsets[g + 1] : offsets[g] + counts[g];
    for (Index row = offsets[g]; row < end; ++row) real[static_cast<std::size_t>(row)] = true;
  }
  return real;
}

Index GroupedMatrix::real_row_count() const {
  const std::vector<bool> real = real_rows();
  return static_cast<Index>(std::count(real.begin(), real.end(), true));
}

std::vector<Index> scale_positions(const GroupedMatrix& matrix, int direction, int layout) {
  const reference::ScaleLayout scales(direction, layout, matrix.rows, matrix.columns,
                                      matrix.groups());
  std::vector<Index> positions(static_cast<std::size_t>(matrix.rows * matrix.columns), -1);
  for (const reference::ScaleGroup& group : scales.groups()) {
    for (Index row = group.zone.first; row < group.zone.end; ++row) {
      for (Index c = 0; c < matrix.columns; ++c) {
        positions[static_cast<std::size_t>(row * matrix.columns + c)] =
            scales.position(group, row, c);
      }
    }
  }
  return positions;
}

dropless_dtype element_format(const std::string& word) {
  return word == "e5m2" ? DROPLESS_E5M2 : DROPLESS_E4M3;
}
dropless_dtype value_dtype(const std::string& word) {
  return word == "fp32" ? DROPLESS_FP32 : DROPLESS_BF16;
}
int layout_of(const std::string& word) {
  return word == "packed" ? DROPLESS_SCALES_PACKED : DROPLESS_SCALES_LINEAR;
}

GroupedMatrix grouped_matrix(CaseRun& run) {
  const Model model = scaled(run.model(), run.integer("divisor"));
  GroupedMatrix matrix;
  matrix.columns = run.word("columns") == "hidden" ? model.hidden : model.intermediate;
  if (run.word("columns") == "odd") matrix.columns = model.hidden / 2 + 13;
  Random random = run.random("groups");
  matrix.counts = rows_per_expert(run.word("load"), model.experts, run.integer("rows"), random);
  const bool padded = run.word("zones") == "padded";
  matrix.offsets = aligned_offsets(matrix.counts, padded ? 16 : 1, padded);
  matrix.rows = matrix.offsets.back() + 3;
  Random data = run.random("values");
  matrix.values = blockwise(value_dtype(run.word("input")), matrix.rows, matrix.columns, 12, data);
  vary_columns(matrix, run.random("columns"));
  const std::vector<bool> real = matrix.real_rows();
  for (Index row = 0; row < matrix.rows; ++row) {
    if (real[static_cast<std::size_t>(row)]) continue;
    std::fill_n(matrix.values.begin() + row * matrix.columns, matrix.columns,
                std::numeric_limits<double>::quiet_NaN());
  }
  return matrix;
}

Shape scale_shape(const GroupedMatrix& matrix, int direction, int layout) {
  const Index bytes = reference::scale_tensor_bytes(direction, layout, matrix.rows, matrix.columns,
                                                    matrix.groups());
  if (layout == DROPLESS_SCALES_PACKED) return {bytes};
  const Index width = direction == DROPLESS_BLOCKS_ROW_WISE
                          ? (matrix.columns + reference::kBlock - 1) / reference::kBlock
                          : matrix.columns;
  return {width == 0 ? 0 : bytes / width, width};
}

QuantizeCall quantize_call(CaseRun& run, const GroupedMatrix& matrix, dropless_dtype input,
                           const reference::QuantizeSettings& settings,
                           const std::string& directions, Layout layout) {
  Buffers& buffers = run.buffers();
  QuantizeCall call;
  call.args = make_args<dropless_quantize_args>();
  call.x = &buffers.input("x", input, matrix.shape(), matrix.values, layout);
  call.args.x = call.x->tensor();
  call.args.scale_layout = settings.scale_layout;
  call.args.square_tiles = settings.square_tiles ? 1 : 0;
  if (!matrix.offsets.empty()) {
    const Index groups = static_cast<Index>(matrix.counts.size());
    call.args.offsets =
        buffers.input("offsets", DROPLESS_I64, {groups + 1}, matrix.offsets).tensor();
    call.args.counts = buffers.input("counts", DROPLESS_I64, {groups}, matrix.counts).tensor();
  }
  const Layout plausible{.poison = Poison::plausible};
  if (directions != "column") {
    call.row_codes = &buffers.output("row_codes", settings.row_format, matrix.shape(), layout);
    call.row_scales = &buffers.output(
        "row_scales", DROPLESS_E8M0,
        scale_shape(matrix, DROPLESS_BLOCKS_ROW_WISE, settings.scale_layout), plausible);
    call.args.row_codes = call.row_codes->tensor();
    call.args.row_scales = call.row_scales->tensor();
  }
  if (directions != "row") {
    call.column_codes =
        &buffers.output("column_codes", settings.column_format, matrix.shape(), layout);
    call.column_scales =
        &buffers.output("column_scales", DROPLESS_E8M0,
                        scale_shape(matrix, DROPLESS_BLOCKS_COLUMN_WISE, settings.scale_layout));
    call.args.column_codes = call.column_codes->tensor();
    call.args.column_scales = call.column_scales->tensor();
  }
  return call;
}

namespace {

// Which element of the matrix is judged under which clause.
struct ElementFlags {
  Judged whole, partial, padding, tail;
};

ElementFlags element_flags(const GroupedMatrix& matrix, const std::vector<bool>& judged) {
  const std::size_t size = static_cast<std::size_t>(matrix.rows * matrix.columns);
  ElementFlags flags{Judged(size), Judged(size), Judged(size), Judged(size)};
  const Index whole_columns = matrix.columns / reference::kBlock * reference::kBlock;
  const std::vector<bool> real_rows = matrix.real_rows();
  for (Index row = 0; row < matrix.rows; ++row) {
    const bool real = real_rows[static_cast<std::size_t>(row)];
    for (Index c = 0; c < matrix.columns; ++c) {
      const std::size_t i = static_cast<std::size_t>(row * matrix.columns + c);
      if (row >= matrix.used_rows()) {
        flags.tail[i] = true;
      } else if (!real) {
        flags.padding[i] = true;
      } else if (judged[i]) {
        (c < whole_columns ? flags.whole : flags.partial)[i] = true;
      }
    }
  }
  return flags;
}

struct ScaleFlags {
  Judged real, padding_rows, layout_padding, tail;
};

ScaleFlags scale_flags(const GroupedMatrix& matrix, int direction, int layout, Index size) {
  const std::size_t n = static_cast<std::size_t>(size);
  ScaleFlags flags{Judged(n), Judged(n), Judged(n, layout == DROPLESS_SCALES_PACKED), Judged(n)};
  if (layout == DROPLESS_SCALES_LINEAR && direction == DROPLESS_BLOCKS_ROW_WISE) {
    const Index width = matrix.rows == 0 ? 0 : size / matrix.rows;
    for (Index i = matrix.used_rows() * width; i < size; ++i) {
      flags.tail[static_cast<std::size_t>(i)] = true;
    }
  }
  const std::vector<bool> real_rows = matrix.real_rows();
  const std::vector<Index> positions = scale_positions(matrix, direction, layout);
  for (std::size_t element = 0; element < positions.size(); ++element) {
    if (positions[element] < 0) continue;
    const std::size_t i = static_cast<std::size_t>(positions[element]);
    flags.layout_padding[i] = false;
    const bool real = real_rows[element / static_cast<std::size_t>(matrix.columns)];
    (real ? flags.real : flags.padding_rows)[i] = true;
  }
  for (std::size_t i = 0; i < n; ++i) {
    if (flags.real[i]) flags.padding_rows[i] = false;
  }
  return flags;
}

void judge_direction(CaseRun& run, const GroupedMatrix& matrix, int direction, int layout,
                     const Buffer& codes, const Buffer& scales,
                     const std::vector<std::uint8_t>& expected_codes,
                     const std::vector<std::uint8_t>& expected_scales,
                     const std::vector<bool>& judged) {
  Judge& judge = run.judge();
  const bool row = direction == DROPLESS_BLOCKS_ROW_WISE;
  const std::string side = row ? "row-wise " : "column-wise ";
  const ElementFlags elements = element_flags(matrix, judged);
  std::string clause = row ? "MXFP8-3a" : "MXFP8-1b";
  if (codes.dtype() == DROPLESS_E5M2) clause = "MXFP8-3c";
  judge.exact_codes(clause, side + "codes", codes, expected_codes, elements.whole);
  judge.exact_codes(row ? "MXFP8-1a" : clause, side + "codes", codes, expected_codes,
                    elements.partial);
  judge.exact_codes("MXFP8-6a", side + "codes beyond the counts", codes, expected_codes,
                    elements.padding);
  judge.untouched("MXFP8-8", side + "codes beyond the last zone", codes, elements.tail);

  const ScaleFlags flags = scale_flags(matrix, direction, layout, scales.size());
  const bool packed = layout == DROPLESS_SCALES_PACKED;
  judge.exact_bytes(packed ? "MXFP8-7a" : (row ? "MXFP8-2" : "MXFP8-6b"), side + "scales", scales,
                    expected_scales, flags.real);
  judge.exact_bytes("MXFP8-8", side + "scales beyond the counts", scales, expected_scales,
                    flags.padding_rows);
  judge.exact_bytes("MXFP8-7b", side + "packed padding", scales, expected_scales,
                    flags.layout_padding);
  judge.untouched("MXFP8-8", side + "scales beyond the last zone", scales, flags.tail);
}

}  // namespace

void judge_quantized(CaseRun& run, const GroupedMatrix& matrix,
                     const reference::QuantizeSettings& settings, const QuantizeCall& call) {
  const reference::Quantized expected = reference::quantize(
      settings, run.profile(), matrix.rows, matrix.columns, matrix.values, matrix.groups());
  if (call.row_codes != nullptr) {
    judge_direction(run, matrix, DROPLESS_BLOCKS_ROW_WISE, settings.scale_layout, *call.row_codes,
                    *call.row_scales, expected.row_codes, expected.row_scales, expected.row_judged);
  }
  if (call.column_codes != nullptr) {
    judge_direction(run, matrix, DROPLESS_BLOCKS_COLUMN_WISE, settings.scale_layout,
                    *call.column_codes, *call.column_scales, expected.column_codes,
                    expected.column_scales, expected.column_judged);
  }
}

std::vector<std::string> mxfp8_judged_clauses() {
  return {"MXFP8-1a", "MXFP8-1b", "MXFP8-2",  "MXFP8-3a", "MXFP8-3c",
          "MXFP8-6a", "MXFP8-6b", "MXFP8-7a", "MXFP8-7b", "MXFP8-8"};
}

void add_mxfp8(Registry& registry) {
  add_mxfp8_quantize(registry);
  add_mxfp8_exhaustive(registry);
  add_mxfp8_thresholds(registry);
  add_mxfp8_dequantize(registry);
  add_mxfp8_metamorphic(registry);
  add_mxfp8_refusals(registry);
}

}  // namespace dropless::conformance
