// SPDX-License-Identifier: Apache-2.0
// Single scales of MXFP8 operands: GROUPED_GEMM-7b and 7c.
#include <cmath>

#include "conformance/cases/grouped_gemm/operands.h"
#include "conformance/judge/trust.h"

namespace dropless::conformance {
namespace {

GemmProblem scale_problem(CaseRun& run, Index contraction, Index outer, Index width) {
  GemmProblem problem;
  problem.product = product_of(run.word("product"));
  problem.operands = run.word("operands");
  problem.experts = 2;
  const bool by_rows = problem.by_rows();
  problem.zones = row_zones(run, std::vector<Index>(2, by_rows ? outer : contraction), true);
  problem.in = problem.product == Product::fprop ? contraction : width;
  problem.out = problem.product == Product::fprop   ? width
                : problem.product == Product::dgrad ? contraction
                                                    : outer;
  if (run.word("layout") == "packed") problem.scale_layout = DROPLESS_SCALES_PACKED;
  return problem;
}

std::uint8_t finite_code(dropless_dtype format, Random& random) {
  const Index magnitude = random.between(1, format == DROPLESS_E5M2 ? 0x7B : 0x7E);
  return static_cast<std::uint8_t>(magnitude | (random.chance(0.5) ? 0x80 : 0));
}

std::vector<std::uint8_t> random_scales(const Blocks& blocks, int layout, Random& random) {
  std::vector<std::uint8_t> scales(static_cast<std::size_t>(scale_bytes(blocks, layout)));
  for (std::uint8_t& byte : scales) byte = static_cast<std::uint8_t>(random.between(119, 135));
  return scales;
}

// Element (i, i) of every zone is the only one that is not zero, in its row and in its column: each
// output is one product, exact whatever the accumulator, and all of them together walk through
// every element of the contraction. 6 blocks and more than 128 rows: the packed layout has several
// tiles in both directions.
void run_walk(CaseRun& run) {
  constexpr Index kSteps = 170, kWidth = 140;
  const GemmProblem problem = scale_problem(run, kSteps, kSteps, kWidth);
  Random random = run.random("codes");
  const Blocks left = operand_blocks(problem, true), right = operand_blocks(problem, false);
  std::vector<std::uint8_t> walking(static_cast<std::size_t>(left.rows * left.columns), 0);
  for (const Index first : {problem.zones.offsets[0], problem.zones.offsets[1]}) {
    for (Index i = 0; i < kSteps; ++i) {
      walking[static_cast<std::size_t>((first + i) * left.columns + i)] =
          finite_code(operand_format(problem, true), random);
    }
  }
  std::vector<std::uint8_t> all(static_cast<std::size_t>(right.rows * right.columns));
  for (std::uint8_t& code : all) code = finite_code(DROPLESS_E4M3, random);
  GemmOperand left_operand =
      coded_operand(run, problem, true, walking, random_scales(left, problem.scale_layout, random));
  GemmOperand right_operand =
      coded_operand(run, problem, false, all, random_scales(right, problem.scale_layout, random));
  for (const GemmOperand* operand : {&left_operand, &right_operand}) {
    run.judge().require(trust::share_of_different_neighbours(operand->scales) > 0.8,
                        "neighbouring scales differ");
  }
  GemmCall call = gemm_call(run, problem, std::move(left_operand), std::move(right_operand));
  perform(run, call);
  const auto expected = gemm_expected(problem, call);
  const Judged computed = computed_elements(problem);
  run.judge().exact("GROUPED_GEMM-7b", call.output->label(), *call.output, expected.value,
                    computed);
  std::vector<double> products;
  for (std::size_t i = 0; i < computed.size(); ++i) {
    if (computed[i]) products.push_back(expected.value[i]);
  }
  run.judge().require(trust::share_of_zeros(products) == 0, "every output is one product");
}

// Blocks whose scales are near one end of the range in the left operand and near the other in the
// right one, so that every product is an ordinary number: codes below 2 keep it finite, and from
// 1/2 on a scale of 2^-127 loses no bit.
void run_extreme(CaseRun& run) {
  constexpr Index kLength = 210;
  constexpr int kBytes[] = {0, 253, 1, 252, 2, 251, 3};
  GemmProblem problem = scale_problem(run, kLength, 24, 36);
  problem.unit = 0x1p-9;
  Random random = run.random("codes");
  const auto make = [&](bool is_left) {
    const Blocks blocks = operand_blocks(problem, is_left);
    const dropless_dtype format = operand_format(problem, is_left);
    // Exponent fields of 2^-1 and 2^0, any mantissa.
    const Index half = format == DROPLESS_E5M2 ? 14 << 2 : 6 << 3;
    const Index count = format == DROPLESS_E5M2 ? 8 : 16;
    std::vector<std::uint8_t> codes(static_cast<std::size_t>(blocks.rows * blocks.columns));
    for (std::uint8_t& code : codes) {
      code =
          static_cast<std::uint8_t>((half + random.below(count)) | (random.chance(0.5) ? 0x80 : 0));
    }
    std::vector<std::uint8_t> scales(
        static_cast<std::size_t>(scale_bytes(blocks, problem.scale_layout)), 127);
    for_each_scale(blocks, problem.scale_layout, [&](Index position, Index block, Index) {
      const int byte = kBytes[block] + static_cast<int>(random.below(2));
      scales[static_cast<std::size_t>(position)] =
          static_cast<std::uint8_t>(is_left ? byte : 254 - byte);
    });
    return coded_operand(run, problem, is_left, std::move(codes), std::move(scales));
  };
  GemmOperand left = make(true);
  GemmCall call = gemm_call(run, problem, std::move(left), make(false));
  perform(run, call);
  judge_gemm(run, problem, call, "GROUPED_GEMM-7c");
}

std::function<std::vector<Values>(Tier)> selection() {
  return [](Tier tier) {
    const auto axes = [](std::vector<std::string> products, std::vector<std::string> operands,
                         std::vector<std::string> layouts) {
      return std::vector<Axis>{{"product", std::move(products)},
                               {"operands", std::move(operands)},
                               {"layout", std::move(layouts)},
                               {"seed", {"1"}}};
    };
    const auto smoke = product(axes({"fprop"}, {"e4m3"}, {"packed"}));
    if (tier == Tier::smoke) return smoke;
    const auto all = product(axes(product_words(), {"e4m3", "e5m2"}, {"packed", "linear"}));
    const auto standard =
        without(pairwise(axes(product_words(), {"e4m3", "e5m2"}, {"packed", "linear"})), smoke);
    if (tier == Tier::standard) return standard;
    return without(without(all, smoke), standard);
  };
}

}  // namespace

void add_grouped_gemm_scales(Registry& registry) {
  const std::vector<Parameter> parameters = {
      product_parameter(),
      {"operands", {"e4m3", "e5m2"}, 0, 0, "format of the left one; the right one is e4m3"},
      {"layout", {"linear", "packed"}, 0, 0, "of the scales"},
      {"seed", {}, 0, std::int64_t{1} << 62, "of the random numbers"}};
  registry.add({"grouped_gemm.scale_walk",
                "Proves that every scale reaches its block and no other: single products that walk "
                "through the whole contraction.",
                {"GROUPED_GEMM-7b"},
                parameters,
                selection(),
                run_walk});
  registry.add({"grouped_gemm.extreme_scales",
                "Proves scale bytes at both ends of the range, subnormal factors included, in "
                "products that are ordinary numbers.",
                judged_clauses({"GROUPED_GEMM-7c"}), parameters, selection(), run_extreme});
}

}  // namespace dropless::conformance
