// SPDX-License-Identifier: Apache-2.0
// Data regimes: generators of operands, cotangents and router logits.
#include "conformance/cases/data.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

#include "tolerances/interval.h"

namespace dropless::conformance {
namespace {

constexpr Index block = 32;  // MXFP8-1: amplitudes vary at least as fast as scales can

std::size_t cells(Index rows, Index columns) {
  return static_cast<std::size_t>(rows * columns);
}

void round_all(std::vector<double>& values, dropless_dtype dtype) {
  for (double& value : values) value = tolerances::round_to(dtype, value);
}

// 8-bit codes come with block scales that carry the amplitude, so they keep RMS 1 themselves.
double amplitude(dropless_dtype dtype, double wanted) {
  return dtype == DROPLESS_E4M3 || dtype == DROPLESS_E5M2 ? 1.0 : wanted;
}

double nonzero(Index most, Random& random) {
  const auto magnitude = static_cast<double>(random.between(1, most));
  return random.chance(0.5) ? magnitude : -magnitude;
}

// Integers of at most `most` times 2^-1, 2^0 or 2^1, drawn per row and block of columns. In units
// of 2^-1 an element is at most 4 * most, so length * (4 * most)^2 <= 2^24 keeps every partial sum
// of products an integer below 2^24 of units of 2^-2: exact in fp32 in any order (GENERAL-1).
std::vector<double> exact(dropless_dtype dtype, Index rows, Index columns, Index length,
                          Random& random) {
  const double room = std::sqrt(0x1p24 / static_cast<double>(std::max<Index>(length, 1))) / 4;
  const Index widest = dtype == DROPLESS_E5M2 ? 7 : 15;  // 3 or 4 significant bits
  const Index most = std::clamp<Index>(static_cast<Index>(room), 1, widest);
  const bool scales_vary = room >= 1;
  std::vector<double> out(cells(rows, columns));
  for (Index r = 0; r < rows; ++r) {
    double scale = 1;
    for (Index c = 0; c < columns; ++c) {
      if (c % block == 0 && scales_vary)
        scale = std::ldexp(1.0, static_cast<int>(random.between(-1, 1)));
      out[static_cast<std::size_t>(r * columns + c)] = nonzero(most, random) * scale;
    }
  }
  return out;
}

std::vector<double> same_sign(Index rows, Index columns, double scale, Random& random) {
  std::vector<double> out(cells(rows, columns));
  for (double& value : out) value = scale * (0.25 + 1.5 * random.uniform());
  return out;
}

// One column in 64 is an outlier, 8 to 24 times as large, as in trained activations.
std::vector<double> zero_mean(Index rows, Index columns, double scale, Random& random) {
  std::vector<double> gain(static_cast<std::size_t>(columns), 1.0);
  double power = 0;
  for (double& g : gain) {
    if (random.chance(1.0 / 64)) g = 8 + 16 * random.uniform();
    power += g * g;
  }
  const double normalised =
      columns == 0 ? 0 : scale / std::sqrt(power / static_cast<double>(columns));
  std::vector<double> out(cells(rows, columns));
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = normalised * gain[i % gain.size()] * random.normal();
  }
  return out;
}

// Sign (-1)^(row * column) and magnitudes that are nearly equal in 2 x 2 tiles: along either axis
// the products of an even with an odd line cancel pair by pair, whichever operand they belong to.
std::vector<double> cancelling(Index rows, Index columns, double scale, Random& random) {
  const Index tiles = (columns + 1) / 2;
  std::vector<double> magnitude(static_cast<std::size_t>(tiles));
  std::vector<double> out(cells(rows, columns));
  for (Index r = 0; r < rows; ++r) {
    if (r % 2 == 0) {
      for (double& m : magnitude) m = scale * std::exp2(2 * random.uniform() - 1);
    }
    for (Index c = 0; c < columns; ++c) {
      const double near = 1 + 0x1p-5 * random.uniform();
      const double sign = (r * c) % 2 == 0 ? 1 : -1;
      out[static_cast<std::size_t>(r * columns + c)] =
          sign * near * magnitude[static_cast<std::size_t>(c / 2)];
    }
  }
  return out;
}

struct Limits {
  double largest, smallest_normal, smallest;
  bool infinity;
};

Limits limits_of(dropless_dtype dtype) {
  switch (dtype) {
    case DROPLESS_BF16:
      return {0x1.fep127, 0x1p-126, 0x1p-133, true};
    case DROPLESS_FP16:
      return {65504, 0x1p-14, 0x1p-24, true};
    case DROPLESS_E4M3:
      return {448, 0x1p-6, 0x1p-9, false};
    case DROPLESS_E5M2:
      return {57344, 0x1p-14, 0x1p-16, true};
    default:
      return {0x1.fffffep127, 0x1p-126, 0x1p-149, true};
  }
}

std::vector<double> special(dropless_dtype dtype, std::vector<double> values, Random& random) {
  const Limits limits = limits_of(dtype);
  const double infinity = std::numeric_limits<double>::infinity();
  const std::array<double, 8> list = {std::numeric_limits<double>::quiet_NaN(),
                                      limits.infinity ? infinity : limits.largest,
                                      limits.infinity ? -infinity : -limits.largest,
                                      0.0,
                                      -0.0,
                                      limits.smallest,
                                      limits.smallest_normal,
                                      limits.largest};
  for (double& value : values) {
    if (!random.chance(1.0 / 16)) continue;
    value = list[static_cast<std::size_t>(random.below(8))];
  }
  return values;
}

}  // namespace

const std::vector<std::string>& data_regimes() {
  static const std::vector<std::string> names = {"exact", "same_sign", "zero_mean", "cancelling",
                                                 "special"};
  return names;
}

std::vector<double> matrix(std::string_view regime, dropless_dtype dtype, Index rows, Index columns,
                           Index length, Random& random) {
  const auto terms = static_cast<double>(std::max<Index>(length, 1));
  // Same-sign terms add up to length * E[a] * E[b], independent ones to sqrt(length) * rms * rms.
  const double coherent = amplitude(dtype, 1 / std::sqrt(terms));
  const double independent = amplitude(dtype, 1 / std::sqrt(std::sqrt(terms)));
  std::vector<double> out;
  if (regime == "exact") {
    out = exact(dtype, rows, columns, length, random);
  } else if (regime == "same_sign") {
    out = same_sign(rows, columns, coherent, random);
  } else if (regime == "zero_mean") {
    out = zero_mean(rows, columns, independent, random);
  } else if (regime == "cancelling") {
    out = cancelling(rows, columns, coherent, random);
  } else if (regime == "special") {
    out = special(dtype, zero_mean(rows, columns, independent, random), random);
  } else {
    throw std::logic_error("no data regime '" + std::string(regime) + "'");
  }
  round_all(out, dtype);
  return out;
}

std::vector<double> cotangent(std::string_view regime, dropless_dtype dtype, Index rows,
                              Index columns, Random& random) {
  std::vector<double> out(cells(rows, columns));
  if (regime == "exact") {
    for (Index r = 0; r < rows; ++r) {
      const double scale = std::ldexp(1.0, static_cast<int>(random.between(-3, -1)));
      for (Index c = 0; c < columns; ++c) {
        out[static_cast<std::size_t>(r * columns + c)] = nonzero(7, random) * scale;
      }
    }
    return out;
  }
  for (double& value : out) value = random.normal();
  round_all(out, dtype);
  return out;
}

std::vector<double> blockwise(dropless_dtype dtype, Index rows, Index columns, int range,
                              Random& random) {
  std::vector<double> out(cells(rows, columns));
  for (Index r = 0; r < rows; ++r) {
    double scale = 1;
    for (Index c = 0; c < columns; ++c) {
      if (c % block == 0) scale = std::exp2(range * (2 * random.uniform() - 1));
      const double magnitude = scale * (0.5 + random.uniform());
      out[static_cast<std::size_t>(r * columns + c)] = random.chance(0.5) ? magnitude : -magnitude;
    }
  }
  round_all(out, dtype);
  return out;
}

std::vector<double> separated_logits(Index tokens, Index experts, double margin,
                                     dropless_dtype dtype, Random& random) {
  std::vector<double> out(cells(tokens, experts));
  for (Index t = 0; t < tokens; ++t) {
    const std::vector<Index> order = random.permutation(experts);
    double value = -0.75 * margin * static_cast<double>(experts);  // the ladder is centred on zero
    double below = -std::numeric_limits<double>::infinity();
    for (const Index e : order) {
      value += margin * (1 + random.uniform());
      double rounded = tolerances::round_to(dtype, value);
      while (rounded - below < margin) {  // a coarse format may have rounded the step away
        value += margin / 2;
        rounded = tolerances::round_to(dtype, value);
      }
      out[static_cast<std::size_t>(t * experts + e)] = below = rounded;
    }
  }
  return out;
}

}  // namespace dropless::conformance
