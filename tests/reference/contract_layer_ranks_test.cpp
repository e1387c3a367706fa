// SPDX-License-Identifier: Apache-2.0
// The layer of the reference over ranks equals that of one rank, in every layout; what does not fit
// the handle is refused on all ranks.
#include <gtest/gtest.h>

#include "reference/implementation.h"
#include "tests/layers/over_ranks.h"

namespace dropless::testing {
namespace {

LayerTables tables(int layout = DROPLESS_DISPATCH_FLAT, int alignment = 1, int weighting = 0) {
  auto profile = struct_of<dropless_profile>();
  profile.dispatch_layout = layout, profile.alignment = alignment;
  profile.flat_ids = alignment > 1 ? DROPLESS_FLAT_IDS_IN_PLACE : DROPLESS_FLAT_IDS_ASCENDING;
  profile.combine_weighting = weighting;
  const dropless_implementation& i = reference::implementation(profile);
  return {&i, &i};
}

LayerSetup setup_of(int ranks) {
  LayerSetup s;
  s.tokens = {9, 0, 5, 7};
  s.tokens.resize(static_cast<std::size_t>(ranks));
  s.hidden = 8, s.intermediate = 6, s.shared = 4;
  return s;
}

TEST(ContractLayerOverRanks, EqualsOneRank) {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const int layout : {DROPLESS_DISPATCH_FLAT, DROPLESS_DISPATCH_EXPERT_MAJOR}) {
      for (const int placement :
           {DROPLESS_WEIGHTS_LATE, DROPLESS_WEIGHTS_EARLY, DROPLESS_WEIGHTS_INPUT}) {
        const bool second = (ranks + placement) % 2 == 0;
        const LayerTables t = tables(layout, second ? 16 : 1, second ? 1 : 0);
        LayerSetup s = setup_of(ranks);
        s.placement = placement, s.given_ids = second;
        s.recipe = ranks == 3 ? DROPLESS_RECIPE_MXFP8 : DROPLESS_RECIPE_PLAIN;
        s.keep = ranks != 2, s.recompute = ranks == 4;
        SCOPED_TRACE(std::to_string(ranks) + " ranks, layout " + std::to_string(layout) +
                     ", placement " + std::to_string(placement));
        // Doubles in another order: the last bit of fp32 may fall either way.
        EXPECT_EQ(difference(run_alone(t, s), run_world(t, s), 1e-6, 0), "");
      }
    }
  }
}

TEST(ContractLayerOverRanks, EqualsOneRankBitByBitOnExactData) {
  for (const int ranks : {2, 4}) {
    LayerSetup s = setup_of(ranks);
    s.exact = s.given_ids = true;
    const LayerTables t = tables(DROPLESS_DISPATCH_UNORDERED_EXPERT_MAJOR, 32, 1);
    EXPECT_EQ(difference(run_alone(t, s), run_world(t, s), 0, 0), "");
  }
}

TEST(ContractLayerOverRanks, LayersInFlight) {
  const LayerSetup s = setup_of(3);
  const LayerTables t = tables();
  const LayerWorld alone = run_alone(t, s);
  LayerWorld a(s), b(s);
  on_handles(t, s, 2, [&](int rank, const std::vector<dropless_exchange*>& handles) {
    LayerRank first(*t.layer, a, rank, 3, handles[0]), second(*t.layer, b, rank, 3, handles[1]);
    first.require(first.run_forward());
    second.require(second.run_forward());
    second.require(second.run_backward());
    first.require(first.run_backward());
    first.add_up();
    second.add_up();
  });
  EXPECT_EQ(difference(alone, a, 1e-6, 0), "");
  EXPECT_EQ(difference(alone, b, 1e-6, 0), "");
}

TEST(ContractLayerOverRanks, AnotherPlanInBetweenIsRefused) {
  LayerSetup s = setup_of(2);
  const LayerTables t = tables();
  LayerWorld a(s), b(s);
  on_handles(t, s, 1, [&](int rank, const std::vector<dropless_exchange*>& handles) {
    LayerRank first(*t.layer, a, rank, 2, handles[0]), second(*t.layer, b, rank, 2, handles[0]);
    first.require(first.run_forward());
    second.require(second.run_forward());
    EXPECT_EQ(first.run_backward(), DROPLESS_INVALID_ARGUMENT);
    EXPECT_NE(first.message.find("planned again"), std::string::npos) << first.message;
    second.require(second.run_backward());
  });
}

TEST(ContractLayerOverRanks, OneRankThatIsRefusedRefusesAll) {
  const LayerSetup s = setup_of(3);
  const LayerTables t = tables();
  LayerWorld world(s);
  on_handles(t, s, 1, [&](int rank, const std::vector<dropless_exchange*>& handles) {
    LayerRank mine(*t.layer, world, rank, 3, handles[0]);
    if (rank == 1) mine.forward.y = nullptr;
    EXPECT_EQ(mine.run_forward(), DROPLESS_INVALID_ARGUMENT);
    EXPECT_NE(mine.message.find("y is null"), std::string::npos) << mine.message;
    mine.forward.y = mine.forward.x;  // of the same shape
    mine.settings.weight_placement = rank;
    EXPECT_EQ(mine.run_forward(), DROPLESS_INVALID_ARGUMENT);
    EXPECT_NE(mine.message.find("another layer"), std::string::npos) << mine.message;
    mine.settings.weight_placement = 0;
    mine.route.top_k = 2;
    EXPECT_EQ(mine.run_forward(), DROPLESS_INVALID_ARGUMENT);
    mine.route.top_k = 3;
    mine.forward.x = mine.forward.y;
    mine.require(mine.run_forward());
    mine.require(mine.run_backward());
  });
}

TEST(ContractLayerOverRanks, OverflowIsTheSameOnAllRanks) {
  LayerSetup s = setup_of(4);
  s.tokens = {40, 40, 40, 40};
  s.factor = 1;
  const LayerTables t = tables(DROPLESS_DISPATCH_EXPERT_MAJOR);
  LayerWorld world(s);
  on_handles(t, s, 1, [&](int rank, const std::vector<dropless_exchange*>& handles) {
    LayerRank mine(*t.layer, world, rank, 4, handles[0]);
    EXPECT_EQ(mine.run_forward(), DROPLESS_OVERFLOW) << mine.message;
  });
}

}  // namespace
}  // namespace dropless::testing
