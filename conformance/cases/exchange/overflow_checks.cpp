// SPDX-License-Identifier: Apache-2.0
// The check every n steps: EXCHANGE-11a and 11b.
#include "conformance/cases/exchange/overflow.h"

namespace dropless::conformance {
namespace {

// A run that goes on where another one ended: periods count steps, not calls.
constexpr Index first_step = 7, steps = 7;

// Does this step overflow?
bool overflows(const std::string& where, Index step) {
  if (where == "first") return step == 0;
  if (where == "middle") return step == 3;
  if (where == "checked") return step == 1;  // of a period of three
  if (where == "last") return step == steps - 1;
  if (where == "several") return step == 1 || step == 3 || step == 4;
  return false;
}

// What the handle must say in every step, from the reference's.
struct Expected {
  reference::PlanOutcome outcome;
  reference::HandleState state;
};

const std::vector<Expected>& expectations(World& world,
                                          const std::vector<const Routing*>& routings) {
  return world.group.shared<std::vector<Expected>>("expectations", [&] {
    reference::ExchangeHandle handle(world.run.profile(), world.settings);
    std::vector<Expected> all;
    for (Index step = 0; step < steps; ++step) {
      const auto outcome =
          handle.plan(views(routings[at(step)]->ids), first_step + step, step + 1 == steps);
      all.push_back({outcome, handle.state()});
    }
    return all;
  });
}

void judge_report(World& world, const PlanBuffers& got, const Expected& expected,
                  const Routing& routing, Index step) {
  Judge& judge = world.run.judge();
  const reference::OverflowWatch::Report& report = expected.outcome.report;
  const std::string at_step = " of step " + std::to_string(step);
  judge.holds("EXCHANGE-11a", "checked" + at_step, got.checked == report.checked,
              report.checked ? "1" : "0", got.checked ? "1" : "0");
  const Index demand = got.demand->integers().at(0);
  judge.holds(
      "EXCHANGE-11b", "demand" + at_step, demand == report.demand || demand == routing.plan.demand,
      std::to_string(report.demand) + ", or this step's " + std::to_string(routing.plan.demand),
      std::to_string(demand));
  if (!report.checked) return;
  judge.exact("EXCHANGE-11b", "first_overflow_step" + at_step, *got.first_overflow,
              std::vector<Index>{report.first_overflow_step});
  judge.exact("EXCHANGE-11b", "unseen_steps" + at_step, *got.unseen,
              std::vector<Index>{report.unseen_steps});
}

void run_checks(CaseRun& run) {
  World world(run);
  prepare_overflow(world);
  world.settings.overflow_check_every = run.integer("every");
  const std::string& where = run.word("where");
  if (where != "nowhere" && run.profile().overflow_policy == DROPLESS_OVERFLOW_TRAP) {
    throw NotSupported{"a trap would end the process of the suite: nothing provokes it here"};
  }
  std::vector<const Routing*> routings;
  for (Index step = 0; step < steps; ++step) {
    const char* room =
        overflows(where, step) ? (step % 2 == 0 ? "one_above" : "far_above") : "exact";
    routings.push_back(&routing_with_demand(world, room));
  }
  const std::vector<Expected>& expected = expectations(world, routings);
  RankHandle handle(world);
  for (Index step = 0; step < steps; ++step) {
    const Routing& routing = *routings[at(step)];
    PlanBuffers got{};
    const dropless_status status =
        handle.try_plan(routing, got, {.step = first_step + step, .last_step = step + 1 == steps});
    const Expected& want = expected[at(step)];
    run.judge().holds("EXCHANGE-11b", "status of step " + std::to_string(step),
                      status == want.outcome.status, std::to_string(want.outcome.status),
                      std::to_string(status));
    judge_report(world, got, want, routing, step);
    if (want.state == reference::HandleState::delivers && status == DROPLESS_OK) {
      if (world.unordered() && routing.plan.overflow) continue;  // survivors are not defined
      judge_plan(world, routing, got, false);
      run_combine(world, handle, routing, run_dispatch(world, handle, routing, step).order, step);
    } else if (want.state != reference::HandleState::delivers) {
      const bool silent = want.state == reference::HandleState::silent;
      judge_refused_calls(world, handle, routing, silent ? "EXCHANGE-11a" : "EXCHANGE-10a", silent,
                          step);
    }
  }
  handle.close();
}

std::vector<Values> select_checks(Tier tier) {
  const std::vector<std::string> places = {"first", "middle",  "checked",
                                           "last",  "several", "nowhere"};
  const std::vector<Values> smoke =
      exchange_cases({.ranks = {"4"}, .experts = {"8"}, .tokens = {"12"}},
                     {{"every", {"3"}}, {"where", {"first", "several"}}}, overflow_objection);
  if (tier == Tier::smoke) return smoke;
  if (tier == Tier::full) return {};
  return without(
      exchange_cases(
          {.ranks = {"4", "8"}, .experts = {"8", "16"}, .top_k = {"1", "2"}, .tokens = {"12"}},
          {{"every", {"0", "1", "3", "100"}}, {"where", places}}, overflow_objection),
      smoke);
}

}  // namespace

void add_exchange_overflow_checks(Registry& registry) {
  registry.add(
      {"exchange.overflow_checks",
       "Proves that an overflow on any step is reported by the next check, with its step and what "
       "went unseen, and that nothing wrong is delivered in between.",
       step_clauses({"EXCHANGE-10a", "EXCHANGE-11a", "EXCHANGE-11b"}),
       exchange_parameters(
           {integer_parameter("every", 0, 1000, "steps between checks; 0: every step"),
            word_parameter("where", {"first", "middle", "checked", "last", "several", "nowhere"},
                           "the steps that overflow")}),
       select_checks, run_checks, overflow_objection});
}

}  // namespace dropless::conformance
