// SPDX-License-Identifier: Apache-2.0
// Judgement of a grouped GEMM output, clause by clause.
#include <algorithm>
#include <cmath>

#include "conformance/cases/grouped_gemm/setup.h"
#include "conformance/judge/trust.h"
#include "tolerances/bounds.h"
#include "tolerances/interval.h"

namespace dropless::conformance {
namespace {

constexpr Index kLongSum = 32;  // products after which an exact sum outgrows bf16

reference::GemmShape shape_of(const GemmProblem& problem) {
  return {problem.experts, problem.out, problem.in, problem.zones.length};
}

reference::Gauged product(const GemmProblem& problem, double alpha, reference::Input left,
                          reference::Input right, bool epilogue) {
  const reference::Groups groups = problem.zones.groups();
  switch (problem.product) {
    case Product::fprop:
      return reference::gemm_fprop(shape_of(problem), groups, alpha, left, right,
                                   epilogue ? reference::Input(problem.bias) : reference::Input());
    case Product::dgrad:
      return reference::gemm_dgrad(shape_of(problem), groups, alpha, left, right);
    case Product::wgrad:
      break;
  }
  return reference::gemm_wgrad(
      shape_of(problem), groups, alpha, left, right, epilogue ? problem.beta : 0,
      epilogue && problem.beta != 0 ? reference::Input(problem.c) : reference::Input());
}

tolerances::Operands operands_of(const GemmProblem& problem) {
  if (problem.quantised()) return tolerances::Operands::mxfp8;
  return problem.operands == "fp32" ? tolerances::Operands::fp32 : tolerances::Operands::bf16;
}

int accumulator(const dropless_profile& profile, const GemmProblem& problem) {
  if (problem.quantised()) return profile.accumulator_mxfp8;
  return problem.operands == "fp32" ? profile.accumulator_fp32 : profile.accumulator_bf16;
}

// Largest sum of magnitudes, in units, whose partial sums the declared accumulator holds exactly.
double exact_reach(const dropless_profile& profile, const GemmProblem& problem) {
  if (profile.partials == DROPLESS_PARTIALS_BF16) return 0x1p8;
  return accumulator(profile, problem) == DROPLESS_ACCUMULATOR_HOPPER_FP8_13 ? 0x1p13 : 0x1p24;
}

bool is_power_of_two(double x) {
  int exponent = 0;
  return std::abs(std::frexp(x, &exponent)) == 0.5;
}

// Number of products of every output element.
std::vector<Index> contractions(const GemmProblem& problem) {
  const std::size_t size = static_cast<std::size_t>(element_count(problem.output_shape()));
  if (problem.by_rows()) return std::vector<Index>(size, problem.left_columns());
  std::vector<Index> all;
  all.reserve(size);
  for (Index e = 0; e < problem.experts; ++e) {
    all.insert(all.end(), static_cast<std::size_t>(problem.out * problem.in),
               problem.contraction(e));
  }
  return all;
}

// sqrt(sum (a b)^2), for the statistical bound.
std::vector<double> roots(const GemmProblem& problem, const GemmCall& call) {
  const auto squares = [](std::vector<double> values) {
    for (double& value : values) value *= value;
    return values;
  };
  auto sums =
      product(problem, 1, squares(call.left.values), squares(call.right.values), false).value;
  for (double& sum : sums) sum = std::abs(problem.alpha) * std::sqrt(sum);
  return sums;
}

// Zero-mean data without an epilogue: partial sums stay far below the sum of magnitudes.
void judge_statistically(CaseRun& run, const GemmProblem& problem, const GemmCall& call,
                         const std::vector<double>& expected, const Judged& computed) {
  if (problem.data != "zero_mean" || !is_power_of_two(problem.alpha) || !problem.bias.empty() ||
      problem.beta != 0) {
    return;
  }
  const std::vector<double> root = roots(problem, call);
  const std::vector<Index> lengths = contractions(problem);
  std::vector<double> errors(root.size());
  for (std::size_t i = 0; i < errors.size(); ++i) {
    errors[i] = tolerances::gemm_statistical(run.profile(), operands_of(problem), lengths[i],
                                             root[i], expected[i]);
  }
  run.judge().statistical("GROUPED_GEMM-6a", call.output->label(), *call.output, expected, errors,
                          computed);
}

// Could this output show a fault?
void demand_sight(CaseRun& run, const GemmProblem& problem, const GemmCall& call,
                  const reference::Gauged& expected, const Judged& computed) {
  std::vector<double> values, long_sums;
  double largest_gauge = 0;
  const std::vector<Index> lengths = contractions(problem);
  for (std::size_t i = 0; i < computed.size(); ++i) {
    if (!computed[i]) continue;
    values.push_back(expected.value[i]);
    if (lengths[i] >= kLongSum) long_sums.push_back(expected.value[i]);
    largest_gauge = std::max(largest_gauge, expected.gauge[i]);
  }
  Judge& judge = run.judge();
  if (problem.data == "exact") {
    const bool multiples = std::all_of(values.begin(), values.end(), [&](double value) {
      return std::floor(value / problem.unit) * problem.unit == value;
    });
    judge.require(multiples && largest_gauge / problem.unit <= 0x1p24,
                  "every partial sum is exact in fp32");
  }
  const bool no_sums = problem.by_rows() && problem.left_columns() == 0;
  if (values.size() < 64 || no_sums) return;
  judge.require(trust::distinct(values) >= 16, "the outputs differ from each other");
  // Pairs of short formats cancel exactly now and then.
  judge.require(trust::share_of_zeros(values) < (problem.data == "cancelling" ? 0.6 : 0.1),
                "few outputs are zero");
  // Scales are drawn for a row and its blocks: the sums of a few rows may all be short.
  if (problem.data == "exact" && problem.output == DROPLESS_BF16 && long_sums.size() >= 1024) {
    const auto rounded = std::count_if(long_sums.begin(), long_sums.end(), [](double value) {
      return tolerances::round_to(DROPLESS_BF16, value) != value;
    });
    judge.require(rounded * 10 >= static_cast<Index>(long_sums.size()),
                  "a tenth of the long sums is rounded on the way to bf16");
  }
  // The left operand of the gradients is their cotangent: constants would hide where they belong.
  // A few values may be alike by chance, and one value always is.
  const auto varies = [](const std::vector<double>& operand) {
    std::vector<double> numbers = operand;
    std::erase_if(numbers, [](double value) { return std::isnan(value); });
    return numbers.size() < 8 || std::any_of(numbers.begin(), numbers.end(), [&](double value) {
             return value != numbers.front();
           });
  };
  judge.require(varies(call.left.values) && varies(call.right.values),
                "neither operand is uniform");
  const bool plain_sums = problem.bias.empty() && problem.beta == 0 && !problem.quantised();
  if (plain_sums && (problem.data == "same_sign" || problem.data == "zero_mean")) {
    // Sums of the longest contraction have RMS 1, shorter ones are smaller in proportion.
    const auto longest =
        static_cast<double>(std::max<Index>(*std::max_element(lengths.begin(), lengths.end()), 1));
    std::vector<double> level;
    for (std::size_t i = 0; i < computed.size(); ++i) {
      if (!computed[i]) continue;
      const double share = static_cast<double>(std::max<Index>(lengths[i], 1)) / longest;
      level.push_back(expected.value[i] / problem.alpha /
                      (problem.data == "same_sign" ? share : std::sqrt(share)));
    }
    const double rms = trust::root_mean_square(level);
    judge.require(rms > 1.0 / 16 && rms < 16, "RMS of the outputs is near 1");
  }
  for (const GemmOperand* operand : {&call.left, &call.right}) {
    if (operand->scales.size() < 64) continue;
    judge.require(trust::distinct(operand->scales) >= 3, "an operand has at least 3 scales");
  }
}

void judge_tail(CaseRun& run, const GemmProblem& problem, const Buffer& output) {
  const Judged tail = row_elements(problem, reference::RowKind::tail);
  if (run.profile().tail_rows == DROPLESS_TAIL_UNTOUCHED) {
    run.judge().untouched("GROUPED_GEMM-4", output.label(), output, tail);
  } else {
    const std::vector<double> zeros(tail.size(), 0.0);
    run.judge().exact("GROUPED_GEMM-4", output.label(), output, zeros, tail);
  }
}

void judge_empty_experts(CaseRun& run, const GemmProblem& problem, const Buffer& output,
                         const std::vector<double>& expected, const std::vector<double>& errors) {
  std::vector<bool> empty;
  for (const Index count : problem.zones.counts) empty.push_back(count == 0);
  const Judged elements = expert_elements(problem, empty);
  if (problem.in_place && problem.beta == 1) {
    run.judge().untouched("GROUPED_GEMM-5", "dw of experts without rows", output, elements);
  } else {
    run.judge().bounded("GROUPED_GEMM-5", "dw of experts without rows", output, expected, errors,
                        elements);
  }
}

}  // namespace

reference::Gauged gemm_expected(const GemmProblem& problem, const GemmCall& call) {
  return product(problem, problem.alpha, call.left.values, call.right.values, true);
}

std::vector<double> gemm_errors(const CaseRun& run, const GemmProblem& problem,
                                const reference::Gauged& expected) {
  const std::vector<Index> lengths = contractions(problem);
  const Index extra =
      tolerances::epilogue_roundings(problem.alpha, !problem.bias.empty(), problem.beta);
  const double reach = exact_reach(run.profile(), problem) * problem.unit;
  std::vector<double> errors(expected.value.size());
  for (std::size_t i = 0; i < errors.size(); ++i) {
    if (problem.data == "exact" && expected.gauge[i] <= reach) continue;
    errors[i] =
        tolerances::gemm(run.profile(), operands_of(problem), lengths[i], expected.gauge[i], extra);
  }
  return errors;
}

Judged row_elements(const GemmProblem& problem, reference::RowKind kind) {
  Judged flags;
  for (const reference::RowKind row : problem.zones.kinds()) {
    flags.insert(flags.end(), static_cast<std::size_t>(problem.output_columns()), row == kind);
  }
  return flags;
}

Judged expert_elements(const GemmProblem& problem, const std::vector<bool>& experts) {
  Judged flags;
  for (const bool wanted : experts) {
    flags.insert(flags.end(), static_cast<std::size_t>(problem.out * problem.in), wanted);
  }
  return flags;
}

Judged computed_elements(const GemmProblem& problem) {
  if (problem.by_rows()) return row_elements(problem, reference::RowKind::real);
  std::vector<bool> experts;
  for (const Index count : problem.zones.counts) experts.push_back(count > 0);
  return expert_elements(problem, experts);
}

void judge_gemm(CaseRun& run, const GemmProblem& problem, const GemmCall& call,
                std::string_view clause) {
  if (clause.empty()) {
    clause = problem.data == "exact" ? product_clause(problem.product) : "GROUPED_GEMM-6a";
  }
  const reference::Gauged expected = gemm_expected(problem, call);
  const std::vector<double> errors = gemm_errors(run, problem, expected);
  const Judged computed = computed_elements(problem);
  const Buffer& output = *call.output;
  run.judge().bounded(clause, output.label(), output, expected.value, errors, computed);
  judge_statistically(run, problem, call, expected.value, computed);
  if (problem.by_rows()) {
    const std::vector<double> zeros(expected.value.size(), 0.0);
    run.judge().exact("GROUPED_GEMM-2b", "padding of " + output.label(), output, zeros,
                      row_elements(problem, reference::RowKind::padding));
    judge_tail(run, problem, output);
  } else {
    judge_empty_experts(run, problem, output, expected.value, errors);
  }
  demand_sight(run, problem, call, expected, computed);
}

std::vector<std::string> judged_clauses(std::vector<std::string> more) {
  std::vector<std::string> clauses = {"GROUPED_GEMM-0a", "GROUPED_GEMM-0b", "GROUPED_GEMM-0c",
                                      "GROUPED_GEMM-2b", "GROUPED_GEMM-4",  "GROUPED_GEMM-5",
                                      "GROUPED_GEMM-6a"};
  clauses.insert(clauses.end(), more.begin(), more.end());
  return clauses;
}

}  // namespace dropless::conformance
