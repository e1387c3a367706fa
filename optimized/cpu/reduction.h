// SPDX-License-Identifier: Apache-2.0
// Sums over tokens that come out the same for any number of threads: partial sums of fixed ranges
// of tokens, added up in their order.
#pragma once

#include "optimized/cpu/scales.h"

namespace dropless::cpu {

// body(begin, end, sums[width]) adds its tokens to sums, which begin at zero. At most 64 ranges, a
// number that depends on the tokens and the bytes of a token alone.
template <class Body>
std::vector<double> reduce_tokens(int threads, Index tokens, Index token_bytes, Index width,
                                  const Body& body) {
  constexpr Index most_ranges = 64;
  const Index grain = std::max(rows_per_task(token_bytes), ceil_div(tokens, most_ranges));
  const Index ranges = ceil_div(tokens, grain);
  std::vector<double> partial(static_cast<std::size_t>(ranges * width), 0.0);
  parallel_for(threads, ranges, [&](Index range) {
    body(range * grain, std::min(tokens, (range + 1) * grain), partial.data() + range * width);
  });
  std::vector<double> sums(static_cast<std::size_t>(width), 0.0);
  for (Index range = 0; range < ranges; ++range) {
    for (Index i = 0; i < width; ++i) {
      sums[static_cast<std::size_t>(i)] += partial[static_cast<std::size_t>(range * width + i)];
    }
  }
  return sums;
}

}  // namespace dropless::cpu
