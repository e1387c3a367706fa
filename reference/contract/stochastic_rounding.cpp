// SPDX-License-Identifier: Apache-2.0
// Stochastic rounding to bf16 by a counter (OPTIMIZER-1).
#include "reference/contract/stochastic_rounding.h"

#include <dropless/formats/bf16.h>

#include <cmath>

namespace dropless::reference {
namespace {

// The finaliser of SplitMix64 (Steele, Lea, Flood 2014): a bijection that mixes every bit.
std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15u;

}  // namespace

double counter_uniform(std::uint64_t seed, std::uint64_t step, std::uint64_t element) {
  const std::uint64_t of_seed = mix(seed + kGolden);
  const std::uint64_t of_step = mix(of_seed + step * kGolden);
  const std::uint64_t bits = mix(of_step + element * kGolden);
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

std::uint16_t round_stochastically(double x, double uniform) {
  const Bf16 nearest = Bf16::from_double(x);
  if (!nearest.is_finite() || nearest.to_double() == x) return nearest.bits;
  const double magnitude = std::abs(x);
  // Codes of equal sign are ordered by magnitude.
  std::uint16_t low = nearest.bits;
  if (std::abs(nearest.to_double()) > magnitude) --low;
  const std::uint16_t high = static_cast<std::uint16_t>(low + 1);
  if (!Bf16::from_bits(high).is_finite()) return nearest.bits;
  const double low_value = std::abs(Bf16::from_bits(low).to_double());
  const double high_value = std::abs(Bf16::from_bits(high).to_double());
  const double fraction = (magnitude - low_value) / (high_value - low_value);
  return uniform < fraction ? high : low;
}

}  // namespace dropless::reference
