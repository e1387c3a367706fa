// SPDX-License-Identifier: Apache-2.0
// The statistical rules against those who are right: ideal stochastic rounding, legal accumulators.
#include "tests/tolerances/measure/statistics.h"

#include <dropless/contract.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "conformance/judge/rounding_statistics.h"
#include "tests/accumulators/accumulators.h"
#include "tests/tolerances/measure/gemm_data.h"
#include "tolerances/bounds.h"

namespace dropless::tolerances {
namespace {

// As many weights as the smallest case has.
constexpr std::size_t weights_of_a_case = 4096;

// Weights between bf16 values, of the size that the cases have.
std::vector<double> weights(std::mt19937_64& random) {
  std::uniform_real_distribution<double> size(0.5, 2);
  std::vector<double> values;
  for (std::size_t i = 0; i < weights_of_a_case; ++i) values.push_back(size(random));
  return values;
}

// Up with the probability of the fraction, every element by itself.
std::vector<double> rounded(const std::vector<double>& exact, std::mt19937_64& random) {
  std::uniform_real_distribution<double> uniform;
  std::vector<double> got;
  for (const double x : exact) {
    const auto [low, high] = conformance::bf16_neighbours(x);
    got.push_back(low == high || uniform(random) * (high - low) < x - low ? high : low);
  }
  return got;
}

FalseAlarms rounding_alarms(std::size_t which, double limit, std::int64_t runs) {
  std::mt19937_64 random(71 + which);
  FalseAlarms found;
  found.runs = runs;
  const std::vector<double> exact = weights(random);
  for (std::int64_t run = 0; run < runs; ++run) {
    const auto tests = conformance::rounding_tests(exact, rounded(exact, random));
    const double z = std::abs(tests.tests[which].z);
    found.alarms += z < limit ? 0 : 1;
    found.largest = std::max(found.largest, z / limit);
  }
  return found;
}

// OPTIMIZER-1i: two seeds agree in too many elements.
FalseAlarms seed_alarms(std::int64_t runs) {
  std::mt19937_64 random(81);
  FalseAlarms found;
  found.runs = runs;
  const std::vector<double> exact = weights(random);
  for (std::int64_t run = 0; run < runs; ++run) {
    const std::vector<double> one = rounded(exact, random), other = rounded(exact, random);
    std::size_t different = 0;
    for (std::size_t i = 0; i < one.size(); ++i) different += one[i] != other[i] ? 1 : 0;
    const std::size_t limit = one.size() / 16;
    found.alarms += different > limit ? 0 : 1;
    found.largest =
        std::max(found.largest, static_cast<double>(limit) / static_cast<double>(different));
  }
  return found;
}

// GROUPED_GEMM-6a on zero-mean data: a legal accumulator outside lambda.
struct Legal {
  const char* name;
  accumulators::Dot dot;
};

FalseAlarms gemm_alarms(models::Format format, int accumulator, const std::vector<Legal>& legal,
                        int length, std::int64_t runs) {
  std::mt19937_64 random(91);
  dropless_profile profile{};
  profile.accumulator_bf16 = profile.accumulator_mxfp8 = accumulator;
  const Operands operands = format == models::Format::bf16 ? Operands::bf16 : Operands::mxfp8;
  FalseAlarms found;
  for (std::int64_t run = 0; run < runs; ++run) {
    const models::Row row = models::make_row(format, models::Kind::zero_mean, length, random);
    const double y = row.exact();
    const double error = gemm_statistical(profile, operands, length, row.root(), y);
    for (const Legal& one : legal) {
      const double distance = std::abs(one.dot(row.a, row.b) - y);
      found.alarms += distance <= error ? 0 : 1;
      found.largest = std::max(found.largest, distance / error);
      ++found.runs;
    }
  }
  return found;
}

std::vector<Legal> nearest() {
  return {{"sequential", accumulators::sequential}, {"pairwise", accumulators::pairwise}};
}
std::vector<Legal> truncating() {
  return {{"16 products", [](accumulators::Values a, accumulators::Values b) {
             return accumulators::tensor_core(accumulators::hopper_bf16, a, b);
           }}};
}

// Both tails of the normal distribution.
double tails(double z) {
  return std::erfc(z / std::sqrt(2.0));
}

// P(X <= k) for X ~ Binomial(n, p), summed in logarithms.
double binomial_below(std::int64_t k, std::int64_t n, double p) {
  double sum = 0;
  for (std::int64_t i = 0; i <= k; ++i) {
    const auto x = static_cast<double>(i), m = static_cast<double>(n);
    sum += std::exp(std::lgamma(m + 1) - std::lgamma(x + 1) - std::lgamma(m - x + 1) +
                    x * std::log(p) + (m - x) * std::log1p(-p));
  }
  return sum;
}

// The p at which a falling function of it reaches `level`.
template <class F>
double solve(F falling, double level) {
  double low = 0, high = 1;
  for (int i = 0; i < 100; ++i) {
    const double middle = 0.5 * (low + high);
    (falling(middle) > level ? low : high) = middle;
  }
  return 0.5 * (low + high);
}

}  // namespace

std::vector<Rule> statistical_rules() {
  std::vector<Rule> rules;
  const char* names[] = {"OPTIMIZER-1h, mean rounding error",
                         "OPTIMIZER-1h, error against the fraction",
                         "OPTIMIZER-1h, errors of neighbours"};
  for (std::size_t which = 0; which < 3; ++which) {
    for (const double limit : {2.0, 3.0, conformance::rounding_z_limit}) {
      char text[32];
      std::snprintf(text, sizeof text, "|z| < %.1f", limit);
      rules.push_back({names[which], text, limit == conformance::rounding_z_limit, tails(limit),
                       [=](std::int64_t runs) { return rounding_alarms(which, limit, runs); }});
    }
  }
  rules.push_back({"OPTIMIZER-1i, another seed", "more than n/16 differ", true, 0, seed_alarms});
  for (const int length : {32, 512, 4096}) {
    const std::string k = ", K " + std::to_string(length);
    // Long sums cost more: fewer of them.
    const std::int64_t share = length == 4096 ? 8 : 1;
    rules.push_back(
        {"GROUPED_GEMM-6a, zero-mean bf16, fp32" + k, "lambda 4", true, -1, [=](std::int64_t runs) {
           return gemm_alarms(models::Format::bf16, DROPLESS_ACCUMULATOR_FP32, nearest(), length,
                              runs / share);
         }});
    rules.push_back({"GROUPED_GEMM-6a, zero-mean MXFP8, 25 bits" + k, "lambda 4", true, -1,
                     [=](std::int64_t runs) {
                       return gemm_alarms(models::Format::mxfp8,
                                          DROPLESS_ACCUMULATOR_TENSOR_CORE_25, truncating(), length,
                                          runs / share);
                     }});
  }
  return rules;
}

Confidence confidence_of(const FalseAlarms& found) {
  const std::int64_t k = found.alarms, n = found.runs;
  if (n == 0) return {0, 1};
  Confidence interval{0, 1};
  if (k > 0) {
    interval.low = solve([&](double p) { return binomial_below(k - 1, n, p); }, 0.975);
  }
  if (k < n) interval.high = solve([&](double p) { return binomial_below(k, n, p); }, 0.025);
  return interval;
}

}  // namespace dropless::tolerances
