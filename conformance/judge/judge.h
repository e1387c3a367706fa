// SPDX-License-Identifier: Apache-2.0
// The judge: compares what came out with what the reference says, one element at a time, in the
// class that the clause demands. No global metric decides anything.
//
//     judge.exact("ROUTING-10", "tokens_per_expert", counts, expected_counts);
//     judge.bounded("GROUPED_GEMM-6", "y", y, reference.value, errors);
//     judge.holds("PERMUTATION-2", "row_map is a bijection", ok, "each row once", "row 7 twice");
//
// Every judged element counts as one check; every failed one is counted, the first few are kept. A
// number of expected values, errors or flags that does not fit the buffer, and an error bound that
// is NaN or negative, are mistakes of the suite: std::logic_error.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "conformance/judge/buffers.h"
#include "conformance/judge/verdict.h"

namespace dropless::conformance {

// Which elements are judged, one flag per element: empty = all of them.
using Judged = std::vector<bool>;

class Judge {
 public:
  // Class exact. Integers and bytes; then float values as stored in the buffer's format: +0 equals
  // -0, NaN only where NaN is expected. Expected values that the format cannot hold never match:
  // round them first (tolerances::round_to).
  void exact(std::string_view clause, std::string_view what, const Buffer& got,
             std::span<const Index> expected, const Judged& judged = {});
  void exact(std::string_view clause, std::string_view what, const Buffer& got,
             std::span<const double> expected, const Judged& judged = {});
  void exact_bytes(std::string_view clause, std::string_view what, const Buffer& got,
                   std::span<const std::uint8_t> expected, const Judged& judged = {});
  // Codes of e4m3 / e5m2: +-0 are distinct, all NaN codes are one (MXFP8-3).
  void exact_codes(std::string_view clause, std::string_view what, const Buffer& got,
                   std::span<const std::uint8_t> expected, const Judged& judged = {});
  // The same shape of data after a second run or in another variant: bitwise.
  void same_bytes(std::string_view clause, std::string_view what, const Buffer& got,
                  std::span<const std::uint8_t> earlier, const Judged& judged = {});

  // Class bounded: fl(y - E) <= got <= fl(y + E) in the buffer's format. errors: one per element or
  // a single one for all; +inf: the element is neither judged nor counted. NaN expected <=> NaN
  // got.
  void bounded(std::string_view clause, std::string_view what, const Buffer& got,
               std::span<const double> expected, std::span<const double> errors,
               const Judged& judged = {});
  // Class statistical: the same interval; the label goes into the report.
  void statistical(std::string_view clause, std::string_view what, const Buffer& got,
                   std::span<const double> expected, std::span<const double> errors,
                   const Judged& judged = {});

  // Elements that must still hold what they held before the call.
  void untouched(std::string_view clause, std::string_view what, const Buffer& got,
                 const Judged& judged);
  // A relation, counted as one check (is a permutation, is a top-k, status was refused...).
  void holds(std::string_view clause, std::string_view what, bool ok, std::string_view expected,
             std::string_view got, std::string_view element = "");

  // Trust: a requirement on the case's own inputs. If any is not met the verdict is MISTRUSTED.
  void require(bool met, std::string_view requirement);

  [[nodiscard]] std::int64_t checks() const { return checks_; }
  [[nodiscard]] std::int64_t failed_checks() const { return failed_; }
  [[nodiscard]] const std::vector<Failure>& failures() const { return failures_; }
  [[nodiscard]] const std::vector<std::string>& distrust() const { return distrust_; }

 private:
  struct Check;  // one call of the functions above
  void judge_interval(std::string_view label, std::string_view clause, std::string_view what,
                      const Buffer& got, std::span<const double> expected,
                      std::span<const double> errors, const Judged& judged);
  void judge_bytes(std::string_view clause, std::string_view what, const Buffer& got,
                   std::span<const std::uint8_t> expected, const Judged& judged,
                   std::string_view bound, bool codes);
  std::int64_t checks_ = 0, failed_ = 0;
  std::vector<Failure> failures_;
  std::vector<std::string> distrust_;
};

}  // namespace dropless::conformance
