// SPDX-License-Identifier: Apache-2.0
// Shared vocabulary of the reference: indices, and values that carry their gauge.
//
// Every inexact result comes with a gauge: the sum of the absolute values of the terms that were
// added to make it. A rounding-error bound is a factor (length, unit roundoff) times the gauge, so
// the judge never has to know how a result came about. The reference computes in double, in a fixed
// order, without contraction; inputs are the exact doubles of the fp32 / bf16 / fp8 elements.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace dropless::reference {

using Index = std::int64_t;
using Doubles = std::vector<double>;
using Input = std::span<const double>;
using Indices = std::span<const Index>;
using Mask = std::span<const std::uint8_t>;  // empty: nothing is masked; otherwise 0 = masked

// A refused request (GENERAL-3). The contract wrapper turns it into DROPLESS_INVALID_ARGUMENT.
struct Refused : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

struct Gauged {
  Doubles value;
  Doubles gauge;  // same shape: sum of |terms|
};

}  // namespace dropless::reference
