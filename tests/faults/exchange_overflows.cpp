// SPDX-License-Identifier: Apache-2.0
// Faults of what happens when rows do not fit, and of the check every n steps.
#include <algorithm>

#include "tests/faults/exchanges.h"

namespace dropless::faults {
namespace {

using Plan = dropless_exchange_plan_args;
constexpr auto plan = &Table::exchange_plan;

void around_plan(Planted& planted, Exchanges::Body<plan> fault) {
  Exchanges exchanges(planted);
  exchanges.around<plan>(std::move(fault));
}

void after_check(Planted& planted, void (*change)(Plan&, Seat&)) {
  around_plan(planted, [change](const auto& next, Plan& a, Seat& seat) {
    const dropless_status status = next(a);
    if (a.checked != 0) change(a, seat);
    return status;
  });
}

void with_policy(Planted& planted, int policy) {
  planted.declare([policy](dropless_profile& p) { p.overflow_policy = policy; });
}

Index capacity_of(const Seat& seat) {
  return reference::exchange_capacity(seat.profile, seat.settings);
}

void add_errors(std::vector<Fault>& faults) {
  const auto add = adder(faults);
  add("exchange.silent_truncation", "operator O19: a check that cannot fire",
      "rows that do not fit are dropped, and the plan succeeds", "one row above the capacity",
      {"EXCHANGE-10a"}, [](Planted& planted) {
        Exchanges exchanges(planted);
        planted.behave_as([](dropless_profile& p) { p.overflow_policy = DROPLESS_OVERFLOW_DROP; });
      });
  add("exchange.capacity_decided_locally", "DeepSpeed 6809",
      "only the rank that is too full returns an error", "unequal loads", {"EXCHANGE-10a"},
      [](Planted& planted) {
        around_plan(planted, [](const auto& next, Plan& a, Seat& seat) -> dropless_status {
          const dropless_status status = next(a);
          const bool fits =
              status == DROPLESS_OVERFLOW && seat.received().demand <= capacity_of(seat);
          return fits ? DROPLESS_OK : status;
        });
      });
  add("exchange.one_above_the_capacity_passes", "operator O20: off by one",
      "the least demand that does not fit counts as fitting", "one block above the capacity",
      {"EXCHANGE-10a"}, [](Planted& planted) {
        around_plan(planted, [](const auto& next, Plan& a, Seat& seat) -> dropless_status {
          const dropless_status status = next(a);
          const Index most = capacity_of(seat) + reference::exchange_alignment(seat.profile);
          return status == DROPLESS_OVERFLOW && seat.plan().demand <= most ? DROPLESS_OK : status;
        });
      });
  add("exchange.exact_fit_overflows", "operator O20: off by one",
      "a buffer that is exactly full counts as too small", "a demand that is the capacity",
      {"EXCHANGE-10a"}, [](Planted& planted) {
        around_plan(planted, [](const auto& next, Plan& a, Seat& seat) -> dropless_status {
          const dropless_status status = next(a);
          const bool full = seat.settings.ragged_buffer_factor != -1 && status == DROPLESS_OK &&
                            seat.plan().demand == capacity_of(seat);
          return full ? DROPLESS_OVERFLOW : status;
        });
      });
  add("exchange.demand_clipped_to_the_capacity", "operator O18: a formula with a wrong entry",
      "an overflow reports the capacity, which helps nobody to allocate", "any overflow",
      {"EXCHANGE-10a"}, [](Planted& planted) {
        around_plan(planted, [](const auto& next, Plan& a, Seat& seat) {
          const dropless_status status = next(a);
          if (status == DROPLESS_OVERFLOW) store(a.demand, capacity_of(seat));
          return status;
        });
      });
  add("exchange.counts_written_on_overflow", "operator O19: a check that is late",
      "counts are written before the overflow is found", "any overflow", {"EXCHANGE-10a"},
      [](Planted& planted) {
        around_plan(planted, [](const auto& next, Plan& a, Seat& seat) {
          const dropless_status status = next(a);
          if (status == DROPLESS_OVERFLOW) {
            each_integer(a.tokens_per_local_expert, [&](Index, Index local) {
              return seat.received().tokens_per_local_expert[at(local)];
            });
          }
          return status;
        });
      });
  add("exchange.overflow_is_final", "operator O8: a flag without a generation",
      "a handle that overflowed refuses every later plan", "a plan after an overflow",
      {"EXCHANGE-10a", "GENERAL-1", "EXCHANGE-11b"}, [](Planted& planted) {
        around_plan(planted, [](const auto& next, Plan& a, Seat& seat) -> dropless_status {
          const dropless_status status = next(a);
          if (seat.mark == DROPLESS_OVERFLOW) return DROPLESS_OVERFLOW;
          seat.mark = status;
          return status;
        });
      });
}

void add_drops(std::vector<Fault>& faults) {
  const auto add = [&](const char* name, const char* provenance, const char* symptom,
                       std::vector<std::string> clauses, void (*plant)(Planted&)) {
    faults.push_back({.name = name,
                      .provenance = provenance,
                      .symptom = symptom,
                      .trigger = "a capacity that is exceeded",
                      .clauses = std::move(clauses),
                      .plant = plant});
  };
  add("exchange.dropped_pairs_of_the_sender", "operator O3: send and receive order swapped",
      "dropped_pairs counts what this rank sent, not what it would have received", {"EXCHANGE-10c"},
      [](Planted& planted) {
        with_policy(planted, DROPLESS_OVERFLOW_DROP);
        Exchanges exchanges(planted);
        exchanges.after<plan>([](Plan& a, Seat& seat) {
          const auto& right = seat.plan();
          Index dropped = 0;
          for (Index pair = right.first_token[at(seat.rank)] * seat.top_k;
               pair < right.first_token[at(seat.rank) + 1] * seat.top_k; ++pair) {
            dropped += right.slot_of_pair[at(pair)] >= 0 && right.row_of_pair[at(pair)] < 0;
          }
          store(a.dropped_pairs, dropped);
        });
      });
  add("exchange.demand_after_the_drop", "operator O19: a check that cannot fire",
      "the demand is never above the capacity", {"EXCHANGE-4c", "EXCHANGE-10c"},
      [](Planted& planted) {
        with_policy(planted, DROPLESS_OVERFLOW_DROP);
        Exchanges exchanges(planted);
        exchanges.after<plan>([](Plan& a, Seat& seat) {
          store(a.demand, std::min(stored(a.demand), capacity_of(seat)));
        });
      });
  add("exchange.global_counts_after_the_drop", "operator O10: the value of the wrong twin",
      "dropped pairs are missing in the global counts", {"EXCHANGE-4d"}, [](Planted& planted) {
        with_policy(planted, DROPLESS_OVERFLOW_DROP);
        Exchanges exchanges(planted);
        exchanges.after<plan>([](Plan& a, Seat& seat) {
          const auto& right = seat.plan();
          std::vector<Index> counts(at(seat.experts), 0);
          for (std::size_t pair = 0; pair < right.row_of_pair.size(); ++pair) {
            if (right.row_of_pair[pair] < 0) continue;
            ++counts[at(right.topology.expert_of_slot[at(right.slot_of_pair[pair])])];
          }
          each_integer(a.global_counts, [&](Index, Index e) { return counts[at(e)]; });
        });
      });
  add("exchange.survivors_rescaled", "operator O9: a factor that does not belong there",
      "the weights of surviving pairs are scaled up to the token's sum",
      {"EXCHANGE-2b", "EXCHANGE-10c"}, [](Planted& planted) {
        with_policy(planted, DROPLESS_OVERFLOW_DROP);
        Exchanges exchanges(planted);
        exchanges.around<&Table::exchange_dispatch>(
            [](const auto& next, dropless_exchange_dispatch_args& a, Seat& seat) {
              const Copy weights(a.weights);
              if (!weights.readable()) return next(a);
              const TensorView w = weights.elements();
              const auto& right = seat.plan();
              const Index first = right.first_token[at(seat.rank)] * seat.top_k;
              for (Index t = 0; t < seat.tokens(); ++t) {
                double all = 0, left = 0;
                for (Index i = t * seat.top_k; i < (t + 1) * seat.top_k; ++i) {
                  if (right.slot_of_pair[at(first + i)] >= 0) all += w.load_flat(i);
                  if (right.row_of_pair[at(first + i)] >= 0) left += w.load_flat(i);
                }
                for (Index i = t * seat.top_k; i < (t + 1) * seat.top_k && left > 0; ++i) {
                  if (all != left) w.store_flat(w.load_flat(i) * all / left, i);
                }
              }
              a.weights = weights.tensor();
              return next(a);
            });
      });
  add("exchange.dropped_pair_gets_gradient", "operator O16: no backward twin",
      "the weight of a dropped pair gets the gradient of its neighbour", {"EXCHANGE-10c"},
      [](Planted& planted) {
        with_policy(planted, DROPLESS_OVERFLOW_DROP);
        Exchanges exchanges(planted);
        exchanges.after<&Table::exchange_dispatch_backward>(
            [](dropless_exchange_dispatch_backward_args& a, Seat& seat) {
              const auto& right = seat.plan();
              const Index first = right.first_token[at(seat.rank)] * seat.top_k;
              each(a.d_weights, [&](double value, Index i) {
                const bool dropped =
                    right.slot_of_pair[at(first + i)] >= 0 && right.row_of_pair[at(first + i)] < 0;
                return dropped ? 1.0 : value;
              });
            });
      });
  add("exchange.retry_is_limited", "operator O17: a neighbouring mode",
      "a plan that should tell the true number of rows returns an error", {"EXCHANGE-10d"},
      [](Planted& planted) {
        with_policy(planted, DROPLESS_OVERFLOW_RETRY);
        Exchanges exchanges(planted);
        planted.behave_as([](dropless_profile& p) { p.overflow_policy = DROPLESS_OVERFLOW_ERROR; });
      });
}

void add_checks(std::vector<Fault>& faults) {
  const auto add = adder(faults);
  add("exchange.last_step_not_checked", "operator O19: a check that is missing",
      "an overflow after the last period is never reported", "steps that no period divides",
      {"EXCHANGE-11a", "EXCHANGE-11b"}, [](Planted& planted) {
        around_plan(planted, [](const auto& next, Plan& a, Seat&) {
          a.last_step = 0;
          return next(a);
        });
      });
  add("exchange.checks_shifted_by_one", "operator O20: off by one",
      "the check is due when i mod n is 0", "a period of several steps",
      {"EXCHANGE-11a", "EXCHANGE-11b"}, [](Planted& planted) {
        around_plan(planted, [](const auto& next, Plan& a, Seat& seat) {
          const Index shift = seat.every - 1;
          a.step += shift;
          const dropless_status status = next(a);
          const Index first = stored(a.first_overflow_step);
          if (a.checked != 0 && first >= 0) store(a.first_overflow_step, first - shift);
          return status;
        });
      });
  add("exchange.check_sees_its_own_step_only", "operator O19: a check that cannot fire",
      "an overflow between two checks is not reported", "a period of several steps",
      {"EXCHANGE-11b"}, [](Planted& planted) {
        around_plan(planted, [](const auto& next, Plan& a, Seat& seat) -> dropless_status {
          const dropless_status status = next(a);
          const bool other = status == DROPLESS_OVERFLOW && !seat.plan().overflow;
          if (!other) return status;
          store(a.first_overflow_step, -1), store(a.unseen_steps, 0);
          return DROPLESS_OK;
        });
      });
  add("exchange.unseen_steps_off_by_one", "operator O20: off by one",
      "the step of the check counts as unseen", "an overflow between two checks", {"EXCHANGE-11b"},
      [](Planted& planted) {
        after_check(planted, [](Plan& a, Seat&) {
          if (stored(a.first_overflow_step) >= 0) store(a.unseen_steps, stored(a.unseen_steps) + 1);
        });
      });
  add("exchange.latest_overflow_reported", "operator O10: the last for the first",
      "a check reports the last step that overflowed", "two overflows between checks",
      {"EXCHANGE-11b"}, [](Planted& planted) {
        around_plan(planted, [](const auto& next, Plan& a, Seat& seat) {
          const dropless_status status = next(a);
          if (status != DROPLESS_INVALID_ARGUMENT && seat.plan().overflow) seat.mark = a.step;
          if (a.checked != 0 && stored(a.first_overflow_step) >= 0) {
            store(a.first_overflow_step, seat.mark), store(a.unseen_steps, a.step - seat.mark);
          }
          return status;
        });
      });
  add("exchange.record_not_cleared", "operator O8: a flag without a generation",
      "every later check reports the first overflow again",
      "a check after one that found something", {"EXCHANGE-11b"}, [](Planted& planted) {
        after_check(planted, [](Plan& a, Seat& seat) {
          if (seat.mark < 0) seat.mark = stored(a.first_overflow_step);
          if (seat.mark < 0) return;
          store(a.first_overflow_step, seat.mark), store(a.unseen_steps, a.step - seat.mark);
        });
      });
  add("exchange.overflow_flag_misread", "Megatron-LM 7133", "overflow is reported every step",
      "a check that finds none", {"EXCHANGE-11b"}, [](Planted& planted) {
        after_check(planted, [](Plan& a, Seat&) {
          if (stored(a.first_overflow_step) < 0) store(a.first_overflow_step, a.step);
        });
      });
  add("exchange.silent_step_delivers", "operator O19: a check that is late",
      "a step whose overflow is not known yet clears the output of its combine",
      "an overflow between two checks", {"EXCHANGE-11a"}, [](Planted& planted) {
        Exchanges exchanges(planted);
        exchanges.around<&Table::exchange_combine>(
            [](const auto& next, dropless_exchange_combine_args& a, Seat& seat) {
              const dropless_status status = next(a);
              if (status == DROPLESS_OK && seat.planned && !seat.delivers()) {
                each(a.y, [](double, Index) { return 0.0; });
              }
              return status;
            });
      });
}

}  // namespace

void add_exchange_overflows(std::vector<Fault>& faults) {
  add_errors(faults);
  add_drops(faults);
  add_checks(faults);
}

}  // namespace dropless::faults
