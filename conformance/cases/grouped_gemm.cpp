// SPDX-License-Identifier: Apache-2.0
// Set-up of the grouped GEMM cases: zones, shapes and data.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>

#include "conformance/cases/data.h"
#include "conformance/cases/grouped_gemm/operands.h"

namespace dropless::conformance {

Product product_of(const std::string& word) {
  if (word == "fprop") return Product::fprop;
  if (word == "dgrad") return Product::dgrad;
  if (word == "wgrad") return Product::wgrad;
  throw std::logic_error("no product '" + word + "'");
}

std::string_view name(Product product) {
  constexpr std::string_view names[] = {"fprop", "dgrad", "wgrad"};
  return names[static_cast<int>(product)];
}

std::string_view product_clause(Product product) {
  constexpr std::string_view clauses[] = {"GROUPED_GEMM-0a", "GROUPED_GEMM-0b", "GROUPED_GEMM-0c"};
  return clauses[static_cast<int>(product)];
}

std::vector<std::string> product_words() {
  return {"fprop", "dgrad", "wgrad"};
}

dropless_dtype plain_dtype(const std::string& word) {
  return word == "fp32" ? DROPLESS_FP32 : DROPLESS_BF16;
}

RowZones row_zones(const CaseRun& run, std::vector<Index> counts, bool padded, Index tail) {
  const Index declared = std::max(run.profile().gemm_alignment, 1);
  RowZones zones;
  const Index alignment = padded ? std::lcm(declared, Index{16}) : declared;
  zones.offsets = aligned_offsets(counts, alignment, padded);
  zones.counts = std::move(counts);
  zones.counted = alignment > 1;
  zones.length = zones.offsets.back() + tail;
  return zones;
}

Index GemmProblem::contraction(Index expert) const {
  if (product == Product::fprop) return in;
  if (product == Product::dgrad) return out;
  return zones.counts[static_cast<std::size_t>(expert)];
}

void fill_rows(const RowZones& zones, Index columns, reference::RowKind kind, double value,
               std::vector<double>& matrix) {
  const auto kinds = zones.kinds();
  for (std::size_t row = 0; row < kinds.size(); ++row) {
    if (kinds[row] != kind) continue;
    std::fill_n(matrix.begin() + static_cast<Index>(row) * columns, columns, value);
  }
}

std::string bitwise_data(const CaseRun& run, const GemmProblem& problem) {
  if (run.profile().determinism == DROPLESS_DETERMINISTIC_NO) return "exact";
  return problem.quantised() ? "blockwise" : "zero_mean";
}

namespace {

double alpha_of(const std::string& word) {
  if (word == "one") return 1;
  if (word == "half") return 0.5;
  if (word == "minus_two") return -2;
  if (word == "three_quarters") return 0.75;
  if (word == "third") return 1.0 / 3;
  throw std::logic_error("no factor '" + word + "'");
}

// Values of an epilogue term: exact data are multiples of 2^-2 with 8 bits, so bf16 holds them.
std::vector<double> epilogue(const GemmProblem& problem, dropless_dtype dtype, Index size,
                             Random& random) {
  if (problem.data != "exact") return cotangent("zero_mean", dtype, 1, size, random);
  std::vector<double> out(static_cast<std::size_t>(size));
  for (double& value : out) {
    value = static_cast<double>(random.between(1, 255)) * (random.chance(0.5) ? 0.25 : -0.25);
  }
  return out;
}

std::vector<double> numbers(const GemmProblem& problem, bool left, Index rows, Index columns,
                            Index length, Random& random) {
  const dropless_dtype dtype = problem.quantised() ? DROPLESS_BF16 : plain_dtype(problem.operands);
  if (problem.data == "blockwise") return blockwise(dtype, rows, columns, 3, random);
  if (problem.data != "exact") return matrix(problem.data, dtype, rows, columns, length, random);
  // Room for alpha and the epilogue beside the sum: 4 of the 24 bits.
  return matrix("exact", problem.quantised() ? operand_format(problem, left) : dtype, rows, columns,
                16 * length, random);
}

// Amplitudes vary along the blocks, so that neighbouring scales differ.
std::vector<double> operand(const GemmProblem& problem, bool left, Index length, Random& random) {
  const Blocks blocks = operand_blocks(problem, left);
  if (!problem.quantised() || blocks.direction == DROPLESS_BLOCKS_ROW_WISE) {
    return numbers(problem, left, blocks.rows, blocks.columns, length, random);
  }
  const auto turned = numbers(problem, left, blocks.columns, blocks.rows, length, random);
  std::vector<double> out(turned.size());
  for (Index row = 0; row < blocks.rows; ++row) {
    for (Index column = 0; column < blocks.columns; ++column) {
      out[static_cast<std::size_t>(row * blocks.columns + column)] =
          turned[static_cast<std::size_t>(column * blocks.rows + row)];
    }
  }
  return out;
}

}  // namespace

void fill_operands(const CaseRun& run, GemmProblem& problem, bool bias, bool c) {
  Index length = 0;
  for (Index e = 0; e < problem.experts; ++e) length = std::max(length, problem.contraction(e));
  Random left = run.random("left"), right = run.random("right"), rest = run.random("epilogue");
  problem.left = operand(problem, true, length, left);
  problem.right = operand(problem, false, length, right);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const auto kind : {reference::RowKind::padding, reference::RowKind::tail}) {
    fill_rows(problem.zones, problem.left_columns(), kind, nan, problem.left);
    if (!problem.by_rows()) fill_rows(problem.zones, problem.in, kind, nan, problem.right);
  }
  if (bias) {
    problem.bias =
        epilogue(problem, problem.bias_dtype, problem.experts * problem.output_columns(), rest);
  }
  if (c) {
    problem.c =
        epilogue(problem, problem.c_dtype, problem.experts * problem.out * problem.in, rest);
  }
}

GemmProblem gemm_problem(const CaseRun& run, Product product) {
  const Model model = scaled(run.model(), run.integer("divisor"));
  const bool gated = model.activation.kind != DROPLESS_RELU2;
  const bool up = run.word("projection") == "gate_up";
  GemmProblem problem;
  problem.product = product;
  problem.experts = model.experts;
  problem.out = up ? model.intermediate * (gated ? 2 : 1) : model.hidden;
  problem.in = up ? model.hidden : model.intermediate;
  if (run.has("widths") && run.word("widths") == "odd") problem.out -= 13, problem.in += 23;
  Random random = run.random("zones");
  problem.zones =
      row_zones(run, rows_per_expert(run.word("load"), model.experts, run.integer("rows"), random),
                run.word("zones") == "padded");
  problem.operands = run.word("operands");
  problem.output = plain_dtype(run.word("output"));
  problem.data = run.word("data");
  if (run.has("layout") && run.word("layout") == "packed") {
    problem.scale_layout = DROPLESS_SCALES_PACKED;
  }
  if (run.has("scale_padding") && run.word("scale_padding") == "random") problem.stray_scale = -1;
  if (run.has("strides") && run.word("strides") == "gaps") {
    problem.layout = {.row_gap = 5, .offset_bytes = 8};
  }
  if (run.has("alpha")) problem.alpha = alpha_of(run.word("alpha"));
  const bool bias = product == Product::fprop && run.has("bias") && run.word("bias") != "none";
  if (bias) problem.bias_dtype = plain_dtype(run.word("bias"));
  // "half_in_place", "one_separate", "third_other": beta, and where C is; other: in the other dtype
  const std::string accumulate = run.has("accumulate") ? run.word("accumulate") : "none";
  const bool c = product == Product::wgrad && accumulate != "none";
  if (c) {
    problem.beta = alpha_of(accumulate.substr(0, accumulate.find('_')));
    problem.in_place = accumulate.ends_with("in_place");
    problem.c_dtype = problem.output;
    if (accumulate.ends_with("other")) {
      problem.c_dtype = problem.output == DROPLESS_FP32 ? DROPLESS_BF16 : DROPLESS_FP32;
    }
  }
  fill_operands(run, problem, bias, c);
  return problem;
}

std::vector<Parameter> gemm_parameters(std::vector<Parameter> more) {
  std::vector<std::string> names;
  for (const Model& model : models()) names.push_back(model.name);
  std::vector<Parameter> all = {
      {"model", names, 0, 0, "published model: experts and widths"},
      {"divisor", {}, 1, 1024, "widths are divided by this"},
      {"projection", {"gate_up", "down"}, 0, 0, "which of the two matrices of an expert"},
      {"rows", {}, 0, 1 << 20, "real rows over all experts"},
      load_parameter("how the rows spread over the experts"),
      {"zones", {"tight", "padded"}, 0, 0, "zones rounded up to 16 rows, or exact"}};
  all.insert(all.end(), more.begin(), more.end());
  all.push_back({"seed", {}, 0, std::int64_t{1} << 62, "of the random numbers"});
  return all;
}

Parameter product_parameter() {
  return {"product", product_words(), 0, 0, "which of the three products"};
}

void add_grouped_gemm(Registry& registry) {
  add_grouped_gemm_products(registry);
  add_grouped_gemm_shapes(registry);
  add_grouped_gemm_epilogue(registry);
  add_grouped_gemm_isolation(registry);
  add_grouped_gemm_mxfp8(registry);
  add_grouped_gemm_scales(registry);
  add_grouped_gemm_metamorphic(registry);
  add_grouped_gemm_strides(registry);
  add_grouped_gemm_refusals(registry);
}

}  // namespace dropless::conformance
