// SPDX-License-Identifier: Apache-2.0
// Pairwise selection covers what it promises, with few rows, always the same ones.
#include "conformance/cases/selection.h"

#include <gtest/gtest.h>

#include <set>

namespace dropless::conformance {
namespace {

const std::vector<Axis> axes = {
    {"a", {"0", "1", "2"}}, {"b", {"0", "1", "2", "3"}}, {"c", {"0", "1"}}, {"d", {"0", "1", "2"}}};

std::set<std::string> pairs_of(const std::vector<Values>& rows) {
  std::set<std::string> out;
  for (const Values& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      for (std::size_t j = i + 1; j < row.size(); ++j) {
        out.insert(row[i].first + row[i].second + row[j].first + row[j].second);
      }
    }
  }
  return out;
}

TEST(Product, HasEveryCombinationOnce) {
  const std::vector<Values> rows = product(axes);
  EXPECT_EQ(rows.size(), 72u);
  EXPECT_EQ(std::set<Values>(rows.begin(), rows.end()).size(), 72u);
}

TEST(Pairwise, CoversEveryPair) {
  const std::vector<Values> rows = pairwise(axes);
  EXPECT_EQ(pairs_of(rows), pairs_of(product(axes)));
  EXPECT_LE(rows.size(), 16u);  // 12 at least: 4 * 3 pairs of the two longest axes
  EXPECT_EQ(rows[0], (Values{{"a", "0"}, {"b", "0"}, {"c", "0"}, {"d", "0"}}));
  EXPECT_EQ(rows, pairwise(axes));
}

TEST(Pairwise, KeepsToWhatIsAllowed) {
  const auto allowed = [](const Values& row) {
    return !(value_of(row, "a") == "2" && value_of(row, "b") != "3");
  };
  const std::vector<Values> rows = pairwise(axes, allowed);
  for (const Values& row : rows) EXPECT_TRUE(allowed(row));
  std::vector<Values> legal = product(axes);
  std::erase_if(legal, [&](const Values& row) { return !allowed(row); });
  EXPECT_EQ(pairs_of(rows), pairs_of(legal));
}

TEST(Pairwise, OneAxisIsListed) {
  EXPECT_EQ(pairwise({axes[1]}).size(), 4u);
}

TEST(Without, KeepsTheRestInOrder) {
  const std::vector<Values> all = product({axes[2]});
  EXPECT_EQ(without(all, {all[0]}), (std::vector<Values>{all[1]}));
}

TEST(ValueOf, KnowsItsKeys) {
  EXPECT_EQ(value_of({{"x", "7"}}, "x"), "7");
  EXPECT_THROW((void)value_of({{"x", "7"}}, "y"), std::logic_error);
}

}  // namespace
}  // namespace dropless::conformance
