// SPDX-License-Identifier: Apache-2.0
// Pairs of runs that must agree bit by bit: GROUPED_GEMM-2a, 3 and 9d.
#include <cmath>
#include <limits>

#include "conformance/cases/grouped_gemm/setup.h"

namespace dropless::conformance {
namespace {

const double kNan = std::numeric_limits<double>::quiet_NaN();

GemmProblem isolation_problem(CaseRun& run) {
  GemmProblem problem;
  problem.product = product_of(run.word("product"));
  problem.experts = 6, problem.out = 40, problem.in = 72;
  Random random = run.random("zones");
  problem.zones = row_zones(run, rows_per_expert("ragged", problem.experts, 150, random), true);
  problem.operands = run.word("operands"), problem.output = plain_dtype(run.word("output"));
  problem.data = bitwise_data(run, problem);
  fill_operands(run, problem, problem.product == Product::fprop, false);
  return problem;
}

// Ordinary numbers instead of NaN in rows of a kind.
void make_ordinary(GemmProblem& problem, reference::RowKind kind) {
  fill_rows(problem.zones, problem.left_columns(), kind, 1.5, problem.left);
  if (!problem.by_rows()) fill_rows(problem.zones, problem.in, kind, 1.5, problem.right);
  problem.stray_code = 0x38, problem.stray_scale = 127;
}

// NaN in all that belongs to experts of one parity.
void poison_experts(GemmProblem& problem, Index parity) {
  for (Index e = parity; e < problem.experts; e += 2) {
    const Index first = problem.zones.offsets[static_cast<std::size_t>(e)];
    const Index count = problem.zones.counts[static_cast<std::size_t>(e)];
    const Index columns = problem.left_columns(), matrix = problem.out * problem.in;
    std::fill_n(problem.left.begin() + first * columns, count * columns, kNan);
    if (problem.by_rows()) {
      std::fill_n(problem.right.begin() + e * matrix, matrix, kNan);
    } else {
      std::fill_n(problem.right.begin() + first * problem.in, count * problem.in, kNan);
    }
    const Index width = problem.output_columns();
    if (!problem.bias.empty()) std::fill_n(problem.bias.begin() + e * width, width, kNan);
  }
}

// Elements of the experts that are not of this parity.
Judged other_elements(const GemmProblem& problem, Index parity) {
  std::vector<bool> experts;
  for (Index e = 0; e < problem.experts; ++e) experts.push_back(e % 2 != parity);
  if (!problem.by_rows()) return expert_elements(problem, experts);
  Judged flags(static_cast<std::size_t>(element_count(problem.output_shape())));
  const Index width = problem.output_columns();
  for (std::size_t e = 0; e < experts.size(); ++e) {
    for (Index i = problem.zones.offsets[e] * width; i < problem.zones.offsets[e + 1] * width;
         ++i) {
      flags[static_cast<std::size_t>(i)] = experts[e];
    }
  }
  return flags;
}

void run_isolation(CaseRun& run) {
  const std::string& nan_in = run.word("nan_in");
  const GemmProblem plain = isolation_problem(run);
  GemmProblem ordinary = plain, hostile = plain;
  Judged compared = computed_elements(plain);
  std::string clause = "GROUPED_GEMM-3";
  if (nan_in == "padding") {
    make_ordinary(ordinary, reference::RowKind::padding);
    clause = "GROUPED_GEMM-2a";
  } else if (nan_in == "tail") {
    make_ordinary(ordinary, reference::RowKind::tail);
  } else {
    const Index parity = nan_in == "odd_experts" ? 1 : 0;
    poison_experts(hostile, parity);
    compared = other_elements(plain, parity);
  }
  GemmCall first = gemm_call(run, ordinary);
  perform(run, first);
  judge_gemm(run, ordinary, first);
  GemmCall second = gemm_call(run, hostile);
  perform(run, second, clause);
  run.judge().same_bytes(clause, std::string(name(plain.product)) + " with NaN in " + nan_in,
                         *second.output, first.output->bytes(), compared);
}

void run_repeat(CaseRun& run) {
  const GemmProblem problem = gemm_problem(run, product_of(run.word("product")));
  GemmCall call = gemm_call(run, problem);
  perform(run, call);
  judge_gemm(run, problem, call);
  const auto earlier = call.output->bytes();
  if (run.profile().determinism == DROPLESS_DETERMINISTIC_NO) return;
  const bool any = run.profile().determinism == DROPLESS_DETERMINISTIC_ANY_THREADS;
  for (const int threads : any ? std::vector<int>{1, 2, 3} : std::vector<int>{1, 1}) {
    run.buffers().poison_outputs();
    with_entry(run, call, [&](std::string_view operation, auto entry, auto& args) {
      run.perform_with_threads(threads, operation, entry, args);
    });
    run.judge().same_bytes("GROUPED_GEMM-9d", "with " + std::to_string(threads) + " threads",
                           *call.output, earlier);
  }
}

std::vector<Values> select_isolation(Tier tier) {
  const auto axes = [](std::vector<std::string> products, std::vector<std::string> nan_in,
                       std::vector<std::string> operands) {
    return std::vector<Axis>{{"product", std::move(products)},
                             {"nan_in", std::move(nan_in)},
                             {"operands", std::move(operands)},
                             {"output", {"bf16", "fp32"}},
                             {"seed", {"1"}}};
  };
  std::vector<Values> smoke;
  for (const auto& [product, nan_in] : std::vector<std::pair<std::string, std::string>>{
           {"fprop", "odd_experts"}, {"dgrad", "tail"}, {"wgrad", "padding"}}) {
    smoke.push_back(dropless::conformance::product(axes({product}, {nan_in}, {"bf16"})).front());
  }
  if (tier == Tier::smoke) return smoke;
  const auto all = axes(product_words(), {"odd_experts", "even_experts", "padding", "tail"},
                        {"bf16", "fp32", "e4m3"});
  if (tier == Tier::standard) return without(pairwise(all), smoke);
  return without(without(product(all), pairwise(all)), smoke);
}

std::vector<Values> select_repeat(Tier tier) {
  std::vector<Axis> axes = {{"model", {"granite-3-1-3b-a800m"}},
                            {"divisor", {"64"}},
                            {"projection", {"gate_up"}},
                            {"rows", {"300"}},
                            {"load", {"zipf"}},
                            {"zones", {"padded"}},
                            {"product", product_words()},
                            {"operands", {"bf16"}},
                            {"output", {"fp32"}},
                            {"data", {"zero_mean"}},
                            {"seed", {"1"}}};
  if (tier == Tier::standard) return product(axes);
  if (tier == Tier::full) {
    axes[3].values = {"900"}, axes[4].values = {"one_hot"}, axes[7].values = {"e4m3", "fp32"};
    axes[9].values = {"blockwise"};
    return product(axes);
  }
  return {};
}

}  // namespace

void add_grouped_gemm_isolation(Registry& registry) {
  registry.add(
      {"grouped_gemm.isolation",
       "Proves that NaN in padding, in the tail or in other experts changes no bit.",
       judged_clauses({"GROUPED_GEMM-2a", "GROUPED_GEMM-3"}),
       {product_parameter(),
        {"nan_in", {"padding", "tail", "odd_experts", "even_experts"}, 0, 0, "where NaN is"},
        {"operands", {"bf16", "fp32", "e4m3"}, 0, 0, "what the operands are"},
        {"output", {"bf16", "fp32"}, 0, 0, "dtype of the output"},
        {"seed", {}, 0, std::int64_t{1} << 62, "of the random numbers"}},
       select_isolation,
       run_isolation});
  registry.add(
      {"grouped_gemm.repeat",
       "Proves that a product is the same again, for other thread counts where declared.",
       judged_clauses({"GROUPED_GEMM-9d"}),
       gemm_parameters({product_parameter(),
                        {"operands", {"bf16", "fp32", "e4m3"}, 0, 0, "the operands"},
                        {"output", {"bf16", "fp32"}, 0, 0, "dtype of the output"},
                        {"data", {"zero_mean", "blockwise"}, 0, 0, "what the numbers are"}}),
       select_repeat, run_repeat, [](const Values& values) {
         const bool alike =
             value_of(values, "operands") == "e4m3" && value_of(values, "data") == "zero_mean";
         return std::string(alike ? "the scales of zero-mean data are all alike" : "");
       }});
}

}  // namespace dropless::conformance
