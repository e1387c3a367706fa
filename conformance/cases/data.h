// SPDX-License-Identifier: Apache-2.0
// Data regimes: what the numbers are like, and so what a comparison can see.
//
//   exact       integers times powers of two that vary by row and by block: every partial sum is
//   exact
//               in fp32 for any order, so results are compared bit by bit
//   same_sign   all products positive: the rigorous bound is sharp
//   zero_mean   random signs with outlier columns: what training looks like
//   cancelling  pairs that nearly cancel: only the rigorous bound means anything
//   special     NaN, Inf, signed zeros, subnormals, limits
#pragma once

#include <dropless/contract.h>

#include <string_view>
#include <vector>

#include "conformance/cases/random.h"
#include "conformance/judge/buffers.h"

namespace dropless::conformance {

const std::vector<std::string>& data_regimes();

// rows x columns values exactly representable in `dtype`. `length` is the number of products that
// will be added up: exact data keeps sum|a||b| below 2^24 units, the others make RMS(out) about 1.
std::vector<double> matrix(std::string_view regime, dropless_dtype dtype, Index rows, Index columns,
                           Index length, Random& random);

// Random cotangent, RMS 1, representable in dtype; exact regime: small integers times 2^-k.
std::vector<double> cotangent(std::string_view regime, dropless_dtype dtype, Index rows,
                              Index columns, Random& random);

// Amplitudes vary log-uniformly from block to block along columns (binades: +-range), so that
// neighbouring MXFP8 scales differ.
std::vector<double> blockwise(dropless_dtype dtype, Index rows, Index columns, int range,
                              Random& random);

// Router logits [T,E] whose top-k is separated from the rest by a margin of at least `margin`
// between all neighbours in the order of selection; bf16-representable when asked.
std::vector<double> separated_logits(Index tokens, Index experts, double margin,
                                     dropless_dtype dtype, Random& random);

}  // namespace dropless::conformance
