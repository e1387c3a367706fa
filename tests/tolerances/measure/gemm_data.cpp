// SPDX-License-Identifier: Apache-2.0
// Operand pairs for the gate of the GEMM bounds.
#include "tests/tolerances/measure/gemm_data.h"

#include <algorithm>
#include <cmath>

#include "tolerances/interval.h"

namespace dropless::tolerances::models {

namespace {

constexpr int block = 32;

double uniform(std::mt19937_64& random, double low, double high) {
  return std::uniform_real_distribution<double>(low, high)(random);
}

double raw_value(Kind kind, std::mt19937_64& random) {
  switch (kind) {
    case Kind::exact:  // integers: every partial sum is exact in fp32 and in 25 bits
      return std::floor(uniform(random, -8, 9));
    case Kind::same_sign:
    case Kind::one_hot:
      return std::exp2(uniform(random, -1, 1));
    default:
      return std::normal_distribution<double>()(random);
  }
}

dropless_dtype plain_dtype(Format format) {
  return format == Format::fp32 ? DROPLESS_FP32 : DROPLESS_BF16;
}

// Values code * scale with one power-of-two scale per block; `unquantised` keeps what was rounded.
void quantise(std::mt19937_64& random, Doubles& values, Doubles* unquantised, Doubles* scales) {
  for (std::size_t i = 0; i < values.size(); i += block) {
    const double scale = std::exp2(std::floor(uniform(random, -2, 3)));
    if (scales != nullptr) scales->push_back(scale);
    for (std::size_t j = i; j < std::min(values.size(), i + block); ++j) {
      if (unquantised != nullptr) unquantised->push_back(values[j] * scale);
      values[j] = round_to(DROPLESS_E4M3, values[j]) * scale;
    }
  }
}

}  // namespace

double Row::exact() const {
  long double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += static_cast<long double>(a[i]) * b[i];
  return static_cast<double>(sum);
}

double Row::gauge() const {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += std::abs(a[i] * b[i]);
  return sum;
}

double Row::root() const {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i] * a[i] * b[i];
  return std::sqrt(sum);
}

Row make_row(Format format, Kind kind, int length, std::mt19937_64& random) {
  Row row;
  for (int i = 0; i < length; ++i) {
    row.a.push_back(raw_value(kind, random));
    row.b.push_back(raw_value(kind, random));
  }
  if (format == Format::mxfp8) {
    quantise(random, row.a, &row.unquantised, &row.scales);
    quantise(random, row.b, nullptr, nullptr);
  } else {
    for (double& x : row.a) x = round_to(plain_dtype(format), x);
    for (double& x : row.b) x = round_to(plain_dtype(format), x);
  }
  if (kind == Kind::cancelling) {
    // Large terms in pairs of opposite sign: the sum is what the small ones leave.
    for (std::size_t i = 0; i + 1 < row.a.size(); i += 2) {
      row.a[i] *= 1024;
      row.a[i + 1] = -row.a[i];
      if (i % 8 != 0) row.b[i + 1] = row.b[i];
    }
  }
  if (kind == Kind::one_hot) {
    for (std::size_t i = 0; i + 1 < row.a.size(); ++i) row.a[i] = 0;
  }
  return row;
}

Row worst_for_nearest(int length) {
  Row row;
  for (int i = 0; i < length; ++i) {
    row.a.push_back(i == 0 ? 1.0 : 0x1.fep-25);  // half an ulp of 1 is 2^-24
    row.b.push_back(1.0);
  }
  return row;
}

Row worst_for_truncation(int length, int chunk, int aligned_bits, int result_bits) {
  // Addends of 1.99 units of the aligner: each is cut to one unit. So many of them are non-zero
  // that the sum of a step ends just below a multiple of the result's spacing, and is cut again.
  Row row;
  const int ratio = 1 << (aligned_bits - result_bits);
  for (int i = 0; i < length; ++i) {
    const int in_chunk = i % chunk;
    const int used = chunk - chunk % ratio - 1;
    const double addend = in_chunk < used ? std::ldexp(0x1.fep0, -aligned_bits) : 0.0;
    row.a.push_back(i == 0 ? 1.0 : addend);
    row.b.push_back(1.0);
  }
  return row;
}

}  // namespace dropless::tolerances::models
