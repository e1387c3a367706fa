// SPDX-License-Identifier: Apache-2.0
// Counter-based random numbers from two rounds of a 64-bit mixer.
#include "conformance/cases/random.h"

#include <numeric>
#include <utility>

#include "conformance/cases/replaced_data.h"

namespace dropless::conformance {
namespace {

// The finaliser of SplitMix64 (Steele, Lea, Flood 2014, with Stafford's constants).
std::uint64_t mix(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

constexpr std::uint64_t golden = 0x9e3779b97f4a7c15ULL;  // odd, 2^64 / golden ratio

std::uint64_t mixed(std::uint64_t key) {
  return mix(key ^ golden);
}

// Two rounds, with the key entering both: streams of related keys are not shifts of each other.
std::uint64_t drawn(std::uint64_t key, std::uint64_t mixed_key, std::uint64_t counter) {
  return mix(mix(counter * golden + key) + mixed_key);
}

double unit(std::uint64_t bits) {
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

}  // namespace

std::uint64_t Random::key_of(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;  // FNV-1a, then mixed: its high bits are weak
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  }
  return mix(hash + golden);
}

std::uint64_t Random::bits() {
  if (key_ == 0) {  // a stream that a test has frozen
    const Replacement* replacement = ReplacedData::of_thread();
    if (replacement != nullptr) {
      return static_cast<std::uint64_t>(replacement->uniform * 0x1p53) << 11;
    }
  }
  return drawn(key_, mixed(key_), ++counter_);
}

std::int64_t Random::below(std::int64_t limit) {
  const auto range = static_cast<std::uint64_t>(limit);
  const std::uint64_t threshold = (0 - range) % range;  // 2^64 mod range: rejects the uneven rest
  std::uint64_t number = bits();
  while (number < threshold) number = bits();
  return static_cast<std::int64_t>(number % range);
}

std::int64_t Random::between(std::int64_t least, std::int64_t most) {
  return least + below(most - least + 1);
}

double Random::uniform() {
  return unit(bits());
}

double Random::normal() {
  double sum = -6;  // Irwin-Hall: variance 12 * 1/12 = 1, needs no libm
  const std::uint64_t mixed_key = mixed(key_);
  for (int i = 0; i < 12; ++i) {
    sum += key_ == 0 ? uniform() : unit(drawn(key_, mixed_key, ++counter_));
  }
  return sum;
}

bool Random::chance(double probability) {
  return uniform() < probability;
}

std::vector<std::int64_t> Random::permutation(std::int64_t n) {
  std::vector<std::int64_t> out(static_cast<std::size_t>(n));
  std::iota(out.begin(), out.end(), 0);
  for (std::int64_t i = n - 1; i > 0; --i) {
    std::swap(out[static_cast<std::size_t>(i)], out[static_cast<std::size_t>(below(i + 1))]);
  }
  return out;
}

}  // namespace dropless::conformance
