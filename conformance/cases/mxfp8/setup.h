// SPDX-License-Identifier: Apache-2.0
// What the MXFP8 cases share: a matrix with groups of rows, the outputs of one quantise call, and
// their judgement, clause by clause.
#pragma once

#include <string>
#include <vector>

#include "conformance/cases/case_run.h"
#include "conformance/cases/loads.h"
#include "conformance/cases/selection.h"
#include "reference/mxfp8.h"

namespace dropless::conformance {

struct GroupedMatrix {
  Index rows = 0, columns = 0;         // of the buffers; rows beyond offsets[G] are tail
  std::vector<Index> offsets, counts;  // empty: one group, all rows real
  std::vector<double> values;

  [[nodiscard]] Shape shape() const { return {rows, columns}; }
  [[nodiscard]] reference::Groups groups() const { return {offsets, counts}; }
  [[nodiscard]] Index used_rows() const { return offsets.empty() ? rows : offsets.back(); }
  [[nodiscard]] std::vector<bool> real_rows() const;  // [rows]
  [[nodiscard]] Index real_row_count() const;
};

dropless_dtype element_format(const std::string& word);  // "e4m3", "e5m2"
dropless_dtype value_dtype(const std::string& word);     // "fp32", "bf16"
int layout_of(const std::string& word);                  // "linear", "packed"

// Groups as experts of the parameter "model" under "load" and "rows", zones aligned to 1 or padded
// to `alignment`; the columns are the model's hidden or intermediate size. Rows beyond the counts
// and beyond the last zone hold NaN: whoever looks there is seen.
GroupedMatrix grouped_matrix(CaseRun& run);

// Buffers and arguments of one quantise call; null buffers for a direction that is left out.
struct QuantizeCall {
  Buffer* x = nullptr;
  Buffer *row_codes = nullptr, *row_scales = nullptr;
  Buffer *column_codes = nullptr, *column_scales = nullptr;
  dropless_quantize_args args{};
};
QuantizeCall quantize_call(CaseRun& run, const GroupedMatrix& matrix, dropless_dtype input,
                           const reference::QuantizeSettings& settings,
                           const std::string& directions, Layout layout = {});

// Judges codes and scales of the directions that were asked for against the reference.
void judge_quantized(CaseRun& run, const GroupedMatrix& matrix,
                     const reference::QuantizeSettings& settings, const QuantizeCall& call);

// Position of the scale byte of every element [rows,columns]; -1 beyond the last zone.
std::vector<Index> scale_positions(const GroupedMatrix& matrix, int direction, int layout);

// The scale bytes of a direction as a flat tensor shape: linear rank 2, packed rank 1.
Shape scale_shape(const GroupedMatrix& matrix, int direction, int layout);

std::vector<std::string> mxfp8_judged_clauses();  // every clause that judge_quantized can name

void add_mxfp8_quantize(Registry& registry);
void add_mxfp8_exhaustive(Registry& registry);
void add_mxfp8_thresholds(Registry& registry);
void add_mxfp8_dequantize(Registry& registry);
void add_mxfp8_metamorphic(Registry& registry);
void add_mxfp8_refusals(Registry& registry);

}  // namespace dropless::conformance
