// SPDX-License-Identifier: Apache-2.0
// Products of MXFP8 operands on the shapes of real models: GROUPED_GEMM-7a.
#include "conformance/cases/grouped_gemm/setup.h"

namespace dropless::conformance {
namespace {

void run_mxfp8(CaseRun& run) {
  const GemmProblem problem = gemm_problem(run, product_of(run.word("product")));
  GemmCall call = gemm_call(run, problem);
  perform(run, call);
  judge_gemm(run, problem, call, "GROUPED_GEMM-7a");
}

using Words = std::vector<std::string>;

std::vector<Axis> axes(Words models, const char* divisor, const char* rows, Words loads) {
  return {{"model", std::move(models)},
          {"divisor", {divisor}},
          {"projection", {"gate_up", "down"}},
          {"rows", {rows}},
          {"load", std::move(loads)},
          {"zones", {"padded", "tight"}},
          {"product", product_words()},
          {"operands", {"e4m3", "e5m2"}},
          {"output", {"bf16", "fp32"}},
          {"data", {"exact", "blockwise"}},
          {"widths", {"odd", "model"}},
          {"layout", {"packed", "linear"}},
          {"scale_padding", {"ones", "random"}},
          {"alpha", {"one", "three_quarters"}},
          {"bias", {"none", "bf16"}},
          {"accumulate", {"none", "one_in_place"}},
          {"strides", {"dense", "gaps"}},
          {"seed", {"1"}}};
}

bool legal(const Values& values) {
  const std::string& product = value_of(values, "product");
  return (product == "fprop" || value_of(values, "bias") == "none") &&
         (product == "wgrad" || value_of(values, "accumulate") == "none");
}

// One case of each product.
std::vector<Values> select_smoke() {
  std::vector<Values> rows;
  for (const std::string& product : product_words()) {
    auto few = axes({"granite-3-1-3b-a800m"}, "16", "130", {"tile_edge"});
    for (Axis& axis : few) axis.values.resize(1);
    for (Axis& axis : few) {
      if (axis.name == "product") axis.values = {product};
      if (axis.name == "layout" && product == "fprop") axis.values = {"linear"};
      if (axis.name == "operands" && product == "wgrad") axis.values = {"e5m2"};
    }
    rows.push_back(dropless::conformance::product(few).front());
  }
  return rows;
}

std::vector<Values> select_mxfp8(Tier tier) {
  const std::vector<Values> smoke = select_smoke();
  if (tier == Tier::smoke) return smoke;
  const auto standard =
      without(pairwise(axes({"granite-3-1-3b-a800m", "granite-3-1-1b-a400m"}, "16", "130",
                            {"tile_edge", "empty_middle", "one_hot"}),
                       legal),
              smoke);
  if (tier == Tier::standard) return standard;
  Words names;
  for (const Model& model : models()) names.push_back(model.name);
  auto wide = axes(names, "64", "500", {"zipf", "empty_last", "one_row_each"});
  for (Axis& axis : wide) {
    const bool kept = axis.name == "model" || axis.name == "load" || axis.name == "product" ||
                      axis.name == "layout" || axis.name == "data";
    if (!kept) axis.values.resize(1);
  }
  return pairwise(wide, legal);
}

}  // namespace

void add_grouped_gemm_mxfp8(Registry& registry) {
  registry.add(
      {"grouped_gemm.mxfp8",
       "Proves products of MXFP8 operands on the shapes of real models; codes and scales that no "
       "real element needs are NaN or random.",
       judged_clauses({"GROUPED_GEMM-7a"}),
       gemm_parameters(
           {product_parameter(),
            {"operands", {"e4m3", "e5m2"}, 0, 0, "format of the left one; the right one is e4m3"},
            {"output", {"bf16", "fp32"}, 0, 0, "dtype of the output"},
            {"data", {"exact", "blockwise"}, 0, 0, "what the numbers are"},
            {"widths", {"model", "odd"}, 0, 0, "odd: no multiple of 32"},
            {"layout", {"linear", "packed"}, 0, 0, "of the scales"},
            {"scale_padding", {"ones", "random"}, 0, 0, "scale bytes that belong to nothing"},
            {"alpha", {"one", "three_quarters"}, 0, 0, "factor of the product"},
            {"bias", {"none", "bf16"}, 0, 0, "fprop: dtype of the bias"},
            {"accumulate", {"none", "one_in_place"}, 0, 0, "wgrad: beta, and where C is"},
            {"strides", {"dense", "gaps"}, 0, 0, "gaps between rows"}}),
       select_mxfp8, run_mxfp8});
}

}  // namespace dropless::conformance
