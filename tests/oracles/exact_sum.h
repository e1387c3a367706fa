// SPDX-License-Identifier: Apache-2.0
// A superaccumulator: sums of products of doubles without any rounding.
//
// A fixed-point integer of 896 bits whose last bit is worth 2^-448. Products of three fp32 numbers
// (down to 2^-447) fit, and so does the sum of 2^50 of the largest products of two fp32 numbers; a
// term that does not fit is refused, never rounded.
#pragma once

#include <array>
#include <cstdint>

namespace dropless::oracles {

class ExactSum {
 public:
  // Adds a * b * c exactly. Throws std::range_error if the product does not fit, or is not finite.
  void add_product(double a, double b, double c = 1.0);
  void add(double a) { add_product(a, 1.0); }

  [[nodiscard]] bool is_zero() const;
  // The value, with a relative error below 2^-60.
  [[nodiscard]] long double approximate() const;

 private:
  static constexpr int kWords = 14;
  static constexpr int kLastBit = -448;
  std::array<std::uint64_t, kWords> words_ = {};  // two's complement, least significant first

  void negate();
};

}  // namespace dropless::oracles
