// SPDX-License-Identifier: Apache-2.0
// Loads: sums, shapes, and ids that follow them.
#include "conformance/cases/loads.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

namespace dropless::conformance {
namespace {

Index sum(const std::vector<Index>& values) {
  return std::accumulate(values.begin(), values.end(), Index{0});
}

std::vector<Index> rows(std::string_view load, Index experts, Index count) {
  Random random(Random::key_of(load));
  return rows_per_expert(load, experts, count, random);
}

TEST(Loads, AddUpForEveryShape) {
  for (const std::string& load : load_names()) {
    for (const Index experts : {1, 2, 3, 8, 61, 256}) {
      for (const Index count : {0, 1, 7, 256, 5000}) {
        const std::vector<Index> got = rows(load, experts, count);
        ASSERT_EQ(static_cast<Index>(got.size()), experts);
        EXPECT_TRUE(std::all_of(got.begin(), got.end(), [](Index n) { return n >= 0; }));
        if (load == "one_row_each") {
          EXPECT_EQ(sum(got), experts);
        } else if (load == "all_empty") {
          EXPECT_EQ(sum(got), 0);
        } else if (load == "tile_edge") {
          EXPECT_LE(sum(got), count);
        } else {
          EXPECT_EQ(sum(got), count) << load << " " << experts;
        }
      }
    }
  }
}

TEST(Loads, HaveTheirShape) {
  const std::vector<Index> balanced = rows("balanced", 7, 100);
  EXPECT_LE(*std::max_element(balanced.begin(), balanced.end()) -
                *std::min_element(balanced.begin(), balanced.end()),
            1);
  const std::vector<Index> hot = rows("one_hot", 8, 100);
  EXPECT_EQ(std::count(hot.begin(), hot.end(), 0), 7);
  const std::vector<Index> zipf = rows("zipf", 16, 1000);
  EXPECT_GT(*std::max_element(zipf.begin(), zipf.end()), 250);
  EXPECT_EQ(rows("empty_first", 8, 100)[0], 0);
  EXPECT_EQ(rows("empty_last", 8, 100)[7], 0);
  const std::vector<Index> middle = rows("empty_middle", 8, 100);
  EXPECT_EQ(middle[3] + middle[4], 0);
  EXPECT_GT(middle[0] + middle[1] + middle[2], 0);
  EXPECT_GT(middle[5] + middle[6] + middle[7], 0);
  const std::vector<Index> alternating = rows("alternating", 6, 90);
  EXPECT_EQ(alternating, (std::vector<Index>{0, 30, 0, 30, 0, 30}));
  const std::set<Index> edges = {15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257};
  const std::vector<Index> tiles = rows("tile_edge", 30, 1 << 20);
  EXPECT_EQ(std::set<Index>(tiles.begin(), tiles.end()), edges);
}

TEST(Ids, AreDistinctAndFollowTheLoad) {
  for (const std::string& load : load_names()) {
    Random random(Random::key_of(load));
    constexpr Index tokens = 65, experts = 16, top_k = 4;
    const std::vector<Index> ids = ids_for_load(load, tokens, experts, top_k, random);
    ASSERT_EQ(ids.size(), 260u);
    std::vector<Index> demand(16, 0);
    for (Index t = 0; t < tokens; ++t) {
      std::set<Index> seen;
      for (Index j = 0; j < top_k; ++j) {
        const Index id = ids[static_cast<std::size_t>(t * top_k + j)];
        ASSERT_GE(id, -1);
        ASSERT_LT(id, experts);
        if (id < 0) continue;
        EXPECT_TRUE(seen.insert(id).second) << load;
        ++demand[static_cast<std::size_t>(id)];
      }
    }
    std::sort(demand.begin(), demand.end());
    if (load == "all_empty") {
      EXPECT_EQ(sum(demand), 0);
    } else if (load == "one_row_each") {
      EXPECT_EQ(demand, std::vector<Index>(16, 1));
    } else if (load == "balanced") {
      EXPECT_LE(demand[15] - demand[0], 1);
    } else if (load == "one_hot") {  // K distinct experts of everything, nothing elsewhere
      EXPECT_EQ(demand[12], tokens);
      EXPECT_EQ(demand[11], 0);
    }
    if (load != "all_empty" && load != "one_row_each" && load != "tile_edge") {
      EXPECT_EQ(sum(demand), tokens * top_k) << load;
    }
  }
}

TEST(Ids, MissingEntriesAreMinusOne) {
  Random random(4);
  const std::vector<Index> ids = ids_for_load("balanced", 1000, 8, 2, random, 0.25);
  EXPECT_NEAR(static_cast<double>(std::count(ids.begin(), ids.end(), -1)), 500, 100);
}

TEST(Ids, FewerPairsThanExperts) {
  Random random(5);
  const std::vector<Index> ids = ids_for_load("one_row_each", 3, 64, 2, random);
  EXPECT_EQ(std::set<Index>(ids.begin(), ids.end()).size(), 6u);
}

TEST(Offsets, RoundZonesUp) {
  EXPECT_EQ(aligned_offsets({3, 0, 16, 17}, 16), (std::vector<Index>{0, 16, 16, 32, 64}));
  EXPECT_EQ(aligned_offsets({3, 0}, 16, true), (std::vector<Index>{0, 16, 32}));
  EXPECT_EQ(aligned_offsets({3, 0, 2}, 1), (std::vector<Index>{0, 3, 3, 5}));
}

}  // namespace
}  // namespace dropless::conformance
