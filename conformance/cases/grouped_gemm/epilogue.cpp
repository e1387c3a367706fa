// SPDX-License-Identifier: Apache-2.0
// What happens around the sum: beta and empty experts (GROUPED_GEMM-5, 6c), one rounding
// (GROUPED_GEMM-6b).
#include <cmath>
#include <limits>

#include "conformance/cases/grouped_gemm/setup.h"
#include "tolerances/float_format.h"
#include "tolerances/interval.h"

namespace dropless::conformance {
namespace {

const double kNan = std::numeric_limits<double>::quiet_NaN();

GemmProblem weight_gradient(CaseRun& run, const std::string& load) {
  GemmProblem problem;
  problem.product = Product::wgrad;
  problem.experts = 7, problem.out = 24, problem.in = 40;
  Random random = run.random("zones");
  problem.zones = row_zones(run, rows_per_expert(load, problem.experts, 90, random), true);
  problem.operands = run.word("operands");
  problem.output = problem.c_dtype = plain_dtype(run.word("output"));
  return problem;
}

// beta = 0: C and dW hold NaN, of experts with and without rows.
void run_beta_zero(CaseRun& run) {
  GemmProblem problem = weight_gradient(run, run.word("load"));
  fill_operands(run, problem, false, false);
  const std::string& where = run.word("c");
  problem.in_place = where == "in_place";
  if (where != "none") {
    problem.c.assign(static_cast<std::size_t>(problem.experts * problem.out * problem.in), kNan);
  }
  GemmCall call = gemm_call(run, problem);
  perform(run, call, "GROUPED_GEMM-6c");
  judge_gemm(run, problem, call, "GROUPED_GEMM-6c");
}

GemmProblem small_problem(CaseRun& run) {
  GemmProblem problem;
  problem.product = product_of(run.word("product"));
  problem.experts = 5, problem.out = 40, problem.in = 24;
  problem.zones = row_zones(run, {7, 0, 33, 1, 16}, true);
  problem.operands = run.word("operands");
  return problem;
}

// alpha = 0: what is left is the epilogue, and it is written.
void run_alpha_zero(CaseRun& run) {
  GemmProblem problem = small_problem(run);
  problem.alpha = 0;
  const bool wgrad = problem.product == Product::wgrad;
  problem.beta = wgrad ? 0.5 : 0;
  fill_operands(run, problem, problem.product == Product::fprop, wgrad);
  GemmCall call = gemm_call(run, problem);
  perform(run, call);
  const reference::Gauged expected = gemm_expected(problem, call);
  run.judge().bounded(product_clause(problem.product), call.output->label(), *call.output,
                      expected.value, gemm_errors(run, problem, expected),
                      computed_elements(problem));
}

// Another operand at the same address: what was kept of the first one is worth nothing.
void run_changed_operand(CaseRun& run) {
  GemmProblem problem = small_problem(run);
  fill_operands(run, problem, false, false);
  GemmCall call = gemm_call(run, problem);
  perform(run, call);
  judge_gemm(run, problem, call);
  for (GemmOperand* operand : {&call.right, &call.left}) {
    std::vector<std::uint8_t> bytes = operand->memory->bytes();  // every sign is turned
    const std::size_t size = dtype_bytes(operand->memory->dtype());
    for (std::size_t i = size - 1; i < bytes.size(); i += size) bytes[i] ^= 0x80;
    operand->memory->overwrite(bytes);
    for (double& value : operand->values) value = -value;
    run.buffers().poison_outputs();
    perform(run, call);
    judge_gemm(run, problem, call);
  }
}

// Experts without rows, whose C holds what an addition of zero would change: -0 and NaN.
void run_empty_experts(CaseRun& run) {
  GemmProblem problem = weight_gradient(run, run.word("load"));
  const std::string& accumulate = run.word("accumulate");
  problem.beta = accumulate.starts_with("half") ? 0.5 : 1;
  problem.in_place = accumulate.ends_with("in_place");
  fill_operands(run, problem, false, true);
  const std::size_t size = static_cast<std::size_t>(problem.out * problem.in);
  Index empty = 0;
  for (std::size_t e = 0; e < problem.zones.counts.size(); ++e) {
    if (problem.zones.counts[e] > 0) continue;
    problem.c[e * size] = -0.0, problem.c[e * size + size / 2] = kNan;
    ++empty;
  }
  run.judge().require(empty > 0, "an expert is empty");
  GemmCall call = gemm_call(run, problem);
  perform(run, call);
  judge_gemm(run, problem, call);
}

// Sums of `length` products that lie on ties of bf16, or a little beside them:
//   sign * (big + 1/2) + little,   big in 128..255 (the ulp is 1),   little in {-1/16, 0, 1/16},
// and pairs that cancel. `left` gives the factor of the row side, `right` that of the column side.
class Ties {
 public:
  static constexpr Index length = 33;

  Ties(Index lefts, Index rights, bool little_in_sum, Random& random) {
    for (Index l = 0; l < lefts; ++l) {
      left_.push_back({static_cast<double>(random.between(128, 255)), 1, 1});
      for (Index k = 3; k < length; k += 2) {
        const auto pair = static_cast<double>(random.between(1, 15));
        left_.back().insert(left_.back().end(), {pair, pair});
      }
    }
    for (Index r = 0; r < rights; ++r) {
      const double sign = random.chance(0.5) ? 1 : -1;
      right_.push_back({sign, 0.5 * sign, little_in_sum ? little(random) : 0});
      for (Index k = 3; k < length; k += 2) {
        const auto pair = static_cast<double>(random.between(1, 15));
        right_.back().insert(right_.back().end(), {pair, -pair});
      }
    }
  }
  [[nodiscard]] double left(Index l, Index k) const {
    return left_[static_cast<std::size_t>(l)][static_cast<std::size_t>(k)];
  }
  [[nodiscard]] double right(Index r, Index k) const {
    return right_[static_cast<std::size_t>(r)][static_cast<std::size_t>(k)];
  }
  static double little(Random& random) {
    return static_cast<double>(random.between(-1, 1)) * 0x1p-4;
  }

 private:
  std::vector<std::vector<double>> left_, right_;
};

GemmProblem tied_problem(CaseRun& run) {
  constexpr Index kExperts = 3, kRows = 9, kWidth = 40;
  const bool in_sum = run.word("little") == "sum";
  GemmProblem problem;
  problem.product = product_of(run.word("product"));
  problem.operands = run.word("operands"), problem.output = DROPLESS_BF16;
  problem.unit = 0x1p-4;
  problem.experts = kExperts;
  const bool by_rows = problem.by_rows();
  problem.out = problem.product == Product::dgrad ? Ties::length : kWidth;
  problem.in = problem.product == Product::fprop ? Ties::length : kWidth;
  problem.zones =
      row_zones(run, std::vector<Index>(kExperts, by_rows ? kRows : Ties::length), true);
  Random random = run.random("ties");
  const Ties ties(by_rows ? problem.zones.length : kExperts * problem.out,
                  kExperts * (problem.product == Product::fprop ? problem.out : problem.in), in_sum,
                  random);
  fill_operands(run, problem, false, false);  // NaN outside the real rows stays
  const auto kinds = problem.zones.kinds();
  Index expert = 0;
  for (Index row = 0; row < problem.zones.length; ++row) {
    if (kinds[static_cast<std::size_t>(row)] != reference::RowKind::real) continue;
    while (row >= problem.zones.offsets[static_cast<std::size_t>(expert) + 1]) ++expert;
    const Index k = row - problem.zones.offsets[static_cast<std::size_t>(expert)];
    for (Index c = 0; c < problem.left_columns(); ++c) {
      problem.left[static_cast<std::size_t>(row * problem.left_columns() + c)] =
          by_rows ? ties.left(row, c) : ties.left(expert * problem.out + c, k);
    }
    for (Index i = 0; !by_rows && i < problem.in; ++i) {
      problem.right[static_cast<std::size_t>(row * problem.in + i)] =
          ties.right(expert * problem.in + i, k);
    }
  }
  for (Index row = 0; by_rows && row < kExperts * problem.out; ++row) {
    for (Index i = 0; i < problem.in; ++i) {
      problem.right[static_cast<std::size_t>(row * problem.in + i)] =
          problem.product == Product::fprop
              ? ties.right(row, i)
              : ties.right(row / problem.out * problem.in + i, row % problem.out);
    }
  }
  const Index epilogue = by_rows ? kExperts * problem.out : kExperts * problem.out * problem.in;
  std::vector<double> littles;
  for (Index i = 0; !in_sum && i < epilogue; ++i) littles.push_back(Ties::little(random));
  if (by_rows) {
    problem.bias = littles;
  } else {
    problem.c = littles, problem.beta = in_sum ? 0 : 1;
  }
  return problem;
}

void run_rounding(CaseRun& run) {
  const GemmProblem problem = tied_problem(run);
  GemmCall call = gemm_call(run, problem);
  perform(run, call);
  judge_gemm(run, problem, call, "GROUPED_GEMM-6b");

  const auto expected = gemm_expected(problem, call);
  const Judged computed = computed_elements(problem);
  Index ties = 0, beside = 0, all = 0;
  for (std::size_t i = 0; i < computed.size(); ++i) {
    if (!computed[i]) continue;
    const double y = expected.value[i];
    const double off =
        std::abs(tolerances::round_to(DROPLESS_BF16, y) - y) / tolerances::ulp(DROPLESS_BF16, y);
    ++all, ties += off == 0.5 ? 1 : 0, beside += off > 0.4 && off < 0.5 ? 1 : 0;
  }
  run.judge().require(10 * ties >= all && 10 * beside >= all,
                      "a tenth of the sums lies on ties of bf16, a tenth beside them");
}

std::vector<Values> select_rounding(Tier tier) {
  const auto row = [](const char* product, const char* little, const char* operands) {
    return Values{{"product", product}, {"little", little}, {"operands", operands}, {"seed", "1"}};
  };
  const std::vector<Values> smoke = {row("fprop", "epilogue", "bf16"), row("wgrad", "sum", "bf16")};
  if (tier == Tier::smoke) return smoke;
  if (tier == Tier::full) return {};
  std::vector<Values> all;
  for (const char* operands : {"bf16", "fp32"}) {
    for (const char* product : {"fprop", "dgrad", "wgrad"}) {
      all.push_back(row(product, "sum", operands));
      if (product_of(product) != Product::dgrad) all.push_back(row(product, "epilogue", operands));
    }
  }
  return without(all, smoke);
}

std::vector<Parameter> gradient_parameters(Parameter load, std::vector<Parameter> more) {
  std::vector<Parameter> all = {std::move(load),
                                {"operands", {"bf16", "fp32"}, 0, 0, "dtype of both operands"},
                                {"output", {"bf16", "fp32"}, 0, 0, "dtype of dW and C"}};
  all.insert(all.end(), more.begin(), more.end());
  all.push_back({"seed", {}, 0, std::int64_t{1} << 62, "of the random numbers"});
  return all;
}

// Small problems: smoke takes the first row, standard a pairwise cover.
std::function<std::vector<Values>(Tier)> gradient_selection(std::vector<std::string> loads,
                                                            Axis axis) {
  return [=](Tier tier) {
    const auto all = pairwise({{"load", loads},
                               {"operands", {"bf16", "fp32"}},
                               {"output", {"fp32", "bf16"}},
                               axis,
                               {"seed", {"1"}}});
    if (tier == Tier::smoke) return std::vector<Values>{all.front()};
    if (tier == Tier::standard) return without(all, {all.front()});
    return std::vector<Values>{};
  };
}

}  // namespace

void add_grouped_gemm_epilogue(Registry& registry) {
  const std::vector<std::string> places = {"in_place", "separate", "none"};
  registry.add({"grouped_gemm.beta_zero",
                "Proves that beta = 0 reads neither C nor dW, which hold NaN.",
                {"GROUPED_GEMM-5", "GROUPED_GEMM-6c"},
                gradient_parameters(load_parameter("how the rows spread"),
                                    {{"c", places, 0, 0, "where C is: NaN in either place"}}),
                gradient_selection({"empty_middle", "all_empty"}, {"c", places}),
                run_beta_zero});
  const std::vector<std::string> accumulates = {"one_in_place", "half_in_place", "one_separate",
                                                "half_separate"};
  const std::vector<std::string> loads = {"empty_first", "empty_last", "alternating"};
  registry.add({"grouped_gemm.empty_experts",
                "Proves dW of experts without rows bit by bit, with NaN and -0 in C.",
                {"GROUPED_GEMM-0c", "GROUPED_GEMM-5"},
                gradient_parameters({"load", loads, 0, 0, "how the rows spread"},
                                    {{"accumulate", accumulates, 0, 0, "beta, and where C is"}}),
                gradient_selection(loads, {"accumulate", accumulates}),
                run_empty_experts});
  const auto small = [](std::string name, std::string purpose, std::vector<std::string> clauses,
                        void (*run)(CaseRun&)) {
    Family family;
    family.name = std::move(name), family.purpose = std::move(purpose);
    family.clauses = std::move(clauses), family.run = run;
    family.parameters = {product_parameter(),
                         {"operands", {"bf16", "fp32"}, 0, 0, "dtype of both operands"},
                         {"seed", {}, 0, std::int64_t{1} << 62, "of the random numbers"}};
    const auto all =
        product({{"product", product_words()}, {"operands", {"bf16", "fp32"}}, {"seed", {"1"}}});
    family.select = tiers({all[0]}, all);
    return family;
  };
  registry.add(small("grouped_gemm.alpha_zero",
                     "Proves that alpha = 0 leaves bias and beta C, written in full.",
                     {"GROUPED_GEMM-0a", "GROUPED_GEMM-0b", "GROUPED_GEMM-0c"}, run_alpha_zero));
  registry.add(small("grouped_gemm.changed_operand",
                     "Proves that another operand at the same address has its own product.",
                     judged_clauses(), run_changed_operand));
  registry.add(
      {"grouped_gemm.rounding",
       "Proves one rounding to nearest even into bf16, after everything is added: the sums "
       "lie on ties and beside them.",
       judged_clauses({"GROUPED_GEMM-6b"}),
       {product_parameter(),
        {"little", {"sum", "epilogue"}, 0, 0, "what moves a sum off its tie"},
        {"operands", {"bf16", "fp32"}, 0, 0, "dtype of both operands"},
        {"seed", {}, 0, std::int64_t{1} << 62, "of the random numbers"}},
       select_rounding,
       run_rounding,
       [](const Values& values) {
         const bool none =
             value_of(values, "product") == "dgrad" && value_of(values, "little") == "epilogue";
         return std::string(none ? "dgrad has no epilogue" : "");
       }});
}

}  // namespace dropless::conformance
