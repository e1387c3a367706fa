// SPDX-License-Identifier: Apache-2.0
// Inputs at which conversions go wrong, and the comparison of a conversion with the table oracle.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "dropless/formats.h"
#include "tests/oracles/format_table.h"

namespace dropless::oracles {

// The oracle that belongs to a format of the header.
template <typename Format>
const FormatTable& table_of();
template <>
inline const FormatTable& table_of<Bf16>() {
  return bf16_table();
}
template <>
inline const FormatTable& table_of<Fp16>() {
  return fp16_table();
}
template <>
inline const FormatTable& table_of<E4m3>() {
  return e4m3_table();
}
template <>
inline const FormatTable& table_of<E5m2>() {
  return e5m2_table();
}
template <>
inline const FormatTable& table_of<E8m0>() {
  return e8m0_table();
}

// Names for GoogleTest's typed suites: Encode/bf16.EveryBf16Input.
struct FormatNames {
  template <typename Format>
  static std::string GetName(int) {  // the name is GoogleTest's
    return table_of<Format>().definition().name;
  }
};

// x and its neighbours in its own type, with both signs.
template <typename Real>
void add_with_neighbours(std::vector<Real>& to, Real x) {
  const Real infinity = std::numeric_limits<Real>::infinity();
  for (Real value : {x, std::nextafter(x, infinity), std::nextafter(x, -infinity)}) {
    to.push_back(value);
    to.push_back(-value);
  }
}

// Every value of the format, every midpoint between neighbours and the overflow threshold, each
// with the Real numbers next to it, plus zeros, the limits of Real, infinities and NaN.
template <typename Real>
std::vector<Real> boundary_inputs(const FormatTable& table) {
  std::vector<Real> inputs;
  const auto& entries = table.entries();
  for (std::size_t i = 0; i < entries.size(); ++i) {
    add_with_neighbours(inputs, static_cast<Real>(entries[i].value));
    if (i + 1 < entries.size()) {
      add_with_neighbours(inputs, static_cast<Real>((entries[i].value + entries[i + 1].value) / 2));
    }
  }
  add_with_neighbours(inputs, static_cast<Real>(table.overflow_threshold()));
  for (Real x : {std::numeric_limits<Real>::max(), std::numeric_limits<Real>::min(),
                 std::numeric_limits<Real>::denorm_min(), std::numeric_limits<Real>::infinity(),
                 std::numeric_limits<Real>::quiet_NaN()}) {
    add_with_neighbours(inputs, x);
  }
  // Half of the smallest value: the boundary to zero for a signed format.
  add_with_neighbours(inputs, static_cast<Real>(entries[entries[0].value == 0 ? 1 : 0].value / 2));
  return inputs;
}

// Number of inputs on which `convert` and the oracle differ; `first` describes the first of them.
template <typename Format, typename Real>
std::size_t count_differences(const std::vector<Real>& inputs, Overflow overflow,
                              const std::function<Format(Real)>& convert, std::string& first) {
  const FormatTable& table = table_of<Format>();
  std::size_t differences = 0;
  for (Real x : inputs) {
    const auto expected = table.encode(x, overflow == Overflow::saturate);
    const Format got = convert(x);
    const bool equal = expected.nan ? std::isnan(table.value(got.bits)) : got.bits == expected.code;
    if (!equal && differences++ == 0) {
      std::ostringstream text;
      text << table.definition().name << " of " << std::hexfloat << x << ": expected code "
           << (expected.nan ? std::string("NaN") : std::to_string(expected.code)) << ", got "
           << std::to_string(got.bits);
      first = text.str();
    }
  }
  return differences;
}

}  // namespace dropless::oracles
