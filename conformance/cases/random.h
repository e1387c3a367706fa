// SPDX-License-Identifier: Apache-2.0
// Counter-based random numbers: a pure function of (key, counter), the same on every machine. No
// standard distribution is used, since their output differs between libraries.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace dropless::conformance {

class Random {
 public:
  explicit Random(std::uint64_t key) : key_(key) {}
  static std::uint64_t key_of(std::string_view text);  // 64-bit hash

  std::uint64_t bits();
  std::int64_t below(std::int64_t limit);                       // uniform in [0, limit), limit >= 1
  std::int64_t between(std::int64_t least, std::int64_t most);  // inclusive
  double uniform();                                             // [0, 1), 53 bits
  double normal();                                              // sum of 12 uniforms minus 6
  bool chance(double probability);
  std::vector<std::int64_t> permutation(std::int64_t n);

 private:
  std::uint64_t key_;
  std::uint64_t counter_ = 0;
};

}  // namespace dropless::conformance
