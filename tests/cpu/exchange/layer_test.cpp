// SPDX-License-Identifier: Apache-2.0
// The layer over ranks equals that of one rank: in every layout, over threads and sockets, with
// codes or rows on the wire; what does not fit is refused on all ranks alike.
#include <gtest/gtest.h>

#include <cstdlib>

#include "optimized/cpu/exchange/implementation.h"
#include "optimized/cpu/implementation.h"
#include "tests/layers/over_ranks.h"

namespace dropless::testing {
namespace {

struct Layout {
  const char* name;
  int layout, alignment, weighting, flat_ids, rounding;
};
constexpr Layout layouts[] = {
    {"flat", DROPLESS_DISPATCH_FLAT, 1, 0, 0, 0},
    {"flat, in place, rounded per rank", DROPLESS_DISPATCH_UNORDERED_FLAT, 1, 0,
     DROPLESS_FLAT_IDS_IN_PLACE, DROPLESS_COMBINE_ROUNDS_PER_RANK},
    {"expert-major", DROPLESS_DISPATCH_EXPERT_MAJOR, 1, 0, 0, 0},
    {"expert-major, aligned, weighted", DROPLESS_DISPATCH_UNORDERED_EXPERT_MAJOR, 16,
     DROPLESS_COMBINE_WEIGHTED, 0, 0}};

LayerTables tables(const Layout& l = layouts[0]) {
  auto profile = struct_of<dropless_profile>();
  profile.dispatch_layout = l.layout, profile.alignment = l.alignment;
  profile.flat_ids = l.flat_ids, profile.combine_weighting = l.weighting;
  profile.combine_rounding = l.rounding;
  return {&cpu::implementation(), cpu::exchange::implementation(profile)};
}

LayerSetup setup_of(int ranks) {
  LayerSetup s;
  s.tokens = {19, 0, 25, 33};
  s.tokens.resize(static_cast<std::size_t>(ranks));
  return s;
}

class WithTransport {
 public:
  explicit WithTransport(const char* name) { setenv("DROPLESS_TRANSPORT", name, 1); }
  ~WithTransport() { unsetenv("DROPLESS_TRANSPORT"); }
  WithTransport(const WithTransport&) = delete;
  WithTransport& operator=(const WithTransport&) = delete;
};

// Exact data: whatever the order of the sums, every bit is the same.
TEST(LayerOverRanks, EqualsOneRankBitByBit) {
  for (const int placement :
       {DROPLESS_WEIGHTS_LATE, DROPLESS_WEIGHTS_EARLY, DROPLESS_WEIGHTS_INPUT}) {
    for (const int recipe : {DROPLESS_RECIPE_PLAIN, DROPLESS_RECIPE_MXFP8}) {
      for (const int ranks : {1, 2, 3, 4}) {
        LayerSetup s = setup_of(ranks);
        s.placement = placement, s.recipe = recipe, s.exact = s.given_ids = true;
        s.dtype = ranks % 2 == 0 ? DROPLESS_FP32 : DROPLESS_BF16;
        s.scales = true;
        const LayerWorld alone = run_alone(tables(), s);
        for (const int step : {0, 1}) {
          const Layout& l = layouts[(ranks + placement + 2 * recipe + step) % 4];
          if (l.rounding != 0 && s.dtype == DROPLESS_BF16) continue;  // sums of ranks are rounded
          SCOPED_TRACE(std::string(l.name) + ", placement " + std::to_string(placement) +
                       ", recipe " + std::to_string(recipe) + ", ranks " + std::to_string(ranks));
          EXPECT_EQ(difference(alone, run_world(tables(l), s), 0, 0), "");
        }
      }
    }
  }
}

// Any data: sums over ranks associate otherwise; the experts see the same rows in the same order.
TEST(LayerOverRanks, EqualsOneRankWithinBounds) {
  for (const Layout& l : layouts) {
    for (const int placement :
         {DROPLESS_WEIGHTS_LATE, DROPLESS_WEIGHTS_EARLY, DROPLESS_WEIGHTS_INPUT}) {
      LayerSetup s = setup_of(4);
      s.placement = placement;
      s.dtype = (placement + l.layout) % 2 == 0 ? DROPLESS_FP32 : DROPLESS_BF16;
      s.recipe = placement == 1 ? DROPLESS_RECIPE_MXFP8 : DROPLESS_RECIPE_PLAIN;
      SCOPED_TRACE(std::string(l.name) + ", placement " + std::to_string(placement));
      EXPECT_EQ(difference(run_alone(tables(), s), run_world(tables(l), s),
                           s.dtype == DROPLESS_BF16 ? 1.0 / 128 : 1e-5, 0),
                "");
    }
  }
}

TEST(LayerOverRanks, OverSocketsAndAgain) {
  LayerSetup s = setup_of(3);
  s.dtype = DROPLESS_BF16, s.recipe = DROPLESS_RECIPE_MXFP8;
  for (const Layout& l : {layouts[0], layouts[3]}) {
    const LayerWorld threads = run_world(tables(l), s);
    EXPECT_EQ(difference(threads, run_world(tables(l), s), 0, 0), "");
    const WithTransport sockets("sockets");
    EXPECT_EQ(difference(threads, run_world(tables(l), s), 0, 0), "");
  }
}

// Without a backward pass codes cross where the handle has room for their scales; y is the same.
TEST(LayerOverRanks, KeptRecomputedAndCodesGiveTheSameBits) {
  for (const Layout& l : {layouts[0], layouts[2]}) {
    LayerSetup s = setup_of(3);
    s.dtype = DROPLESS_BF16, s.recipe = DROPLESS_RECIPE_MXFP8;
    const LayerWorld kept = run_world(tables(l), s);
    for (const bool scales : {false, true}) {
      s.scales = scales;
      s.keep = true, s.recompute = true;
      EXPECT_EQ(difference(kept, run_world(tables(l), s), 0, 0), "");
      s.keep = false;
      EXPECT_EQ(difference(kept, run_world(tables(l), s), 0, 0), "");
    }
  }
}

TEST(LayerOverRanks, LayersInFlight) {
  const LayerSetup s = setup_of(3);
  const LayerWorld alone = run_world(tables(), s);
  LayerWorld a(s), b(s);
  on_handles(tables(), s, 2, [&](int rank, const std::vector<dropless_exchange*>& handles) {
    LayerRank first(*tables().layer, a, rank, 3, handles[0]);
    LayerRank second(*tables().layer, b, rank, 3, handles[1]);
    first.require(first.run_forward());
    second.require(second.run_forward());
    second.require(second.run_backward());
    first.require(first.run_backward());
    first.add_up();
    second.add_up();
  });
  EXPECT_EQ(difference(alone, a, 0, 0), "");
  EXPECT_EQ(difference(alone, b, 0, 0), "");
}

TEST(LayerOverRanks, AnotherPlanInBetweenIsRefused) {
  LayerSetup s = setup_of(2);
  LayerWorld a(s), b(s);
  on_handles(tables(), s, 1, [&](int rank, const std::vector<dropless_exchange*>& handles) {
    LayerRank first(*tables().layer, a, rank, 2, handles[0]);
    LayerRank second(*tables().layer, b, rank, 2, handles[0]);
    first.require(first.run_forward());
    second.require(second.run_forward());
    EXPECT_EQ(first.run_backward(), DROPLESS_INVALID_ARGUMENT);
    EXPECT_NE(first.message.find("planned again"), std::string::npos) << first.message;
    second.require(second.run_backward());
    first.settings.recompute = 1;  // nothing kept: the layer plans again
    first.release();
    first.require(first.run_backward());
  });
}

TEST(LayerOverRanks, OneRankThatIsRefusedRefusesAll) {
  const LayerSetup s = setup_of(3);
  for (const char* transport : {"threads", "sockets"}) {
    const WithTransport with(transport);
    LayerWorld world(s);
    on_handles(tables(), s, 1, [&](int rank, const std::vector<dropless_exchange*>& handles) {
      LayerRank mine(*tables().layer, world, rank, 3, handles[0]);
      const dropless_tensor* const y = mine.forward.y;
      const auto refused = [&](const char* why) {
        EXPECT_EQ(mine.run_forward(), DROPLESS_INVALID_ARGUMENT);
        EXPECT_NE(mine.message.find(why), std::string::npos) << mine.message;
      };
      if (rank == 1) mine.forward.y = nullptr;
      refused("y: null");
      mine.forward.y = y;
      mine.settings.weight_placement = rank;
      refused("weight_placement");
      mine.settings.weight_placement = 0;
      mine.route.top_k = 2;
      refused("top_k");
      mine.route.top_k = 3;
      mine.require(mine.run_forward());
      const dropless_tensor* const d_y = mine.backward.d_y;
      if (rank == 2) mine.backward.d_y = nullptr;
      EXPECT_EQ(mine.run_backward(), DROPLESS_INVALID_ARGUMENT);
      mine.backward.d_y = d_y;
      mine.require(mine.run_backward());
    });
  }
}

TEST(LayerOverRanks, OverflowIsTheSameOnAllRanks) {
  LayerSetup s = setup_of(4);
  s.tokens = {40, 40, 40, 40};
  s.factor = 1;
  LayerWorld world(s);
  on_handles(tables(layouts[2]), s, 1,
             [&](int rank, const std::vector<dropless_exchange*>& handles) {
               LayerRank mine(*tables().layer, world, rank, 4, handles[0]);
               EXPECT_EQ(mine.run_forward(), DROPLESS_OVERFLOW) << mine.message;
               EXPECT_EQ(mine.forward.saved, nullptr);
               mine.forward.keep = 0;
               EXPECT_EQ(mine.run_forward(), DROPLESS_OVERFLOW) << mine.message;
             });
}

// A rank that does not come is an error for the others, not a hang (EXCHANGE-14).
TEST(LayerOverRanks, AMissingRankEndsTheCall) {
  const LayerSetup s = setup_of(3);
  LayerWorld world(s);
  on_handles(
      tables(), s, 1,
      [&](int rank, const std::vector<dropless_exchange*>& handles) {
        LayerRank mine(*tables().layer, world, rank, 3, handles[0]);
        mine.require(mine.run_forward());
        if (rank == 0) return;
        const dropless_status status = mine.run_backward();
        EXPECT_TRUE(status == DROPLESS_TIMEOUT || status == DROPLESS_PEER_LOST) << mine.message;
        mine.release();
        EXPECT_EQ(mine.run_forward(), status) << mine.message;
      },
      0.3);
}

}  // namespace
}  // namespace dropless::testing
