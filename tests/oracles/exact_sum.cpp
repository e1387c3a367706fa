// SPDX-License-Identifier: Apache-2.0
// The superaccumulator: multi-word integer addition.
#include "tests/oracles/exact_sum.h"

#include <cmath>
#include <stdexcept>

namespace dropless::oracles {
namespace {

__extension__ typedef unsigned __int128 Wide;

// x = integer * 2^exponent with an odd integer, or 0.
struct Odd {
  std::uint64_t integer;
  int exponent;
};

Odd decompose(double magnitude) {
  if (!std::isfinite(magnitude)) throw std::range_error("not a finite number");
  if (magnitude == 0) return {0, 0};
  int exponent = 0;
  const double fraction = std::frexp(magnitude, &exponent);
  Odd result = {static_cast<std::uint64_t>(std::ldexp(fraction, 53)), exponent - 53};
  while (result.integer % 2 == 0) {
    result.integer /= 2;
    ++result.exponent;
  }
  return result;
}

}  // namespace

void ExactSum::add_product(double a, double b, double c) {
  Wide product = 1;
  int exponent = 0;
  for (double factor : {a, b, c}) {
    const Odd odd = decompose(std::fabs(factor));
    if (odd.integer == 0) return;
    if (product > (~static_cast<Wide>(0)) / odd.integer) {
      throw std::range_error("the product needs more than 128 bits");
    }
    product *= odd.integer;
    exponent += odd.exponent;
  }
  const int shift = exponent - kLastBit;
  if (shift < 0 || shift / 64 + 3 >= kWords) throw std::range_error("the product does not fit");

  std::array<std::uint64_t, kWords> term = {};
  const auto word = static_cast<std::size_t>(shift / 64);
  const int bits = shift % 64;
  term[word] = static_cast<std::uint64_t>(product << bits);
  term[word + 1] = static_cast<std::uint64_t>(product >> (64 - bits));
  // Two steps, because a shift by 128 would be undefined.
  term[word + 2] = static_cast<std::uint64_t>((product >> 64) >> (64 - bits));

  const bool negative = std::signbit(a) != (std::signbit(b) != std::signbit(c));
  if (negative) negate();
  Wide carry = 0;
  for (std::size_t i = 0; i < words_.size(); ++i) {
    carry += static_cast<Wide>(words_[i]) + term[i];
    words_[i] = static_cast<std::uint64_t>(carry);
    carry >>= 64;
  }
  if (negative) negate();
}

void ExactSum::negate() {
  Wide carry = 1;
  for (std::uint64_t& word : words_) {
    carry += static_cast<std::uint64_t>(~word);
    word = static_cast<std::uint64_t>(carry);
    carry >>= 64;
  }
}

bool ExactSum::is_zero() const {
  for (std::uint64_t word : words_) {
    if (word != 0) return false;
  }
  return true;
}

long double ExactSum::approximate() const {
  ExactSum magnitude = *this;
  const bool negative = (words_.back() >> 63) != 0;
  if (negative) magnitude.negate();
  long double result = 0;
  for (std::size_t i = words_.size(); i-- > 0;) {
    result += std::ldexp(static_cast<long double>(magnitude.words_[i]),
                         64 * static_cast<int>(i) + kLastBit);
  }
  return negative ? -result : result;
}

}  // namespace dropless::oracles
