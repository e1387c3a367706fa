// SPDX-License-Identifier: Apache-2.0
// The drill: open, plan, dispatch, combine, close.
#include "conformance/ranks/drill.h"

#include <algorithm>

#include "conformance/cases/case_run.h"
#include "conformance/cases/selection.h"
#include "conformance/ranks/rank_group.h"

namespace dropless::conformance {
namespace {

// max_tokens is `first_trouble` plus the place in this list.
const std::vector<std::string> troubles{"none",   "skips", "dies",      "loops", "wrong_peer",
                                        "throws", "exits", "dies_once", "slow",  "fails"};
constexpr std::int64_t first_trouble = 1000;

template <class Args>
Args args_of(dropless_exchange* exchange) {
  auto args = make_args<Args>();
  args.exchange = exchange;
  return args;
}

void run_drill(CaseRun& run) {
  RankGroup& group = this_group();
  const dropless_implementation& table = run.implementation();
  auto settings = make_args<dropless_exchange_settings>();
  settings.rank = group.rank(), settings.ranks = group.ranks();
  settings.all_gather = all_gather_of_group, settings.all_gather_context = &group;
  settings.num_experts = group.ranks(), settings.top_k = 1;
  settings.max_tokens =
      first_trouble +
      (std::find(troubles.begin(), troubles.end(), run.word("trouble")) - troubles.begin());
  settings.row_bytes = 16, settings.ragged_buffer_factor = -1, settings.timeout_seconds = 10;
  auto open = make_args<dropless_exchange_open_args>();
  open.settings = &settings;
  run.perform("exchange_open", table.exchange_open, open);
  auto plan = args_of<dropless_exchange_plan_args>(open.exchange);
  run.perform("exchange_plan", table.exchange_plan, plan);
  auto dispatch = args_of<dropless_exchange_dispatch_args>(open.exchange);
  run.perform("exchange_dispatch", table.exchange_dispatch, dispatch);
  auto combine = args_of<dropless_exchange_combine_args>(open.exchange);
  run.perform("exchange_combine", table.exchange_combine, combine);
  auto close = args_of<dropless_exchange_close_args>(open.exchange);
  run.perform("exchange_close", table.exchange_close, close);

  std::vector<int> all(static_cast<std::size_t>(group.ranks()), -1);
  const int mine = 7 + group.rank();
  run.judge().holds("GENERAL-1", "all ranks are here",
                    group.all_gather(&mine, all.data(), sizeof mine), "yes", "no");
  for (int rank = 0; rank < group.ranks(); ++rank) {
    run.judge().holds("GENERAL-1", "the order of ranks",
                      all[static_cast<std::size_t>(rank)] == 7 + rank, "its place", "another");
  }
}

Values values(int ranks, int seed) {
  return {{"ranks", std::to_string(ranks)}, {"trouble", "none"}, {"seed", std::to_string(seed)}};
}

}  // namespace

void add_rank_drill(Registry& registry) {
  Family family;
  family.name = "ranks.drill";
  family.purpose = "The runner finds the rank that all others wait for; judges no implementation.";
  family.clauses = {"GENERAL-1"};
  family.parameters = {integer_parameter("ranks", 1, 1024, "ranks R"),
                       word_parameter("trouble", troubles, "what one of the ranks does"),
                       integer_parameter("seed", 0, 1 << 30, "tells cases apart")};
  std::vector<Values> smoke, standard;
  for (const int ranks : {1, 2, 4}) {
    for (int seed = 1; seed <= 3; ++seed) smoke.push_back(values(ranks, seed));
  }
  for (int seed = 1; seed <= 3; ++seed) standard.push_back(values(8, seed));
  family.select = tiers(smoke, standard);
  family.run = run_drill;
  registry.add(std::move(family));
}

}  // namespace dropless::conformance
