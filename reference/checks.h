// SPDX-License-Identifier: Apache-2.0
// Small helpers of the reference's sources: positions in vectors and refusal of wrong sizes.
#pragma once

#include <string>

#include "reference/value.h"

namespace dropless::reference {

// A non-negative index as a position in a vector.
constexpr std::size_t at(Index index) {
  return static_cast<std::size_t>(index);
}

constexpr Index ceil_div(Index value, Index divisor) {
  return (value + divisor - 1) / divisor;
}

// Throws Refused unless `have` is `want` (GENERAL-3: shapes are always checked).
inline void check_size(std::size_t have, Index want, const char* what) {
  if (want < 0 || have != at(want)) {
    throw Refused(std::string(what) + " has " + std::to_string(have) + " elements, expected " +
                  std::to_string(want));
  }
}

// Buffers of rows may be longer than the rows in use (PERMUTATION-8), never shorter.
inline void check_at_least(std::size_t have, Index want, const char* what) {
  if (want < 0 || have < at(want)) {
    throw Refused(std::string(what) + " has " + std::to_string(have) +
                  " elements, needed at least " + std::to_string(want));
  }
}

}  // namespace dropless::reference
