// SPDX-License-Identifier: Apache-2.0
// The rounded interval: the set of outputs that a correct computation with error at most E can
// store.
//
//   accept  iff  fl(y - E) <= got <= fl(y + E),  fl = round to nearest even in the output format
//
// Rounding is monotone, so an exact result within E of y rounds into the interval, and nothing else
// can. E = 0 demands the one correctly rounded value. +0 and -0 are equal (GENERAL-2).
#pragma once

#include <dropless/contract.h>

namespace dropless::tolerances {

struct Interval {
  double low, high;
};

// y rounded to nearest even in `dtype` (fp32, bf16, fp16, e4m3, e5m2). Beyond the largest value:
// fp8 saturates, infinities included (MXFP8-3), the others give an infinity.
double round_to(dropless_dtype dtype, double y);

// error >= 0, +inf allowed (then everything but NaN is inside). A NaN y gives a NaN interval that
// only NaN satisfies. For error > 0 both ends are widened by one ulp of double, so that the
// rounding of y - E in double never excludes a legal value. Throws std::logic_error for a NaN or
// negative error: that is a mistake of the suite, not of what it judges.
Interval rounded_interval(dropless_dtype dtype, double y, double error);
bool contains(const Interval& interval, double got);

// Distance from got to the interval in units of the error (0 inside; +inf for a NaN on one side
// only, or outside an interval of error 0); for messages only.
double excess(const Interval& interval, double got, double error);

}  // namespace dropless::tolerances
