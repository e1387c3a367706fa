// SPDX-License-Identifier: Apache-2.0
// Seeded test data and finite differences for the tests of the reference.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

namespace dropless::test {

// The same numbers everywhere: std::mt19937_64 is fixed by the standard, distributions are not.
class RandomData {
 public:
  explicit RandomData(std::uint64_t seed) : engine_(seed) {}

  double uniform(double low, double high) {
    return low + (high - low) * static_cast<double>(engine_() >> 11) * 0x1p-53;
  }
  std::int64_t integer(std::int64_t low, std::int64_t high) {  // both included
    const auto span = static_cast<std::uint64_t>(high - low + 1);
    return low + static_cast<std::int64_t>(engine_() % span);
  }
  std::vector<double> uniforms(std::int64_t count, double low, double high) {
    std::vector<double> values(static_cast<std::size_t>(count));
    for (double& value : values) value = uniform(low, high);
    return values;
  }
  std::vector<double> integers(std::int64_t count, std::int64_t low, std::int64_t high) {
    std::vector<double> values(static_cast<std::size_t>(count));
    for (double& value : values) value = static_cast<double>(integer(low, high));
    return values;
  }
  // ids [tokens, top_k], distinct in a token; each is -1 with the given probability.
  std::vector<std::int64_t> ids(std::int64_t tokens, std::int64_t top_k, std::int64_t num_experts,
                                double missing = 0) {
    std::vector<std::int64_t> result;
    for (std::int64_t t = 0; t < tokens; ++t) {
      std::vector<std::int64_t> deck;
      for (std::int64_t e = 0; e < num_experts; ++e) deck.push_back(e);
      for (std::int64_t j = 0; j < top_k; ++j) {
        const auto pick = static_cast<std::size_t>(integer(j, num_experts - 1));
        std::swap(deck[static_cast<std::size_t>(j)], deck[pick]);
        result.push_back(uniform(0, 1) < missing ? -1 : deck[static_cast<std::size_t>(j)]);
      }
    }
    return result;
  }

 private:
  std::mt19937_64 engine_;
};

inline double inner_product(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// Derivative of `loss` with respect to `x`, which the loss reads: central differences of two widths
// extrapolated to width zero, error of fourth order. The step is small because clamps and relu2
// have kinks that no difference may straddle.
inline double finite_difference(const std::function<double()>& loss, double& x,
                                double step = 1e-4) {
  const double at = x;
  const auto slope = [&](double width) {
    x = at + width;
    const double above = loss();
    x = at - width;
    const double below = loss();
    x = at;
    return (above - below) / (2 * width);
  };
  return (4 * slope(step / 2) - slope(step)) / 3;
}

// Every element of `gradient` against finite differences of `loss` in `x`: relative 1e-6, and
// absolute 1e-9 for gradients near zero, whose differences are pure rounding.
inline void expect_gradient(const std::function<double()>& loss, std::vector<double>& x,
                            const std::vector<double>& gradient, const std::string& name) {
  ASSERT_EQ(x.size(), gradient.size()) << name;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double expected = finite_difference(loss, x[i]);
    EXPECT_NEAR(gradient[i], expected, 1e-6 * std::abs(expected) + 1e-9)
        << name << ", element " << i;
  }
}

}  // namespace dropless::test
