// SPDX-License-Identifier: Apache-2.0
// Plans: PERMUTATION-1, 2, 3a, 5 and the tail of source.
#include <algorithm>
#include <numeric>

#include "conformance/cases/permutation/setup.h"
#include "conformance/cases/selection.h"

namespace dropless::conformance {
namespace {

struct PlanOutputs {
  Buffer *counts, *offsets, *row_map, *source, *demand;
};

PlanOutputs plan_outputs(CaseRun& run, const RoutedTokens& routed) {
  Buffers& buffers = run.buffers();
  const Layout plausible{.poison = Poison::plausible};
  return {&buffers.output("tokens_per_expert", DROPLESS_I64, {routed.experts}),
          &buffers.output("offsets", DROPLESS_I64, {routed.experts + 1}, plausible),
          &buffers.output("row_map", DROPLESS_I64, routed.slots(), plausible),
          &buffers.output("source", DROPLESS_I64, {routed.length}, plausible),
          &buffers.output("demand", DROPLESS_I64, {1})};
}

dropless_permute_plan_args plan_args(const RoutedTokens& routed, const Buffer& ids,
                                     const PlanOutputs& out, Index capacity) {
  auto args = make_args<dropless_permute_plan_args>();
  args.num_experts = routed.experts;
  args.row_capacity = capacity;
  args.ids = ids.tensor();
  args.tokens_per_expert = out.counts->tensor();
  args.offsets = out.offsets->tensor();
  args.row_map = out.row_map->tensor();
  args.source = out.source->tensor();
  args.demand = out.demand->tensor();
  return args;
}

// source beyond offsets[E] is untouched or -1: an id there could be taken for a row.
void judge_source_tail(CaseRun& run, const Buffer& source, Index rows) {
  const std::vector<Index> got = source.integers();
  const std::vector<bool> untouched = source.untouched();
  for (std::size_t i = static_cast<std::size_t>(rows); i < got.size(); ++i) {
    run.judge().holds("PERMUTATION-8", "source beyond the last zone", untouched[i] || got[i] == -1,
                      "untouched or -1", std::to_string(got[i]), "[" + std::to_string(i) + "]");
  }
}

void judge_plan(CaseRun& run, const reference::PermutePlan& plan, const PlanOutputs& out) {
  Judge& judge = run.judge();
  std::vector<Index> source = plan.source;
  Judged judged(static_cast<std::size_t>(out.source->size()), false);
  std::fill_n(judged.begin(), source.size(), true);
  source.resize(judged.size(), -1);
  judge.exact("PERMUTATION-1b", "tokens_per_expert", *out.counts, plan.tokens_per_expert);
  judge.exact("PERMUTATION-3a", "offsets", *out.offsets, plan.offsets);
  judge.exact("PERMUTATION-1a", "source", *out.source, source, judged);
  judge.exact("PERMUTATION-2", "row_map", *out.row_map, plan.row_map);
  judge.exact("PERMUTATION-5", "demand", *out.demand, std::vector<Index>{plan.demand});
  judge_source_tail(run, *out.source, plan.rows());
}

// The relation of PERMUTATION-2, looked at without the reference.
void judge_bijection(CaseRun& run, const RoutedTokens& routed, const PlanOutputs& out) {
  const std::vector<Index> row_map = out.row_map->integers(), source = out.source->integers();
  const std::vector<Index> offsets = out.offsets->integers();
  Index real = 0, wrong = -1;
  for (std::size_t pair = 0; pair < row_map.size(); ++pair) {
    const Index row = row_map[pair];
    if (row < 0) continue;
    ++real;
    const bool there =
        row < routed.length && source[static_cast<std::size_t>(row)] == static_cast<Index>(pair);
    if (!there && wrong < 0) wrong = static_cast<Index>(pair);
  }
  run.judge().holds("PERMUTATION-2", "source[row_map[pair]]", wrong < 0, "pair, for every pair",
                    "broken at pair " + std::to_string(wrong));
  Index rows = 0;
  for (Index row = 0; row < std::min(offsets.back(), routed.length); ++row) {
    rows += source[static_cast<std::size_t>(row)] >= 0 ? 1 : 0;
  }
  run.judge().holds("PERMUTATION-2", "real rows", rows == real, std::to_string(real) + " pairs",
                    std::to_string(rows) + " rows");
}

void run_plan(CaseRun& run) {
  const RoutedTokens routed = routed_tokens(run);
  const dropless_dtype id_dtype = run.word("ids") == "i32" ? DROPLESS_I32 : DROPLESS_I64;
  const Layout gaps{.row_gap = run.word("strides") == "gaps" ? 3 : 0};
  Buffer& ids = run.buffers().input("ids", id_dtype, routed.slots(), routed.ids, gaps);
  const PlanOutputs out = plan_outputs(run, routed);
  auto args = plan_args(routed, ids, out, -1);
  run.perform("permute_plan", run.implementation().permute_plan, args);
  judge_plan(run, routed.plan, out);
  judge_bijection(run, routed, out);
}

void run_capacity(CaseRun& run) {
  RoutedTokens routed = routed_tokens(run);
  const Index demand = routed.plan.demand;
  const Index a = std::max(run.profile().alignment, 1);
  const std::string& room = run.word("room");
  Index capacity = 0;
  if (room == "half") capacity = demand / 2 / a * a;
  if (room == "one_block_short") capacity = std::max<Index>(demand - a, 0);
  if (room == "exact") capacity = demand;
  if (room == "ample") capacity = demand + 4 * a;
  routed.plan = reference::permute_plan(run.profile(), routed.tokens, routed.top_k, routed.experts,
                                        routed.ids, capacity);
  run.judge().require(
      room == "exact" || room == "ample" || demand == 0 || routed.plan.rows() < demand,
      "the capacity cuts rows");
  routed.length = capacity + 5;
  Buffer& ids = run.buffers().input("ids", DROPLESS_I64, routed.slots(), routed.ids);
  const PlanOutputs out = plan_outputs(run, routed);
  auto args = plan_args(routed, ids, out, capacity);
  run.perform("permute_plan", run.implementation().permute_plan, args, "PERMUTATION-5");
  judge_plan(run, routed.plan, out);
}

void run_repeat(CaseRun& run) {
  const RoutedTokens routed = routed_tokens(run);
  Buffer& ids = run.buffers().input("ids", DROPLESS_I32, routed.slots(), routed.ids);
  const PlanOutputs out = plan_outputs(run, routed);
  auto args = plan_args(routed, ids, out, -1);
  run.perform("permute_plan", run.implementation().permute_plan, args);
  const auto row_map = out.row_map->bytes(), offsets = out.offsets->bytes();
  if (run.profile().determinism == DROPLESS_DETERMINISTIC_NO)
    return judge_plan(run, routed.plan, out);
  const bool any = run.profile().determinism == DROPLESS_DETERMINISTIC_ANY_THREADS;
  for (const int threads : any ? std::vector<int>{1, 2, 3} : std::vector<int>{1, 1}) {
    run.buffers().poison_outputs();
    run.perform_with_threads(threads, "permute_plan", run.implementation().permute_plan, args);
    const std::string what = " with " + std::to_string(threads) + " threads";
    run.judge().same_bytes("GENERAL-5", "row_map" + what, *out.row_map, row_map);
    run.judge().same_bytes("GENERAL-5", "offsets" + what, *out.offsets, offsets);
  }
}

// Other ids at the same address: what was remembered of the first ones is worth nothing.
void run_changed_ids(CaseRun& run) {
  RoutedTokens routed = routed_tokens(run);
  Buffer& ids = run.buffers().input("ids", DROPLESS_I32, routed.slots(), routed.ids);
  const PlanOutputs out = plan_outputs(run, routed);
  auto args = plan_args(routed, ids, out, -1);
  run.perform("permute_plan", run.implementation().permute_plan, args);
  judge_plan(run, routed.plan, out);

  std::reverse(routed.ids.begin(), routed.ids.end());
  std::vector<std::uint8_t> bytes;
  for (const Index id : routed.ids) {
    for (int byte = 0; byte < 4; ++byte) bytes.push_back(static_cast<std::uint8_t>(id >> 8 * byte));
  }
  ids.overwrite(bytes);
  const std::vector<Index> before = routed.plan.row_map;
  routed.plan = reference::permute_plan(run.profile(), routed.tokens, routed.top_k, routed.experts,
                                        routed.ids);
  // With one expert for all, or hardly a pair, the ids read the same backwards.
  const auto& counts = routed.plan.tokens_per_expert;
  const Index pairs = std::accumulate(counts.begin(), counts.end(), Index{0});
  const bool may_be_alike = run.word("load") == "one_hot" || pairs < 16;
  run.judge().require(may_be_alike || routed.plan.row_map != before,
                      "the other ids have another plan");
  run.buffers().poison_outputs();
  run.perform("permute_plan", run.implementation().permute_plan, args);
  judge_plan(run, routed.plan, out);
}

std::vector<Values> select_plans(Tier tier) {
  const auto smoke =
      product(permutation_axes({"deepseek-v3", "mixtral-8x7b"}, {"65"},
                               {"balanced", "one_hot", "empty_last", "tile_edge", "all_empty"},
                               {{"ids", {"i32"}}, {"strides", {"dense"}}}));
  if (tier == Tier::smoke) return smoke;
  const std::vector<Axis> more = {{"ids", {"i32", "i64"}}, {"strides", {"dense", "gaps"}}};
  auto standard =
      without(pairwise(permutation_axes(
                  {"deepseek-v3", "qwen3-30b-a3b", "gpt-oss-20b", "kimi-k2", "llama-4-scout",
                   "qwen3-next-80b-a3b", "grok-1", "granite-3-1-3b-a800m"},
                  {"0", "1", "33", "257"}, load_names(), more)),
              smoke);
  // More than 2^16 pairs of token and slot: indices of 16 bits run out.
  for (Values& values : product(permutation_axes({"deepseek-v3"}, {"8200"}, {"zipf"},
                                                 {{"ids", {"i32"}}, {"strides", {"dense"}}}))) {
    standard.push_back(std::move(values));
  }
  if (tier == Tier::standard) return standard;
  return without(pairwise(permutation_axes(top_k_models(), {"31", "4096"}, load_names(), more)),
                 standard);
}

std::vector<Values> select_capacities(Tier tier) {
  const auto smoke =
      product(permutation_axes({"deepseek-v3"}, {"65"}, {"zipf"}, {{"room", {"half", "exact"}}}));
  if (tier == Tier::smoke) return smoke;
  if (tier == Tier::full) return {};
  return without(
      pairwise(permutation_axes({"deepseek-v3", "mixtral-8x7b", "gpt-oss-20b"}, {"65", "129"},
                                {"zipf", "one_hot", "empty_middle", "alternating"},
                                {{"room", {"half", "exact", "none", "one_block_short", "ample"}}})),
      smoke);
}

std::vector<Values> select_repeats(Tier tier) {
  if (tier != Tier::standard) return {};
  return product(permutation_axes({"deepseek-v3", "mixtral-8x7b"}, {"1025"}, {"zipf"}));
}

}  // namespace

void add_permutation_plans(Registry& registry) {
  const std::vector<std::string> plan_clauses = {"PERMUTATION-1a", "PERMUTATION-1b",
                                                 "PERMUTATION-2",  "PERMUTATION-3a",
                                                 "PERMUTATION-5",  "PERMUTATION-8"};
  registry.add({"permutation.plan",
                "Proves the order of the rows, counts, offsets and both maps for one routing; says "
                "nothing about the rows themselves.",
                plan_clauses,
                permutation_parameters(
                    {{"ids", {"i32", "i64"}, 0, 0, "integer type of the ids"},
                     {"strides", {"dense", "gaps"}, 0, 0, "gaps between the rows of the ids"}}),
                select_plans, run_plan});
  registry.add({"permutation.capacity",
                "Proves who survives a row capacity and that the true demand is told.",
                plan_clauses,
                permutation_parameters({{"room",
                                         {"none", "half", "one_block_short", "exact", "ample"},
                                         0,
                                         0,
                                         "row capacity, relative to the demand"}}),
                select_capacities, run_capacity});
  registry.add({"permutation.changed_ids",
                "Proves that other ids at the same address have their own plan.", plan_clauses,
                permutation_parameters(),
                [](Tier tier) {
                  if (tier == Tier::full) return std::vector<Values>{};
                  return product(permutation_axes(
                      {tier == Tier::smoke ? "mixtral-8x7b" : "deepseek-v3"}, {"65"}, {"zipf"}));
                },
                run_changed_ids});
  std::vector<std::string> repeat_clauses = plan_clauses;
  repeat_clauses.emplace_back("GENERAL-5");
  registry.add({"permutation.plan_repeat",
                "Proves that a plan is the same again, for other thread counts where declared.",
                repeat_clauses, permutation_parameters(), select_repeats, run_repeat});
}

}  // namespace dropless::conformance
