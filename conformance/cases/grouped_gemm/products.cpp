// SPDX-License-Identifier: Apache-2.0
// The three products on the shapes of real models: GROUPED_GEMM-0, 2b, 4, 5, 6a, with the epilogue.
#include "conformance/cases/grouped_gemm/setup.h"

namespace dropless::conformance {
namespace {

template <Product product>
void run_product(CaseRun& run) {
  const GemmProblem problem = gemm_problem(run, product);
  GemmCall call = gemm_call(run, problem);
  perform(run, call);
  judge_gemm(run, problem, call);
}

using Words = std::vector<std::string>;

// A third has no short binary fraction: nothing is exact then.
std::string objection(const Values& values) {
  const bool exact = value_of(values, "data") == "exact";
  for (const auto& [key, value] : values) {
    if (exact && (key == "alpha" || key == "accumulate") && value.starts_with("third")) {
      return key + "=" + value + " makes no exact products";
    }
  }
  return "";
}

bool legal(const Values& values) {
  return objection(values).empty();
}

struct Choice {
  Words models, loads, data;
  std::vector<Axis> more;  // alpha and the epilogue of the product, in the order of the parameters
  Words rows = {"97"}, projections = {"gate_up", "down"}, zones = {"padded", "tight"};
  Words operands = {"bf16", "fp32"}, outputs = {"bf16", "fp32"}, strides = {"dense", "gaps"};

  [[nodiscard]] std::vector<Axis> axes() const {
    std::vector<Axis> all = {
        {"model", models},      {"divisor", {"64"}}, {"projection", projections},
        {"rows", rows},         {"load", loads},     {"zones", zones},
        {"operands", operands}, {"output", outputs}, {"data", data}};
    all.insert(all.end(), more.begin(), more.end());
    all.push_back({"strides", strides});
    all.push_back({"seed", {"1"}});
    return all;
  }
};

std::function<std::vector<Values>(Tier)> selection(std::vector<Axis> more) {
  return [more](Tier tier) {
    std::vector<Axis> plain = more;
    for (Axis& axis : plain) axis.values.resize(1);
    const auto one = [&](const char* load, const char* data, const char* zones,
                         const char* operands) {
      return Choice{{"granite-3-1-3b-a800m"},
                    {load},
                    {data},
                    plain,
                    {"300"},
                    {"gate_up"},
                    {zones},
                    {operands},
                    {"bf16"},
                    {"dense"}};
    };
    std::vector<Values> smoke;
    for (const Choice& choice : {one("tile_edge", "exact", "padded", "bf16"),
                                 one("empty_first", "zero_mean", "padded", "bf16"),
                                 one("one_hot", "exact", "tight", "fp32")}) {
      smoke.push_back(product(choice.axes()).front());
    }
    if (tier == Tier::smoke) return smoke;
    const Choice some{{"granite-3-1-3b-a800m", "gpt-oss-20b"},
                      {"zipf", "tile_edge", "empty_last", "alternating"},
                      {"exact", "same_sign", "zero_mean", "cancelling"},
                      more};
    auto standard = without(pairwise(some.axes(), legal), smoke);
    if (tier == Tier::standard) return standard;
    Words names;
    for (const Model& model : models()) names.push_back(model.name);
    const Choice wide{names,
                      {"zipf", "tile_edge", "empty_middle", "one_row_each"},
                      {"exact", "zero_mean"},
                      plain,
                      {"700"}};
    return without(without(pairwise(wide.axes(), legal), standard), smoke);
  };
}

std::vector<Parameter> parameters(std::vector<Parameter> more) {
  std::vector<Parameter> all = {
      {"operands", {"bf16", "fp32"}, 0, 0, "dtype of both operands"},
      {"output", {"bf16", "fp32"}, 0, 0, "dtype of the output"},
      {"data", {"exact", "same_sign", "zero_mean", "cancelling"}, 0, 0, "what the numbers are"}};
  all.insert(all.end(), more.begin(), more.end());
  all.push_back({"strides", {"dense", "gaps"}, 0, 0, "gaps between rows"});
  return gemm_parameters(std::move(all));
}

const Words alphas = {"one", "half", "minus_two", "three_quarters", "third"};
const Words some_alphas = {"one", "minus_two", "three_quarters", "third"};

}  // namespace

void add_grouped_gemm_products(Registry& registry) {
  const Parameter alpha{"alpha", alphas, 0, 0, "factor of the product"};
  const Words biases = {"bf16", "fp32", "none"};
  registry.add({"grouped_gemm.fprop",
                "Proves the forward product with alpha and bias on the shapes of real models; NaN "
                "lies wherever no real row is.",
                {"GROUPED_GEMM-0a", "GROUPED_GEMM-2b", "GROUPED_GEMM-4", "GROUPED_GEMM-6a"},
                parameters({alpha, {"bias", biases, 0, 0, "dtype of the bias"}}),
                selection({{"alpha", some_alphas}, {"bias", biases}}),
                run_product<Product::fprop>,
                objection});
  registry.add({"grouped_gemm.dgrad",
                "Proves the gradient of the input, with alpha; NaN lies wherever no real row is.",
                {"GROUPED_GEMM-0b", "GROUPED_GEMM-2b", "GROUPED_GEMM-4", "GROUPED_GEMM-6a"},
                parameters({alpha}),
                selection({{"alpha", some_alphas}}),
                run_product<Product::dgrad>,
                objection});
  const Words accumulates = {"none",          "one_in_place", "half_in_place",  "one_separate",
                             "half_separate", "one_other",    "third_separate", "third_in_place"};
  registry.add(
      {"grouped_gemm.wgrad",
       "Proves the gradient of the weights with alpha, beta and C, empty experts included.",
       {"GROUPED_GEMM-0c", "GROUPED_GEMM-5", "GROUPED_GEMM-6a"},
       parameters({alpha, {"accumulate", accumulates, 0, 0, "beta, and where C is"}}),
       selection({{"alpha", {"one", "three_quarters", "third"}},
                  {"accumulate",
                   {"none", "one_in_place", "half_in_place", "one_other", "third_separate"}}}),
       run_product<Product::wgrad>,
       objection});
}

}  // namespace dropless::conformance
