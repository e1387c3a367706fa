// SPDX-License-Identifier: Apache-2.0
// Derivatives by five-point central differences in double: an independent opinion on a backward.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "reference/value.h"

namespace dropless::reference::testing {

// df/dx_i. The step 2^-9 leaves a truncation error of about step^4 / 30 = 2e-12 of the fifth
// derivative and a rounding error of about 1e-13 of f.
inline double difference(const std::function<double(const Doubles&)>& f, Doubles x, std::size_t i) {
  const double step = 0x1p-9, center = x[i];
  const auto value = [&](double offset) {
    x[i] = center + offset;
    return f(x);
  };
  return (8 * (value(step) - value(-step)) - (value(2 * step) - value(-2 * step))) / (12 * step);
}

// Every element of `gradient` within 1e-6 of its own size of the difference quotient; `floor` is
// the absolute error that the quotient itself may have.
inline void expect_gradient(const std::function<double(const Doubles&)>& f, const Doubles& x,
                            const Doubles& gradient, double floor) {
  ASSERT_EQ(gradient.size(), x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double expected = difference(f, x, i);
    EXPECT_NEAR(gradient[i], expected, 1e-6 * std::abs(expected) + floor) << "element " << i;
  }
}

// A gauge is at least |value|, and finite with it.
inline void expect_gauge(const Gauged& gauged) {
  ASSERT_EQ(gauged.gauge.size(), gauged.value.size());
  for (std::size_t i = 0; i < gauged.value.size(); ++i) {
    EXPECT_GE(gauged.gauge[i] * (1 + 1e-12), std::abs(gauged.value[i])) << "element " << i;
  }
}

}  // namespace dropless::reference::testing
