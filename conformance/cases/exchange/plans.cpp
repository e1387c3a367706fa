// SPDX-License-Identifier: Apache-2.0
// Plans: EXCHANGE-0a to 0c, 4a to 5c, and the zero lattice of what a plan says.
#include <cctype>

#include "conformance/cases/exchange/handle.h"

namespace dropless::conformance {
namespace {

// The load does what it is there for; small cases and lists may not.
void require_load(World& world, const Routing& routing) {
  Judge& judge = world.run.judge();
  const std::string& load = world.run.word("load");
  const std::string& share = world.run.word("share");
  const bool nothing = share == "none" || load == "all_empty" || world.settings.max_tokens < 8 ||
                       (world.ranks == 1 && (share == "none_on_first" || load == "not_to_self" ||
                                             load == "one_rank")) ||
                       (load == "tile_edge" &&  // the smallest is 15 rows
                        world.settings.max_tokens * world.settings.top_k < 15) ||
                       std::isdigit(static_cast<unsigned char>(load[0])) != 0;
  if (nothing) return;
  const reference::ExchangePlan& plan = routing.plan;
  Index rows = 0, empty_pairs = 0;
  for (const reference::ReceivedRows& received : plan.received) {
    rows += received.rows();
    for (const Index from : received.rows_per_source) empty_pairs += from == 0 ? 1 : 0;
  }
  judge.require(rows > 0, "some pair is routed");
  // A copy of an expert is on a rank that its token's rank would not have sent to.
  const bool copies = plan.topology.slots * world.ranks > world.settings.num_experts;
  if (load == "some_pairs" && world.ranks > 1 && !copies) {
    judge.require(empty_pairs > 0, "some pair of ranks exchanges nothing");
  }
  if (load != "one_rank" || world.settings.top_k < 2 || share != "even" ||
      plan.topology.slots < 2) {
    return;
  }
  // Only then do bytes per (token, rank) differ from bytes per (token, expert).
  std::vector<Index> last_token(at(world.ranks), -1);
  Index shared = 0;
  for (std::size_t pair = 0; pair < plan.slot_of_pair.size(); ++pair) {
    if (plan.slot_of_pair[pair] < 0) continue;
    const auto token = static_cast<Index>(pair) / world.settings.top_k;
    Index& last = last_token[at(plan.rank_of_pair(static_cast<Index>(pair)))];
    shared += last == token ? 1 : 0;
    last = token;
  }
  judge.require(shared > 0, "some token goes to two experts on one rank");
}

// Which experts a rank serves shows in what it is told to have received.
void judge_owners(World& world, const Routing& routing, const PlanBuffers& got) {
  const auto& counts = routing.received(world.rank).tokens_per_local_expert;
  const auto judge = [&](const char* clause) {
    world.run.judge().exact(clause, "pairs of this rank's slots", *got.counts, counts);
  };
  const reference::ExchangeTopology& topology = routing.plan.topology;
  judge(world.settings.placement.empty() ? "EXCHANGE-0a" : "EXCHANGE-0b");
  if (topology.slots * world.ranks > world.settings.num_experts) judge("EXCHANGE-0c");
}

void run_plan(CaseRun& run) {
  World world(run);
  world.settings.row_bytes = 96, world.settings.scale_bytes = 3;
  const Routing& routing = world.routing("only");
  require_load(world, routing);
  // A thousand threads on a few cores are slow, not stuck.
  RankHandle handle(world, world.ranks > 64 ? 100 : 10);
  const dropless_dtype ids = run.word("ids") == "i32" ? DROPLESS_I32 : DROPLESS_I64;
  const PlanBuffers got = handle.plan(routing, {.id_dtype = ids});
  judge_plan(world, routing, got);
  judge_owners(world, routing, got);
  // The same handle, the same ids: nothing of the first plan is left in the second.
  judge_plan(world, routing, handle.plan(routing, {.id_dtype = ids, .step = 1}));
  handle.close();
}

std::vector<Values> select_plans(Tier tier) {
  const Axis ids{"ids", {"i32", "i64"}};
  std::vector<Values> smoke =
      exchange_cases({.ranks = {"1", "4"}, .experts = {"8"}, .load = {"zipf", "one_rank"}}, {ids});
  for (Values& values : exchange_cases({.ranks = {"4"},
                        .experts = {"8"},
                        .top_k = {"4"},
                        .placement = {"shuffled", "hot"},
                        .nodes = {"two", "alternating"}},
                                       {ids})) {
    smoke.push_back(std::move(values));
  }
  if (tier == Tier::smoke) return smoke;
  std::vector<Values> all = smoke;
  const auto add = [&](const GroupAxes& group, const Axis& type = {"ids", {"i32", "i64"}}) {
    for (Values& values : without(exchange_cases(group, {type}), all)) {
      all.push_back(std::move(values));
    }
  };
  add({.tokens = {"17"}, .load = exchange_load_names()});
  add({.experts = {"16", "64"},
       .top_k = {"1", "3", "8"},
       .tokens = {"1", "33"},
       .share = {"even", "uneven"}});
  add({.share = share_names(), .load = {"balanced", "to_self", "to_first", "all_empty"}});
  add({.ranks = {"2", "4", "8"},
       .experts = {"8", "12"},
       .top_k = {"4"},
       .load = {"spread", "one_rank", "zipf"},
       .placement = {"shuffled", "cyclic", "hot"},
       .nodes = {"one", "two", "four", "alternating"}});
  // Rank counts that are no power of two; experts that do not divide.
  add({.ranks = {"3", "5", "7"},
       .experts = {"10", "15"},
       .top_k = {"3"},
       .placement = {"blocks", "cyclic"}});
  add({.ranks = {"2", "4"}, .experts = {"512"}, .top_k = {"10"}, .tokens = {"33"}});
  // More rows on a rank than 16 bits count.
  add({.ranks = {"8"}, .experts = {"8"}, .top_k = {"1"}, .tokens = {"9500"}, .load = {"to_first"}},
      {"ids", {"i32"}});
  // Planning at the size of a cluster, more than 128 ranks; every expert has two copies or three.
  add({.ranks = {"130"},
       .experts = {"64"},
       .top_k = {"8"},
       .tokens = {"2"},
       .placement = {"cyclic"},
       .nodes = {"alternating"}},
      {"ids", {"i64"}});
  // As many threads as ranks: heavy where each rank hears from each. Every expert has four copies.
  add({.ranks = {"1024"},
       .experts = {"256"},
       .top_k = {"8"},
       .tokens = {"2"},
       .placement = {"cyclic"},
       .nodes = {"alternating"}},
      {"ids", {"i64"}});
  if (tier == Tier::standard) return without(all, smoke);
  const std::vector<Values> standard = all;
  add({.ranks = {"64", "256"},
       .experts = {"256"},
       .top_k = {"8"},
       .tokens = {"16"},
       .load = {"zipf", "one_rank", "spread"},
       .nodes = {"four"}});
  add({.tokens = {"511"}, .load = load_names()});
  return without(all, standard);
}

}  // namespace

void add_exchange_plans(Registry& registry) {
  registry.add({"exchange.plan",
                "Proves counts, offsets, totals, demand and bytes of a plan on every rank.",
                exchange_clauses({"EXCHANGE-0a", "EXCHANGE-0b", "EXCHANGE-0c"}),
                exchange_parameters({word_parameter("ids", {"i32", "i64"}, "type of the ids")}),
                select_plans, run_plan, exchange_objection});
}

}  // namespace dropless::conformance
