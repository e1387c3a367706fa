// SPDX-License-Identifier: Apache-2.0
// Many steps of one handle: EXCHANGE-8b and 12c.
#include <algorithm>

#include "conformance/cases/exchange/numbers.h"

namespace dropless::conformance {
namespace {

constexpr Index widest = 33;  // elements of a row

struct Step {
  std::string name;  // steps of one name have the same routing
  StepChange change;
  Index hidden = 20;
};

std::vector<Step> steps_of(const std::string& sequence, Index tokens) {
  const Step first{"first", {}};
  if (sequence == "small_large_small") {
    const Step few{"few", {.tokens = std::min(tokens / 4 + 1, tokens)}};
    return {few, first, {"half", {.tokens = tokens / 2}}, few, first};
  }
  if (sequence == "shapes") {  // rows of other lengths on the buffers of the same handle
    return {first,
            {"first", {}, 8},
            {"half", {.tokens = tokens / 2}, widest},
            {"first", {}, widest},
            first};
  }
  if (sequence == "large_small_large") {
    return {first,
            {"one", {.tokens = std::min<Index>(1, tokens)}},
            first,
            {"half", {.tokens = tokens / 2}},
            first};
  }
  if (sequence == "to_nothing_and_back") {
    return {first, {"nobody", {.share = "none"}}, first, {"nowhere", {.load = "all_empty"}}, first};
  }
  if (sequence == "moving") {  // other ranks hold the tokens, other ranks get the rows
    return {first,
            {"ahead", {.load = "to_next", .share = "only_on_last"}},
            {"one rank", {.load = "to_first", .share = "none_on_first"}},
            {"home", {.load = "to_self", .share = "uneven"}},
            first};
  }
  // The same numbers of rows of every rank, from a to c also of every expert; other tokens.
  const Step a{"a", {.load = "to_next"}};
  return {a, {"b", {.load = "to_next"}}, a, {"c", {.load = "to_next", .reversed = "a"}}, a};
}

void run_steps(CaseRun& run) {
  World world(run);
  make_room(world, widest);
  RankHandle handle(world);
  const std::vector<Step> steps = steps_of(run.word("sequence"), run.integer("tokens"));
  std::vector<Index> rows_of_step;
  StepResult first;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const Routing& routing = world.routing(steps[i].name, steps[i].change);
    const bool again =
        i > 0 && steps[i].name == steps[0].name && steps[i].hidden == steps[0].hidden;
    Index rows = 0;
    for (const auto& received : routing.plan.received) rows += received.rows();
    rows_of_step.push_back(rows);
    StepResult result = run_step(world, handle, routing, again ? 0 : static_cast<Index>(i),
                                 {.step = static_cast<Index>(i)}, steps[i].hidden);
    if (i == 0) first = result;
    if (!again || world.unordered()) continue;
    const std::string what = " of step " + std::to_string(i) + " as of step 0";
    run.judge().holds("EXCHANGE-12c", "rows" + what, result.rows == first.rows, "the same bits",
                      "others");
    run.judge().holds("EXCHANGE-8b", "y" + what, result.y == first.y, "the same bits", "others");
  }
  const std::string& sequence = run.word("sequence");
  run.judge().require(sequence == "same_counts" || sequence == "shapes" ||
                          (sequence == "moving" && world.ranks == 1) || run.integer("tokens") < 4 ||
                          run.word("load") == "all_empty" || run.word("share") == "none" ||
                          rows_of_step[0] != rows_of_step[1],
                      "the steps differ in size");
  handle.close();
}

const std::vector<std::string>& sequence_names() {
  static const std::vector<std::string> names = {
      "large_small_large", "to_nothing_and_back", "moving",
      "same_counts",       "small_large_small",   "shapes"};
  return names;
}

std::vector<Values> select_steps(Tier tier) {
  const std::vector<std::string>& sequences = sequence_names();
  const std::vector<Values> smoke =
      exchange_cases({.ranks = {"4"}, .experts = {"8"}},
                     {{"sequence", {"large_small_large", "moving", "shapes"}}});
  if (tier == Tier::smoke) return smoke;
  std::vector<Values> all =
      exchange_cases({.top_k = {"1", "4"}, .tokens = {"17", "64"}, .load = {"zipf", "one_rank"}},
                     {{"sequence", sequences}});
  for (Values& values :
       exchange_cases({.ranks = {"2", "4"}, .experts = {"8"}, .placement = {"cyclic", "hot"}},
                      {{"sequence", sequences}})) {
    all.push_back(std::move(values));
  }
  if (tier == Tier::standard) return without(all, smoke);
  return without(exchange_cases({.top_k = {"8"}, .tokens = {"257"}, .load = load_names()},
                                {{"sequence", sequences}}),
                 all);
}

}  // namespace

void add_exchange_steps(Registry& registry) {
  registry.add({"exchange.steps",
                "Proves that a handle leaves nothing of one step in the next, with sizes that grow "
                "and shrink and ranks that have nothing.",
                step_clauses({"EXCHANGE-8b", "EXCHANGE-12c"}),
                exchange_parameters({word_parameter("sequence", sequence_names(), "of the steps")}),
                select_steps, run_steps, exchange_objection});
}

}  // namespace dropless::conformance
