// SPDX-License-Identifier: Apache-2.0
// What a case weighs: its shape letters, read from its parameters, and the work they stand for, so
// that a fuzz case stays small enough to run hundreds of them in a second.
#pragma once

#include <cstdint>
#include <string_view>

#include "conformance/cases/family.h"

namespace dropless::fuzz {

using conformance::CaseId;
using conformance::Family;
using conformance::Values;
using Index = std::int64_t;

// Nothing drawn is larger than the first, except where a family demands it, in one of fifty cases
// one size up to the second, and in one of two hundred one up to the third.
inline constexpr Index largest_size = 256, longest_size = 2100, beyond_16_bits = 33000;

// 1 where a case does not say; widths after division.
struct Shape {
  Index tokens = 1;  // or rows
  Index experts = 1, top_k = 1, hidden = 1, intermediate = 1;
};
Shape shape_of(const CaseId& id);

// About how many microseconds the suite takes for the case: what it draws, computes in double and
// judges, element by element.
double work_of(const CaseId& id);

// A parameter that counts rows, tokens, columns or the like.
bool is_size(std::string_view parameter);
// The parameter that says how many rows there are: "rows" or "tokens"; empty when there is none.
std::string_view rows_parameter(const CaseId& id);

// The value of a key; null when the case has none.
const std::string* find_value(const Values& values, std::string_view key);
// Of a parameter that is an integer; `otherwise` when the case has none.
Index integer_of(const CaseId& id, std::string_view key, Index otherwise);
void set_value(Values& values, std::string_view key, std::string value);

}  // namespace dropless::fuzz
