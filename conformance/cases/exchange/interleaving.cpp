// SPDX-License-Identifier: Apache-2.0
// Calls in other orders, several handles and late ranks: EXCHANGE-12a, 12b, 12d. No barrier stands
// between the calls of these cases.
#include <algorithm>
#include <functional>

#include "conformance/cases/exchange/numbers.h"

namespace dropless::conformance {
namespace {

// One handle with the calls that were made on it; a late rank waits before its first two dispatches
// and before its last combine, so that the others run ahead as far as the routing lets them.
class Player {
 public:
  Player(World& world, const std::string& name, Index first_call)
      : world_(world), routing_(world.routing(name)), handle_(world), next_call_(first_call) {}

  void plan() { judge_plan(world_, routing_, handle_.plan(routing_, {.step = next_step_++})); }
  void dispatch() {
    late(calls() < 2);
    dispatched_.push_back(run_dispatch(world_, handle_, routing_, next_call_ + calls()));
    if (calls() == 1 || !world_.unordered()) return;
    world_.run.judge().holds("EXCHANGE-3e", "order of the rows",
                             dispatched_.back().order == dispatched_.front().order,
                             "as in the first dispatch of the plan", "another");
  }
  // Of the oldest dispatch that has not been combined.
  void combine() {
    const Index which = combined_++;
    late(combined_ == calls());
    run_combine(world_, handle_, routing_, dispatched_[at(which)].order, next_call_ + which);
  }
  void close() { handle_.close(); }

 private:
  [[nodiscard]] Index calls() const { return static_cast<Index>(dispatched_.size()); }
  void late(bool now) const {
    const std::string& who = world_.run.word("late");
    const bool me = (who == "first" && world_.rank == 0) ||
                    (who == "last" && world_.rank + 1 == world_.ranks) ||
                    (who == "odd" && world_.rank % 2 == 1);
    if (now && me) wait_for(world_.run.integer("delay"));
  }

  World& world_;
  const Routing& routing_;
  RankHandle handle_;
  Index next_call_, next_step_ = 0;
  std::vector<Dispatched> dispatched_;
  Index combined_ = 0;
};

// Letters: d and c of the first handle, e and f (dispatch, combine) of the second, p and q: plans.
void play(const std::string& order, Player& first, Player* second) {
  for (const char call : order) {
    if (call == 'p') first.plan();
    if (call == 'd') first.dispatch();
    if (call == 'c') first.combine();
    if (call == 'q') second->plan();
    if (call == 'e') second->dispatch();
    if (call == 'f') second->combine();
  }
}

void play_order(World& world) {
  const std::string& order = world.run.word("order");
  Player first(world, "first", 0);
  const bool two = order.find('q') != std::string::npos;
  if (!two) {
    play(order, first, nullptr);
  } else {
    // The same routing in both handles hides nothing either: their tags name different calls.
    Player second(world, world.run.word("second") == "same" ? "first" : "second", 100);
    play(order, first, &second);
    second.close();
  }
  first.close();
}

// The same calls on a handle of its own, each once, with all ranks at its start.
void play_alone(World& world) {
  const Routing& routing = world.routing("first");
  RankHandle handle(world);
  world.meet();
  judge_plan(world, routing, handle.plan(routing));
  world.meet();
  const Dispatched dispatched = run_dispatch(world, handle, routing, 200);
  world.meet();
  run_combine(world, handle, routing, dispatched.order, 200);
  handle.close();
}

// What is right one call at a time must be right in this order, with these handles, when these
// ranks are late.
void run_order(CaseRun& run) {
  World world(run);
  make_room(world);
  Judge& judge = run.judge();
  play_alone(world);
  std::function<void()> part = [&] { play_order(world); };
  const auto is_about = [&](const char* clause, const char* what) {
    part = [&judge, clause, what, inner = std::move(part)] { about(judge, clause, what, inner); };
  };
  const std::string& order = run.word("order");
  if (judge.failed_checks() == 0) {
    if (order.find('q') != std::string::npos) is_about("EXCHANGE-12b", "calls on two handles");
    if (std::count(order.begin(), order.end(), 'd') > 1) {
      is_about("EXCHANGE-12a", "repeated calls of one plan");
    }
    if (run.word("late") != "none") is_about("EXCHANGE-12d", "calls of ranks that are late");
  }
  part();
}

const std::vector<std::string>& orders() {
  static const std::vector<std::string> all = {"pdc",       "pddcc",     "pdddccc", "pdcdcdc",
                                               "pqdecf",    "pqdefc",    "pdqecf",  "pqddeecfcf",
                                               "pdcqefqef", "pqeddfefcc"};
  return all;
}

std::string objection(const Values& values) {
  const std::string& order = value_of(values, "order");
  if (order.find('q') == std::string::npos && value_of(values, "second") == "same") {
    return "there is no second handle in this order";
  }
  return exchange_objection(values);
}

std::vector<Values> select_orders(Tier tier) {
  const auto more = [](std::vector<std::string> order, std::vector<std::string> second,
                       std::vector<std::string> late, std::vector<std::string> delay) {
    return std::vector<Axis>{{"order", std::move(order)},
                             {"second", std::move(second)},
                             {"late", std::move(late)},
                             {"delay", std::move(delay)}};
  };
  const std::vector<Values> smoke =
      exchange_cases({.ranks = {"4"}, .experts = {"8"}, .load = {"to_first"}},
                     more({"pdddccc", "pqdefc"}, {"other"}, {"first"}, {"10"}), objection);
  if (tier == Tier::smoke) return smoke;
  std::vector<Values> all = exchange_cases(
      {.ranks = {"2", "4", "8"}, .load = {"to_first", "to_next", "some_pairs"}},
      more(orders(), {"other", "same"}, {"none", "first", "last", "odd"}, {"10"}), objection);
  for (Values& values :
       exchange_cases({.ranks = {"1"}}, more(orders(), {"other"}, {"none"}, {"0"}), objection)) {
    all.push_back(std::move(values));
  }
  if (tier == Tier::standard) return without(all, smoke);
  return without(exchange_cases({.ranks = {"4"},
                                 .top_k = {"4"},
                                 .tokens = {"65"},
                                 .share = {"even", "uneven"},
                                 .load = exchange_load_names()},
                                more({"pdddccc", "pqddeecfcf"}, {"other", "same"},
                                     {"first", "last", "odd"}, {"40"}),
                                objection),
                 all);
}

}  // namespace

void add_exchange_interleaving(Registry& registry) {
  registry.add(
      {"exchange.interleaving",
       "Proves that repeated dispatches and combines, two handles and late ranks change nothing, "
       "without a barrier between calls. Handles are used in one order on all ranks.",
       step_clauses({"EXCHANGE-12a", "EXCHANGE-12b", "EXCHANGE-12d"}),
       exchange_parameters(
           {word_parameter("order", orders(),
                           "p, d, c: plan, dispatch, combine of the first handle; q, e, f: of the "
                           "second"),
            word_parameter("second", {"other", "same"}, "routing of the second handle"),
            word_parameter("late", {"none", "first", "last", "odd"}, "the ranks that wait"),
            integer_parameter("delay", 0, 200, "milliseconds before a late call")}),
       select_orders, run_order, objection});
}

}  // namespace dropless::conformance
