// SPDX-License-Identifier: Apache-2.0
// Data that hide faults are not trusted: real families, run as ever, but fed with numbers that are
// all alike, too small, or without the ties that they are about. Each case passes on its own data.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "conformance/cases/case_run.h"
#include "conformance/cases/replaced_data.h"
#include "reference/implementation.h"

namespace dropless::conformance {
namespace {

Verdict verdict_of(const std::string& text) {
  const CaseId id = registry().resolve(text);
  return run_case(reference::implementation(), *registry().find(id.family), id);
}

// The first smoke case of a family that has all of the given values.
std::string first_case(const std::string& family, const Values& wanted) {
  for (const Tier tier : {Tier::smoke, Tier::standard, Tier::full}) {
    for (const Values& values : registry().find(family)->select(tier)) {
      const bool fits = std::all_of(wanted.begin(), wanted.end(), [&](const auto& pair) {
        return std::find(values.begin(), values.end(), pair) != values.end();
      });
      if (fits) return CaseId{family, values}.text();
    }
  }
  throw std::logic_error("no such case of " + family);
}

// Every requirement that the data of the case do not meet.
std::vector<std::string> complaints(const std::string& text) {
  const CaseId id = registry().resolve(text);
  const Family& family = *registry().find(id.family);
  CaseRun run(reference::implementation(), family, id, {});
  family.run(run);
  return run.judge().distrust();
}

void expect_mistrust(const std::string& id, const Replacement& replacement,
                     const std::string& reason) {
  const Verdict own = verdict_of(id);
  EXPECT_EQ(own.status, Status::pass) << id << ": " << own.reason;
  const ReplacedData replaced(replacement);
  EXPECT_EQ(verdict_of(id).status, Status::mistrusted) << id;
  std::string all;
  for (const std::string& complaint : complaints(id)) all += complaint + "; ";
  EXPECT_NE(all.find(reason), std::string::npos) << id << ": " << all;
}

// ---- scales that are all equal

TEST(Mistrusted, EqualScalesOfAnOperand) {
  const std::string id = first_case("grouped_gemm.mxfp8", {{"product", "fprop"}});
  expect_mistrust(id, {.stream = "right"}, "an operand has at least 3 scales");
}

TEST(Mistrusted, EqualScalesThatAreDequantised) {
  expect_mistrust(first_case("mxfp8.dequantize", {}), {.stream = "codes"}, "distinct");
}

TEST(Mistrusted, EqualScalesThatAreQuantised) {
  expect_mistrust(first_case("mxfp8.quantize", {{"directions", "both"}}), {.stream = "values"},
                  "scale");
}

// ---- no ties, and ties where there must be none

TEST(Mistrusted, NoTiesWhereTiesAreJudged) {
  double step = 0;
  const auto no_ties = [&](std::span<double> row) {
    for (double& l : row) l = (step += 0.015625);
  };
  expect_mistrust(first_case("routing.ties", {{"pattern", "boundary"}, {"dtype", "fp32"}}),
                  {.logits = no_ties}, "ties at the edge of the selection");
}

TEST(Mistrusted, NoTiesOfRounding) {
  expect_mistrust(first_case("grouped_gemm.rounding", {{"product", "fprop"}}), {.stream = "ties"},
                  "ties of bf16");
}

TEST(Mistrusted, TiesWhereOneAnswerIsRight) {
  expect_mistrust(first_case("routing.model", {{"model", "mixtral-8x7b"}}),
                  {.logits = [](std::span<double> row) { std::fill(row.begin(), row.end(), 0.5); }},
                  "every row has one right answer");
}

// ---- cotangents that are all equal

TEST(Mistrusted, UniformCotangentsOfProducts) {
  for (const char* product : {"dgrad", "wgrad"}) {
    const std::string id =
        first_case(std::string("grouped_gemm.") + product, {{"data", "zero_mean"}});
    expect_mistrust(id, {.stream = "left", .uniform = 0.625}, "neither operand is uniform");
  }
}

TEST(Mistrusted, UniformCotangentsOfAnActivation) {
  expect_mistrust(first_case("activation.backward", {}), {.stream = "dh", .uniform = 0.6},
                  "the cotangent is not uniform");
}

TEST(Mistrusted, UniformCotangentsOfPermutation) {
  expect_mistrust(first_case("permutation.permute_backward", {{"data", "zero_mean"}}),
                  {.stream = "d_rows"}, "the cotangent is not uniform");
  expect_mistrust(first_case("permutation.unpermute_backward", {{"data", "zero_mean"}}),
                  {.stream = "data"}, "the cotangent is not uniform");
}

TEST(Mistrusted, UniformCotangentOfALayer) {
  for (const char* family : {"layer.single_expert", "layer.strides"}) {
    expect_mistrust(first_case(family, {}), {.stream = "d_y", .uniform = 0.6},
                    "the cotangent is not uniform");
  }
}

// ---- gradients that are zero

// What a public router test compared: the gradient of a sum of normalised weights.
TEST(Mistrusted, ZeroGradientOfARouter) {
  Index calls = 0;
  const auto rows = [&](std::span<double> row) {
    ++calls;
    for (std::size_t e = 0; e < row.size(); ++e) {
      row[e] = static_cast<double>((e * 7 + static_cast<std::size_t>(calls)) % row.size()) * 0.125;
    }
  };
  const std::string id =
      first_case("routing.backward", {{"eps", "tiny"}, {"renormalize", "yes"}, {"scale", "no"}});
  expect_mistrust(id, {.stream = "data", .logits = rows}, "exceed their bounds");
}

TEST(Mistrusted, ZeroGradientOfAnActivation) {
  expect_mistrust(first_case("activation.backward", {}), {.stream = "dh", .uniform = 0.5},
                  "few outputs are zero");
}

// ---- outputs whose RMS is far from 1

TEST(Mistrusted, TinyOutputsOfAProduct) {
  const Replacement tiny = {.stream = "right", .uniform = 0.5 + 0x1p-14};
  const auto small = [&](const char* product, const char* setting, const char* none) {
    const std::string family = std::string("grouped_gemm.") + product;
    expect_mistrust(first_case(family, {{"data", "zero_mean"}, {setting, none}}), tiny,
                    "RMS of the outputs is near 1");
  };
  small("fprop", "bias", "none");
  small("dgrad", "data", "zero_mean");
  small("wgrad", "accumulate", "none");
}

TEST(Mistrusted, TinyOutputsOfAnActivation) {
  expect_mistrust(first_case("activation.forward", {{"model", "mixtral-8x7b"}}),
                  {.stream = "x", .uniform = 0.5 + 0x1p-10}, "RMS of the outputs is near 1");
}

// ---- nothing that is compared

TEST(Mistrusted, NothingIsCompared) {
  Family family = *registry().find("mxfp8.lucky_amax");
  family.run = [](CaseRun& run) {
    run.judge().bounded("MXFP8-2", "none", run.buffers().output("none", DROPLESS_FP32, {0}),
                        std::vector<double>{}, std::vector<double>{});
  };
  const Verdict verdict = run_case(reference::implementation(), family, {family.name, {}});
  EXPECT_EQ(verdict.status, Status::mistrusted);
  EXPECT_EQ(verdict.reason, "nothing was compared");
}

// A bound that is infinite everywhere judges nothing, so it counts nothing.
TEST(Mistrusted, BoundsThatAreInfiniteCompareNothing) {
  Family family = *registry().find("mxfp8.lucky_amax");
  family.run = [](CaseRun& run) {
    const Buffer& y = run.buffers().output("y", DROPLESS_FP32, {64});
    run.judge().bounded("MXFP8-2", "y", y, std::vector<double>(64, 1.0),
                        std::vector<double>{std::numeric_limits<double>::infinity()});
  };
  const Verdict verdict = run_case(reference::implementation(), family, {family.name, {}});
  EXPECT_EQ(verdict.status, Status::mistrusted);
}

}  // namespace
}  // namespace dropless::conformance
