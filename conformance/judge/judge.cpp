// SPDX-License-Identifier: Apache-2.0
// The judge: one element at a time, every failure with what was expected, what came and how far
// off.
#include "conformance/judge/judge.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "conformance/judge/elements.h"
#include "conformance/judge/observer.h"
#include "tolerances/bounds.h"
#include "tolerances/interval.h"

namespace dropless::conformance {

namespace {

constexpr std::size_t kept_per_check = 8;
constexpr std::size_t kept_per_case = 64;

bool same_value(double a, double b) {
  return a == b || (std::isnan(a) && std::isnan(b));
}

std::string ulps_apart(dropless_dtype dtype, double expected, double got) {
  if (!std::isfinite(expected) || !std::isfinite(got)) return "";
  const double distance = std::abs(got - expected);
  if (!is_float(dtype)) return fmt::format("{:.9g}", distance);
  return fmt::format("{:.3g} ulp", distance / tolerances::ulp(dtype, expected));
}

}  // namespace

// The loop that all checks share: sizes, the judged elements, counting, keeping the first failures.
struct Judge::Check {
  Judge& judge;
  std::string_view clause, what;
  const Buffer& got;
  const Judged& judged;
  std::size_t kept = 0;

  Check(Judge& owner, std::string_view clause_name, std::string_view what_name,
        const Buffer& buffer, std::size_t expected, const Judged& flags)
      : judge(owner), clause(clause_name), what(what_name), got(buffer), judged(flags) {
    if (expected != count()) mistake("expected values", expected);
    if (!judged.empty() && judged.size() != count()) mistake("judged flags", judged.size());
  }

  [[nodiscard]] std::size_t count() const { return static_cast<std::size_t>(got.size()); }

  [[noreturn]] void mistake(std::string_view things, std::size_t given) const {
    throw std::logic_error(
        fmt::format("{} {}: {} {} for {} elements", clause, what, given, things, count()));
  }

  // right(i) judges element i; describe(i) is asked for the wrong ones that are kept: of hundreds
  // of thousands, words would take longer than the judgement.
  template <class Right, class Describe>
  void run(Right right, Describe describe) {
    for (std::size_t i = 0; i < count(); ++i) {
      if (!judged.empty() && !judged[i]) continue;
      ++judge.checks_;
      if (right(i)) continue;
      ++judge.failed_;
      if (kept >= kept_per_check || judge.failures_.size() >= kept_per_case) continue;
      ++kept;
      Failure failure = describe(i);
      failure.element = element_name(got.shape(), static_cast<Index>(i));
      failure.clause = clause;
      failure.what = what;
      judge.failures_.push_back(std::move(failure));
    }
  }
};

void Judge::exact(std::string_view clause, std::string_view what, const Buffer& got,
                  std::span<const Index> expected, const Judged& judged) {
  Check check(*this, clause, what, got, expected.size(), judged);
  const std::vector<Index> values = got.integers();
  if (JudgeObserver* const observer = JudgeObserver::of_thread()) {
    observer->compared(0, {clause,
                           what,
                           got,
                           false,
                           {expected.begin(), expected.end()},
                           {values.begin(), values.end()},
                           judged});
  }
  const auto right = [&](std::size_t i) { return values[i] == expected[i]; };
  check.run(right, [&](std::size_t i) {
    Failure failure;
    failure.expected = fmt::format("{}", expected[i]);
    failure.got = fmt::format("{}", values[i]);
    failure.bound = "exact";
    failure.margin =
        print(std::abs(static_cast<double>(values[i]) - static_cast<double>(expected[i])));
    return failure;
  });
}

void Judge::exact(std::string_view clause, std::string_view what, const Buffer& got,
                  std::span<const double> expected, const Judged& judged) {
  Check check(*this, clause, what, got, expected.size(), judged);
  const std::vector<double> values = got.values();
  if (JudgeObserver* const observer = JudgeObserver::of_thread()) {
    observer->compared(0, {clause,
                           what,
                           got,
                           is_float(got.dtype()),
                           {expected.begin(), expected.end()},
                           values,
                           judged});
  }
  const auto right = [&](std::size_t i) { return same_value(values[i], expected[i]); };
  check.run(right, [&](std::size_t i) {
    Failure failure;
    failure.expected = print(expected[i]);
    failure.got = print(values[i]);
    failure.bound = "exact";
    failure.margin = ulps_apart(got.dtype(), expected[i], values[i]);
    return failure;
  });
}

void Judge::judge_bytes(std::string_view clause, std::string_view what, const Buffer& got,
                        std::span<const std::uint8_t> expected, const Judged& judged,
                        std::string_view bound, bool codes) {
  const std::size_t element = dtype_bytes(got.dtype());
  if (expected.size() % element != 0) {
    throw std::logic_error(fmt::format("{} {}: a torn last element", clause, what));
  }
  Check check(*this, clause, what, got, expected.size() / element, judged);
  const std::vector<std::uint8_t> bytes = got.bytes();
  if (JudgeObserver* const observer = JudgeObserver::of_thread()) {
    std::vector<double> wanted_values;
    for (std::size_t i = 0; i < expected.size(); i += element) {
      wanted_values.push_back(decode(got.dtype(), expected.data() + i));
    }
    observer->compared(0, {clause, what, got, is_float(got.dtype()), std::move(wanted_values),
                           got.values(), judged});
  }
  const auto right = [&](std::size_t i) {
    const std::uint8_t* mine = bytes.data() + i * element;
    const std::uint8_t* wanted = expected.data() + i * element;
    if (std::equal(mine, mine + element, wanted)) return true;
    return codes && std::isnan(decode(got.dtype(), mine)) &&
           std::isnan(decode(got.dtype(), wanted));
  };
  check.run(right, [&](std::size_t i) {
    const std::uint8_t* mine = bytes.data() + i * element;
    const std::uint8_t* wanted = expected.data() + i * element;
    const double value = decode(got.dtype(), mine), other = decode(got.dtype(), wanted);
    Failure failure;
    failure.expected = fmt::format("{} ({})", print_bits(got.dtype(), wanted), print(other));
    failure.got = fmt::format("{} ({})", print_bits(got.dtype(), mine), print(value));
    failure.bound = bound;
    failure.margin = ulps_apart(got.dtype(), other, value);
    return failure;
  });
}

void Judge::exact_bytes(std::string_view clause, std::string_view what, const Buffer& got,
                        std::span<const std::uint8_t> expected, const Judged& judged) {
  judge_bytes(clause, what, got, expected, judged, "exact bytes", false);
}

void Judge::exact_codes(std::string_view clause, std::string_view what, const Buffer& got,
                        std::span<const std::uint8_t> expected, const Judged& judged) {
  if (got.dtype() != DROPLESS_E4M3 && got.dtype() != DROPLESS_E5M2) {
    throw std::logic_error(fmt::format("{} {}: codes are e4m3 or e5m2", clause, what));
  }
  judge_bytes(clause, what, got, expected, judged, "exact code", true);
}

void Judge::same_bytes(std::string_view clause, std::string_view what, const Buffer& got,
                       std::span<const std::uint8_t> earlier, const Judged& judged) {
  judge_bytes(clause, what, got, earlier, judged, "bitwise equal to the other run", false);
}

void Judge::judge_interval(std::string_view label, std::string_view clause, std::string_view what,
                           const Buffer& got, std::span<const double> expected,
                           std::span<const double> errors, const Judged& judged) {
  const Check sizes(*this, clause, what, got, expected.size(), judged);
  if (errors.size() != 1 && errors.size() != expected.size())
    sizes.mistake("errors", errors.size());
  const auto error_of = [&](std::size_t i) { return errors.size() == 1 ? errors[0] : errors[i]; };
  Judged finite = judged.empty() ? Judged(expected.size(), true) : judged;
  for (std::size_t i = 0; i < finite.size(); ++i) {
    if (!finite[i]) continue;
    if (std::isnan(error_of(i)) || error_of(i) < 0) {
      throw std::logic_error(fmt::format("{} {} {}: the error bound is {}", clause, what,
                                         element_name(got.shape(), static_cast<Index>(i)),
                                         error_of(i)));
    }
    if (std::isinf(error_of(i))) finite[i] = false;
  }
  Check check(*this, clause, what, got, expected.size(), finite);
  const std::vector<double> values = got.values();
  if (JudgeObserver* const observer = JudgeObserver::of_thread()) {
    observer->compared(
        0, {clause, what, got, true, {expected.begin(), expected.end()}, values, finite});
  }
  const auto interval_of = [&](std::size_t i) {
    return tolerances::rounded_interval(got.dtype(), expected[i], error_of(i));
  };
  const auto right = [&](std::size_t i) { return tolerances::contains(interval_of(i), values[i]); };
  check.run(right, [&](std::size_t i) {
    const double error = error_of(i);
    const auto interval = interval_of(i);
    Failure failure;
    failure.expected = print(expected[i]);
    failure.got = print(values[i]);
    failure.bound = fmt::format("{}+-{:.3g}, legal [{:.9g}, {:.9g}]", label, error, interval.low,
                                interval.high);
    const double outside = tolerances::excess(interval, values[i], error);
    failure.margin = std::isfinite(outside) ? fmt::format("{:.3g} bounds outside", outside)
                                            : ulps_apart(got.dtype(), expected[i], values[i]);
    return failure;
  });
}

void Judge::bounded(std::string_view clause, std::string_view what, const Buffer& got,
                    std::span<const double> expected, std::span<const double> errors,
                    const Judged& judged) {
  judge_interval("", clause, what, got, expected, errors, judged);
}

void Judge::statistical(std::string_view clause, std::string_view what, const Buffer& got,
                        std::span<const double> expected, std::span<const double> errors,
                        const Judged& judged) {
  judge_interval("statistical ", clause, what, got, expected, errors, judged);
}

void Judge::untouched(std::string_view clause, std::string_view what, const Buffer& got,
                      const Judged& judged) {
  Check check(*this, clause, what, got, static_cast<std::size_t>(got.size()), judged);
  const std::vector<bool> same = got.untouched();
  const std::vector<std::uint8_t> bytes = got.bytes();
  const auto right = [&](std::size_t i) -> bool { return same[i]; };
  check.run(right, [&](std::size_t i) {
    const std::uint8_t* mine = bytes.data() + i * dtype_bytes(got.dtype());
    Failure failure;
    failure.expected = "untouched";
    failure.got = fmt::format("written: {}", print(got.dtype(), mine));
    failure.bound = "exact bytes";
    return failure;
  });
}

void Judge::holds(std::string_view clause, std::string_view what, bool ok,
                  std::string_view expected, std::string_view got, std::string_view element) {
  ++checks_;
  if (ok) return;
  ++failed_;
  // One relation checked on every row is one check: it must not crowd the others out.
  const auto alike = std::count_if(failures_.begin(), failures_.end(), [&](const Failure& known) {
    return known.clause == clause && known.what == what;
  });
  if (failures_.size() >= kept_per_case || static_cast<std::size_t>(alike) >= kept_per_check)
    return;
  Failure failure;
  failure.clause = clause;
  failure.what = what;
  failure.element = element;
  failure.expected = expected;
  failure.got = got;
  failure.bound = "relation";
  failures_.push_back(std::move(failure));
}

void Judge::require(bool met, std::string_view requirement) {
  if (!met) distrust_.emplace_back(requirement);
}

}  // namespace dropless::conformance
