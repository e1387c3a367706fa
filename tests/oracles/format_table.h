// SPDX-License-Identifier: Apache-2.0
// A second opinion on every value format: all codes enumerated from the definition of the format.
//
// Nothing here is shared with include/dropless/formats: a code's value comes from its sign,
// exponent and mantissa by division and ldexp, and a number is rounded by searching the sorted
// table of all values. long double (at least 64 significant bits) holds every value, every midpoint
// between two neighbours and every double exactly, so all comparisons are exact.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dropless::oracles {

// Which codes are not finite numbers.
enum class Specials {
  ieee,         // exponent all ones: infinity for mantissa 0, otherwise NaN
  only_nan,     // exponent and mantissa all ones: NaN; there is no infinity (OCP E4M3)
  scale_format  // no sign, no mantissa; the last code is NaN (OCP E8M0)
};

struct FormatDefinition {
  std::string name;
  int exponent_bits, mantissa_bits, bias;
  Specials specials;
};

const FormatDefinition& bf16_definition();
const FormatDefinition& fp16_definition();
const FormatDefinition& e4m3_definition();
const FormatDefinition& e5m2_definition();
const FormatDefinition& e8m0_definition();

class FormatTable {
 public:
  explicit FormatTable(FormatDefinition definition);

  [[nodiscard]] const FormatDefinition& definition() const { return definition_; }
  [[nodiscard]] std::uint32_t code_count() const;  // signs included
  [[nodiscard]] long double value(std::uint32_t code) const;

  // The code nearest to x, ties to the even code (block scale: to the larger value). An expected
  // NaN is any NaN code: `nan` is set.
  struct Encoded {
    std::uint32_t code;
    bool nan;
  };
  [[nodiscard]] Encoded encode(long double x, bool saturate) const;

  // Finite non-negative values in ascending order, with their codes.
  struct Entry {
    long double value;
    std::uint32_t code;
  };
  [[nodiscard]] const std::vector<Entry>& entries() const { return entries_; }
  // Where rounding overflows: halfway between the largest value and its would-be successor.
  [[nodiscard]] long double overflow_threshold() const;

 private:
  [[nodiscard]] bool ties_go_up(const Entry& lower) const;
  [[nodiscard]] bool rounds_beyond_the_largest(long double magnitude) const;

  FormatDefinition definition_;
  std::vector<Entry> entries_;
};

const FormatTable& bf16_table();
const FormatTable& fp16_table();
const FormatTable& e4m3_table();
const FormatTable& e5m2_table();
const FormatTable& e8m0_table();

}  // namespace dropless::oracles
