// SPDX-License-Identifier: Apache-2.0
// What the grouped GEMM cases share: a problem (zones, operands, epilogue), the buffers of one
// call, and the judgement of its output, clause by clause.
#pragma once

#include <string>
#include <vector>

#include "conformance/cases/case_run.h"
#include "conformance/cases/loads.h"
#include "conformance/cases/selection.h"
#include "reference/grouped_gemm.h"

namespace dropless::conformance {

enum class Product { fprop, dgrad, wgrad };
Product product_of(const std::string& word);
std::string_view name(Product product);               // "fprop"
std::string_view product_clause(Product product);     // "GROUPED_GEMM-0a"
std::vector<std::string> product_words();             // fprop, dgrad, wgrad
dropless_dtype plain_dtype(const std::string& word);  // "fp32", "bf16"

// The rows of the buffers: zones of the experts, then a tail that belongs to nobody.
struct RowZones {
  Index length = 0;  // N_max
  std::vector<Index> offsets, counts;
  bool counted = false;  // counts are handed over; otherwise every row of a zone is real

  [[nodiscard]] reference::Groups groups() const { return {offsets, counts}; }
  [[nodiscard]] Index used() const { return offsets.back(); }
  [[nodiscard]] std::vector<reference::RowKind> kinds() const {
    return reference::row_kinds(length, groups());
  }
};
// Zones without padding, as far as the declared alignment allows; or padded to at least 16 rows,
// empty experts with a block of padding. Both with a tail.
RowZones row_zones(const CaseRun& run, std::vector<Index> counts, bool padded, Index tail = 5);

struct GemmProblem {
  Product product = Product::fprop;
  Index experts = 0, out = 0, in = 0;  // W is [E,O,I]
  RowZones zones;
  std::string operands = "bf16";  // fp32, bf16, e4m3 (both), e5m2 (the left one, beside e4m3)
  std::string data = "exact";     // decides how the output is judged
  dropless_dtype output = DROPLESS_FP32;
  int scale_layout = DROPLESS_SCALES_LINEAR;
  std::uint8_t stray_code = 0x7F;  // MXFP8 codes of rows that are not real, and every scale byte
  int stray_scale = 0xFF;          //   without a real element; -1: random bytes
  double alpha = 1, beta = 0;
  dropless_dtype bias_dtype = DROPLESS_FP32, c_dtype = DROPLESS_FP32;
  bool in_place = false;  // C is dW
  // Left: x (fprop) or dy; right: W, or x for wgrad. Empty bias or C: none.
  std::vector<double> left, right, bias, c;
  Layout layout;         // of operands and output
  double unit = 0x1p-5;  // exact data: every partial result is a multiple of it

  [[nodiscard]] bool quantised() const { return operands == "e4m3" || operands == "e5m2"; }
  [[nodiscard]] bool by_rows() const { return product != Product::wgrad; }
  [[nodiscard]] Index left_columns() const { return product == Product::fprop ? in : out; }
  [[nodiscard]] Index output_columns() const { return product == Product::fprop ? out : in; }
  [[nodiscard]] Index right_rows() const { return by_rows() ? experts * out : zones.length; }
  [[nodiscard]] Shape left_shape() const { return {zones.length, left_columns()}; }
  [[nodiscard]] Shape right_shape() const {
    return by_rows() ? Shape{experts, out, in} : Shape{zones.length, in};
  }
  [[nodiscard]] Shape output_shape() const {
    return by_rows() ? Shape{zones.length, output_columns()} : Shape{experts, out, in};
  }
  // Number of products in an output element that belongs to `expert`.
  [[nodiscard]] Index contraction(Index expert) const;
};

// From the parameters model, divisor, projection, rows, load, zones, operands, output, data, and,
// where the family has them, alpha, bias, accumulate, strides, widths, layout, scale_padding.
GemmProblem gemm_problem(const CaseRun& run, Product product);
// Operands, bias and C of the regime `problem.data`; NaN wherever a row is not real.
void fill_operands(const CaseRun& run, GemmProblem& problem, bool bias, bool c);
// What to fill with when two runs are compared bit by bit: inexact sums, unless the profile knows
// no determinism and only exact data give the same bits twice.
std::string bitwise_data(const CaseRun& run, const GemmProblem& problem);
// Sets the rows of one kind.
void fill_rows(const RowZones& zones, Index columns, reference::RowKind kind, double value,
               std::vector<double>& matrix);

struct GemmOperand {
  dropless_operand operand{};
  Buffer* memory = nullptr;          // of plain operands
  std::vector<double> values;        // that the product multiplies
  std::vector<std::uint8_t> scales;  // MXFP8: those of real elements, in the order of the layout
};

// Buffers and arguments of one call.
struct GemmCall {
  Product product;
  GemmOperand left, right;
  Buffer *bias = nullptr, *c = nullptr, *output = nullptr;
  Buffer *offsets = nullptr, *counts = nullptr;
  dropless_gemm_fprop_args fprop;
  dropless_gemm_dgrad_args dgrad;
  dropless_gemm_wgrad_args wgrad;
};
GemmCall gemm_call(CaseRun& run, const GemmProblem& problem);
// The same around operands that are there already.
GemmCall gemm_call(CaseRun& run, const GemmProblem& problem, GemmOperand left, GemmOperand right);

// Calls visit(name, entry, args) for the product's operation.
template <class Visit>
void with_entry(const CaseRun& run, GemmCall& call, Visit visit) {
  const dropless_implementation& table = run.implementation();
  switch (call.product) {
    case Product::fprop:
      call.fprop.x = &call.left.operand, call.fprop.w = &call.right.operand;
      return visit("gemm_fprop", table.gemm_fprop, call.fprop);
    case Product::dgrad:
      call.dgrad.dy = &call.left.operand, call.dgrad.w = &call.right.operand;
      return visit("gemm_dgrad", table.gemm_dgrad, call.dgrad);
    case Product::wgrad:
      call.wgrad.dy = &call.left.operand, call.wgrad.x = &call.right.operand;
      return visit("gemm_wgrad", table.gemm_wgrad, call.wgrad);
  }
}
void perform(CaseRun& run, GemmCall& call, std::string_view clause = "GENERAL-1");

reference::Gauged gemm_expected(const GemmProblem& problem, const GemmCall& call);
// Per element of the output: 0 on exact data as far as the declared accumulator can hold it.
std::vector<double> gemm_errors(const CaseRun& run, const GemmProblem& problem,
                                const reference::Gauged& expected);

// Per element of the output.
Judged row_elements(const GemmProblem& problem, reference::RowKind kind);  // fprop, dgrad
Judged expert_elements(const GemmProblem& problem, const std::vector<bool>& experts);
Judged computed_elements(const GemmProblem& problem);  // real rows, or experts with rows

// Judges the whole output: real rows or experts with rows under `clause` (default: the product's on
// exact data, otherwise GROUPED_GEMM-6a), padding 2b, tail 4, empty experts 5. Demands data that
// could show a fault.
void judge_gemm(CaseRun& run, const GemmProblem& problem, const GemmCall& call,
                std::string_view clause = "");
std::vector<std::string> judged_clauses(std::vector<std::string> more = {});

// The parameters that the families over models share, with more in front of the seed.
std::vector<Parameter> gemm_parameters(std::vector<Parameter> more = {});
Parameter product_parameter();

// One function per file of the stage.
void add_grouped_gemm_products(Registry& registry);
void add_grouped_gemm_shapes(Registry& registry);
void add_grouped_gemm_epilogue(Registry& registry);
void add_grouped_gemm_isolation(Registry& registry);
void add_grouped_gemm_mxfp8(Registry& registry);
void add_grouped_gemm_scales(Registry& registry);
void add_grouped_gemm_metamorphic(Registry& registry);
void add_grouped_gemm_strides(Registry& registry);
void add_grouped_gemm_refusals(Registry& registry);

}  // namespace dropless::conformance
