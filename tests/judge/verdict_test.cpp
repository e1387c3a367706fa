// SPDX-License-Identifier: Apache-2.0
// Status names, what a good run may contain, and the trust measures.
#include "conformance/judge/verdict.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "conformance/judge/trust.h"

namespace dropless::conformance {
namespace {

TEST(Status, NamesAreDistinctAndComeBack) {
  std::set<std::string_view> names;
  for (int i = 0; i <= static_cast<int>(Status::internal_error); ++i) {
    const auto status = static_cast<Status>(i);
    names.insert(name(status));
    EXPECT_EQ(status_from(name(status)), status);
  }
  EXPECT_EQ(names.size(), 13u);
  EXPECT_EQ(status_from("passed"), std::nullopt);
  EXPECT_EQ(status_from(""), std::nullopt);
}

TEST(Status, FailsClosed) {
  std::set<std::string_view> good;
  for (int i = 0; i <= static_cast<int>(Status::internal_error); ++i) {
    if (acceptable(static_cast<Status>(i))) good.insert(name(static_cast<Status>(i)));
  }
  EXPECT_EQ(good,
            (std::set<std::string_view>{"pass", "not_supported", "skipped_by_tier", "waived"}));
  EXPECT_FALSE(acceptable(Verdict{}.status));
}

using Doubles = std::vector<double>;
using Bytes = std::vector<std::uint8_t>;

TEST(Trust, Measures) {
  EXPECT_EQ(trust::share_of_zeros(Doubles{0, -0.0, 1, 2}), 0.5);
  EXPECT_EQ(trust::distinct(Bytes{1, 1, 2, 255}), 3);
  EXPECT_EQ(trust::distinct(Doubles{0.0, -0.0, 1, NAN, NAN}), 3);
  EXPECT_EQ(trust::spread_in_binades(Doubles{0, 1, -16, 2, INFINITY, NAN}), 4);
  EXPECT_EQ(trust::root_mean_square(Doubles{3, -3, 3}), 3);
  EXPECT_EQ(trust::share_of_different_neighbours(Bytes{1, 1, 2, 2, 3}), 0.5);
  EXPECT_EQ(trust::share_of_different_neighbours(Bytes{1, 2, 1, 2, 1, 3}, 2), 0.25);
}

TEST(Trust, NothingIsNotTrusted) {
  EXPECT_EQ(trust::share_of_zeros({}), 1);
  EXPECT_EQ(trust::distinct(Bytes{}), 0);
  EXPECT_EQ(trust::spread_in_binades({}), 0);
  EXPECT_EQ(trust::spread_in_binades(Doubles{0, 0}), 0);
  EXPECT_EQ(trust::root_mean_square({}), 0);
  EXPECT_EQ(trust::share_of_different_neighbours(Bytes{1}), 0);
  EXPECT_EQ(trust::share_of_different_neighbours(Bytes{1, 2}, 0), 0);
}

}  // namespace
}  // namespace dropless::conformance
