// SPDX-License-Identifier: Apache-2.0
// Faults of what a handle keeps, of several handles, of ranks without tokens, and of ranks that are
// late or lost. In the reference's exchange every rank waits for every other one: a rank that
// should have waited and did not is shown by what it would have read, whenever another rank began
// its call so much later that it could not be ready.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "tests/faults/exchanges.h"

namespace dropless::faults {
namespace {

using Plan = dropless_exchange_plan_args;
using Dispatch = dropless_exchange_dispatch_args;
using Combine = dropless_exchange_combine_args;
constexpr auto plan = &Table::exchange_plan;
constexpr auto dispatch = &Table::exchange_dispatch;
constexpr auto combine = &Table::exchange_combine;

constexpr double late = 0.005;  // seconds

dropless_status fails(dropless_call* call, const char* why, dropless_status status) {
  std::strncpy(call->message, why, sizeof call->message - 1);
  return status;
}

void add_empty(std::vector<Fault>& faults) {
  faults.push_back({.name = "exchange.rank_without_tokens",
                    .provenance = "uccl 898; DeepEP 447",
                    .symptom = "a rank that receives nothing fails",
                    .trigger = "routing that avoids one rank",
                    .clauses = {"EXCHANGE-8a"},
                    .plant = [](Planted& planted) {
                      Exchanges exchanges(planted);
                      exchanges.impatient();
                      exchanges.around<dispatch>(
                          [](const auto& next, Dispatch& a, Seat& seat) -> dropless_status {
                            const dropless_status status = next(a);
                            if (status != DROPLESS_OK || !seat.delivers()) return status;
                            if (seat.received().rows() > 0) return status;
                            return fails(next.call(), "null data", DROPLESS_INVALID_ARGUMENT);
                          });
                    }});
  faults.push_back({.name = "exchange.nothing_to_send_returns_early",
                    .provenance = "sgl-kernel-npu 69; sglang 25397",
                    .symptom = "a rank without tokens leaves out a dispatch that others wait for",
                    .trigger = "a rank without tokens",
                    .clauses = {"EXCHANGE-8a", "EXCHANGE-1a"},
                    .plant = [](Planted& planted) {
                      Exchanges exchanges(planted);
                      exchanges.impatient();
                      exchanges.around<dispatch>(
                          [](const auto& next, Dispatch& a, Seat& seat) -> dropless_status {
                            return seat.tokens() == 0 ? DROPLESS_OK : next(a);
                          });
                    }});
  faults.push_back({.name = "exchange.empty_rank_keeps_old_counts",
                    .provenance = "operator O4: a zero case that is dropped",
                    .symptom = "a rank that receives nothing writes no total",
                    .trigger = "routing that avoids one rank",
                    .clauses = {"EXCHANGE-5a", "EXCHANGE-8a"},
                    .plant = [](Planted& planted) {
                      Exchanges exchanges(planted);
                      exchanges.around<plan>([](const auto& next, Plan& a, Seat&) {
                        const Copy old(a.total_rows);
                        const dropless_status status = next(a);
                        if (status == DROPLESS_OK && stored(a.total_rows) == 0) old.write_back();
                        return status;
                      });
                    }});
}

void add_stale(std::vector<Fault>& faults) {
  faults.push_back({.name = "exchange.plan_kept_while_counts_agree",
                    .provenance = "nccl-extensions 6",
                    .symptom = "a plan with the same counts as the one before leaves that in force",
                    .trigger = "two routings with equal counts",
                    .clauses = {"EXCHANGE-2a", "EXCHANGE-12c"},
                    .plant = [](Planted& planted) {
                      Exchanges exchanges(planted);
                      exchanges.around<plan>([](const auto& next, Plan& a, Seat& seat) {
                        const Copy ids(a.ids);
                        if (!ids.readable()) return next(a);
                        const std::vector<Index> asked = integers_of(a.ids);
                        std::vector<Index>& old = seat.numbers;
                        std::vector<Index> before = old, now = asked;  // the same multiset of ids:
                        std::sort(before.begin(), before.end());       // every count agrees
                        std::sort(now.begin(), now.end());
                        if (before != now) old = asked;
                        for (std::size_t i = 0; i < old.size(); ++i) {
                          ids.elements().store_integer_flat(old[i], static_cast<Index>(i));
                        }
                        Plan b = a;
                        b.ids = ids.tensor();
                        const dropless_status status = next(b);
                        a.checked = b.checked;
                        return status;
                      });
                    }});
  faults.push_back({.name = "exchange.total_never_shrinks",
                    .provenance = "operator O8: a buffer without a generation",
                    .symptom = "the total is the largest so far",
                    .trigger = "fewer rows than in an earlier step",
                    .clauses = {"EXCHANGE-5a", "EXCHANGE-4c"},
                    .plant = [](Planted& planted) {
                      Exchanges exchanges(planted);
                      exchanges.after<plan>([](Plan& a, Seat& seat) {
                        seat.mark = std::max(seat.mark, stored(a.total_rows));
                        store(a.total_rows, seat.mark);
                      });
                    }});
  faults.push_back({.name = "exchange.buffer_shrinks_for_good",
                    .provenance = "Tutel 84",
                    .symptom = "tokens beyond the smallest step so far get zeros",
                    .trigger = "many tokens after few",
                    .clauses = {"EXCHANGE-8b", "EXCHANGE-6d"},
                    .plant = [](Planted& planted) {
                      Exchanges exchanges(planted);
                      exchanges.after<combine>([](Combine& a, Seat& seat) {
                        if (seat.mark < 0 || seat.tokens() < seat.mark) seat.mark = seat.tokens();
                        for (Index t = seat.mark; t < seat.tokens(); ++t) clear_row(view(a.y), t);
                      });
                    }});
  faults.push_back({.name = "exchange.buffer_of_the_first_step",
                    .provenance = "operator O13: a fixed limit",
                    .symptom = "tokens beyond those of the first step get zeros",
                    .trigger = "more tokens than in the first step",
                    .clauses = {"EXCHANGE-6d", "EXCHANGE-8b"},
                    .plant = [](Planted& planted) {
                      Exchanges exchanges(planted);
                      exchanges.after<combine>([](Combine& a, Seat& seat) {
                        if (seat.mark < 0) seat.mark = seat.tokens();
                        for (Index t = seat.mark; t < seat.tokens(); ++t) clear_row(view(a.y), t);
                      });
                    }});
  faults.push_back({.name = "exchange.stale_flags_of_another_shape",
                    .provenance = "TRT-LLM 6141",
                    .symptom =
                        "a dispatch of another row size than the one before reads old flags: "
                        "rows of other ranks are not awaited",
                    .trigger = "alternating shapes on one handle",
                    .clauses = {"EXCHANGE-1a", "EXCHANGE-12a"},
                    .plant = [](Planted& planted) {
                      Exchanges exchanges(planted);
                      exchanges.after<dispatch>([](Dispatch& a, Seat& seat) {
                        const Index bytes = view(a.rows).shape(1) * element_bytes(a.rows->dtype);
                        const bool other = seat.mark >= 0 && seat.mark != bytes;
                        seat.mark = bytes;
                        if (!other) return;
                        const std::vector<Index> sources = seat.sources();
                        for (Index row = 0; 2 * row < static_cast<Index>(sources.size()); ++row) {
                          const Index from = sources[at(2 * row)];
                          if (from >= 0 && from != seat.rank) clear_row(view(a.rows), row);
                        }
                      });
                    }});
  faults.push_back({.name = "exchange.second_dispatch_sends_the_first",
                    .provenance = "operator O8: a buffer without a generation",
                    .symptom = "a repeated dispatch of a plan delivers the rows of the first one",
                    .trigger = "two dispatches of one plan",
                    .clauses = {"EXCHANGE-12a", "EXCHANGE-1a"},
                    .plant = [](Planted& planted) {
                      Exchanges exchanges(planted);
                      exchanges.after<dispatch>([](Dispatch& a, Seat& seat) {
                        const bool again = seat.mark == seat.plans && !seat.copies.empty();
                        seat.mark = seat.plans;
                        if (again && view(seat.copies[0]->tensor()).size() == view(a.rows).size()) {
                          seat.copies[0]->write_to(a.rows);
                          return;
                        }
                        seat.copies.clear();
                        seat.copies.push_back(std::make_unique<Copy>(a.rows));
                      });
                    }});
  faults.push_back({.name = "exchange.one_event_for_several_combines",
                    .provenance = "prime-rl 3411",
                    .symptom = "of two combines one after the other only one is complete",
                    .trigger = "two dispatches, then two combines",
                    .clauses = {"EXCHANGE-12a", "EXCHANGE-6d"},
                    .plant = [](Planted& planted) {
                      Exchanges exchanges(planted);
                      exchanges.after<dispatch>([](Dispatch&, Seat& seat) { seat.mark = 0; });
                      exchanges.around<combine>([](const auto& next, Combine& a, Seat& seat) {
                        const Copy old(a.y);
                        const dropless_status status = next(a);
                        if (status == DROPLESS_OK && seat.mark++ > 0) old.write_back();
                        return status;
                      });
                    }});
  faults.push_back({.name = "exchange.illegal_plan_ends_the_old_one",
                    .provenance = "operator O19: a check that is late",
                    .symptom = "a plan that is refused leaves no plan in force",
                    .trigger = "illegal ids after a good plan",
                    .clauses = {"EXCHANGE-12c", "GENERAL-1"},
                    .plant = [](Planted& planted) {
                      Exchanges exchanges(planted);
                      exchanges.impatient();
                      exchanges.around<plan>([](const auto& next, Plan& a, Seat& seat) {
                        const dropless_status status = next(a);
                        seat.mark = status == DROPLESS_INVALID_ARGUMENT ? 1 : 0;
                        return status;
                      });
                      exchanges.around<dispatch>(
                          [](const auto& next, Dispatch& a, Seat& seat) -> dropless_status {
                            if (seat.mark != 1) return next(a);
                            return fails(next.call(), "no plan", DROPLESS_INVALID_ARGUMENT);
                          });
                    }});
}

void add_handles(std::vector<Fault>& faults) {
  // Per rank, that is per thread: the handle that was planned last.
  faults.push_back({.name = "exchange.workspace_of_the_process",
                    .provenance = "TRT-LLM 15168",
                    .symptom = "a dispatch follows the plan that was made last, on any handle",
                    .trigger = "two handles with different routings",
                    .clauses = {"EXCHANGE-12b", "EXCHANGE-1a"},
                    .plant = [](Planted& planted) {
                      static thread_local dropless_exchange* latest = nullptr;
                      Exchanges exchanges(planted);
                      exchanges.impatient();
                      exchanges.after<plan>([](Plan& a, Seat&) { latest = a.exchange; });
                      exchanges.around<dispatch>([](const auto& next, Dispatch& a, Seat&) {
                        a.exchange = latest;
                        return next(a);
                      });
                      exchanges.around<&Table::exchange_close>(
                          [](const auto& next, auto& a, Seat&) { return next(a); });
                    }});
  faults.push_back({.name = "exchange.second_handle_takes_the_staging",
                    .provenance = "nccl-extensions 6",
                    .symptom = "rows are those of the latest dispatch on any handle of the rank",
                    .trigger = "two handles that alternate",
                    .clauses = {"EXCHANGE-12b", "EXCHANGE-2a"},
                    .plant = [](Planted& planted) {
                      static thread_local std::unique_ptr<Copy> staging;
                      static thread_local const dropless_exchange* owner = nullptr;
                      Exchanges exchanges(planted);
                      exchanges.settings([](dropless_exchange_settings&) { staging.reset(); });
                      exchanges.around<dispatch>([](const auto& next, Dispatch& a, Seat&) {
                        // What the other handle has put there is sent once more.
                        const bool foreign = staging != nullptr && owner != a.exchange &&
                                             view(staging->tensor()).size() == view(a.x).size();
                        auto mine = std::make_unique<Copy>(a.x);
                        if (foreign) a.x = staging->tensor();
                        const dropless_status status = next(a);
                        staging = std::move(mine), owner = a.exchange;
                        return status;
                      });
                    }});
}

// Rows of ranks that began this dispatch much later: what the receiver would have seen.
template <class Seen>
void unless_awaited(Planted& planted, Seen seen) {
  Exchanges exchanges(planted);
  exchanges.around<dispatch>([seen](const auto& next, Dispatch& a, Seat& seat) {
    const Index call = seat.arrive();
    const dropless_status status = next(a);
    if (status != DROPLESS_OK || !seat.delivers()) return status;
    const std::vector<Index> sources = seat.sources();
    auto mine = std::make_unique<Copy>(a.rows);
    for (Index row = 0; 2 * row < static_cast<Index>(sources.size()); ++row) {
      const Index from = sources[at(2 * row)];
      if (from >= 0 && seat.wait_for(call, from) > late) seen(a, seat, row);
    }
    seat.copies.clear();
    seat.copies.push_back(std::move(mine));
    return status;
  });
}

void add_late(std::vector<Fault>& faults) {
  faults.push_back({.name = "exchange.count_overtakes_payload",
                    .provenance = "uccl 387, 430, 453",
                    .symptom = "rows of a rank that is late are read before they have arrived",
                    .trigger = "a rank that is late",
                    .clauses = {"EXCHANGE-12d", "EXCHANGE-1a"},
                    .plant = [](Planted& planted) {
                      unless_awaited(planted, [](Dispatch& a, Seat&, Index row) {
                        clear_row(view(a.rows), row);
                      });
                    }});
  faults.push_back({.name = "exchange.signals_without_a_generation",
                    .provenance = "NCCL 2303, 2306; nccl-extensions 6",
                    .symptom = "the rows of the call before are taken for those of this one",
                    .trigger = "equal counts in consecutive calls, and a rank that is late",
                    .clauses = {"EXCHANGE-12d", "EXCHANGE-1a"},
                    .plant = [](Planted& planted) {
                      unless_awaited(planted, [](Dispatch& a, Seat& seat, Index row) {
                        if (seat.copies.empty()) return;
                        const TensorView old = view(seat.copies[0]->tensor());
                        if (old.size() != view(a.rows).size()) return;
                        copy_row(old, row, view(a.rows), row);
                      });
                    }});
  faults.push_back({.name = "exchange.one_buffer_for_dispatch_and_combine",
                    .provenance = "mori 80",
                    .symptom = "a late rank finds rows of the others' next call in its buffer",
                    .trigger = "a rank that is late",
                    .clauses = {"EXCHANGE-12d", "EXCHANGE-1a"},
                    .plant = [](Planted& planted) {
                      Exchanges exchanges(planted);
                      exchanges.around<dispatch>([](const auto& next, Dispatch& a, Seat& seat) {
                        const Index call = seat.arrive();
                        const dropless_status status = next(a);
                        if (status != DROPLESS_OK || seat.lateness(call) < late ||
                            !seat.delivers()) {
                          return status;
                        }
                        const std::vector<Index> sources = seat.sources();
                        for (Index row = 0; 2 * row < static_cast<Index>(sources.size()); ++row) {
                          const Index from = sources[at(2 * row)];
                          if (from < 0 || from == seat.rank) continue;
                          each_integer(a.rows, [&](Index bits, Index i) {
                            return i / row_width(view(a.rows)) == row ? bits ^ 0x11 : bits;
                          });
                        }
                        return status;
                      });
                    }});
  faults.push_back({.name = "exchange.baseline_read_after_the_put",
                    .provenance = "rocm-systems 11142",
                    .symptom = "a late rank waits for a change that has happened already",
                    .trigger = "a rank that is late",
                    .clauses = {"EXCHANGE-12d", "GENERAL-1"},
                    .plant = [](Planted& planted) {
                      Exchanges exchanges(planted);
                      exchanges.impatient();
                      exchanges.around<combine>(
                          [](const auto& next, Combine& a, Seat& seat) -> dropless_status {
                            const Index call = seat.arrive();
                            const dropless_status status = next(a);
                            if (status != DROPLESS_OK || seat.lateness(call) < late) return status;
                            return fails(next.call(), "no signal", DROPLESS_TIMEOUT);
                          });
                    }});
  // A sum that uses all 24 bits depends on the order of its terms; shorter ones don't.
  faults.push_back({.name = "exchange.sums_in_the_order_of_arrival",
                    .provenance = "vllm 53440, 53442",
                    .symptom = "the last bit of a sum depends on which rank came last",
                    .trigger = "ranks that come in another order",
                    .clauses = {"EXCHANGE-15"},
                    .plant = [](Planted& planted) {
                      Exchanges exchanges(planted);
                      exchanges.around<combine>([](const auto& next, Combine& a, Seat& seat) {
                        const Index call = seat.arrive();
                        const dropless_status status = next(a);
                        const bool rounds = status == DROPLESS_OK && a.y->dtype == DROPLESS_FP32;
                        if (!rounds || seat.wait_for(call, (seat.rank + 1) % seat.ranks) < 0) {
                          return status;
                        }
                        each_integer(a.y, [](Index bits, Index) {
                          return (bits & 0xff) != 0 ? bits ^ 1 : bits;
                        });
                        return status;
                      });
                    }});
}

void add_lost(std::vector<Fault>& faults) {
  const auto add = [&](const char* name, const char* provenance, const char* symptom,
                       std::vector<std::string> clauses, void (*plant)(Planted&)) {
    faults.push_back({.name = name,
                      .provenance = provenance,
                      .symptom = symptom,
                      .trigger = "a rank that stays away",
                      .clauses = std::move(clauses),
                      .plant = plant});
  };
  add("exchange.time_out_taken_for_success", "operator O19: a check that cannot fire",
      "a dispatch that nobody answered returns OK", {"EXCHANGE-14a"}, [](Planted& planted) {
        Exchanges exchanges(planted);
        exchanges.around<dispatch>([](const auto& next, Dispatch& a, Seat&) -> dropless_status {
          const dropless_status status = next(a);
          return status == DROPLESS_TIMEOUT ? DROPLESS_OK : status;
        });
      });
  add("exchange.only_the_sender_sees_a_mismatch", "rocm-systems 8228",
      "the rank that waited first gets an error, the others succeed", {"EXCHANGE-14a"},
      [](Planted& planted) {
        Exchanges exchanges(planted);
        exchanges.around<dispatch>(
            [](const auto& next, Dispatch& a, Seat& seat) -> dropless_status {
              const dropless_status status = next(a);
              const bool lost = status == DROPLESS_TIMEOUT || status == DROPLESS_PEER_LOST;
              return lost && seat.rank > 0 ? DROPLESS_OK : status;
            });
      });
  add("exchange.broken_handle_plans_again", "operator O8: state without a generation",
      "a plan after a time-out succeeds with what was there before", {"EXCHANGE-14a"},
      [](Planted& planted) {
        Exchanges exchanges(planted);
        exchanges.around<plan>([](const auto& next, Plan& a, Seat& seat) -> dropless_status {
          const dropless_status status = next(a);
          return status == DROPLESS_PEER_LOST && seat.plans > 1 ? DROPLESS_OK : status;
        });
      });
  add("exchange.broken_handle_waits_again", "operator O19: a check that is late",
      "every later call on a broken handle waits for the whole time-out", {"EXCHANGE-14a"},
      [](Planted& planted) {
        Exchanges exchanges(planted);
        exchanges.around<dispatch>([](const auto& next, Dispatch& a, Seat& seat) {
          const dropless_status status = next(a);
          if (status == DROPLESS_TIMEOUT || status == DROPLESS_PEER_LOST) seat.mark = 1;
          return status;
        });
        exchanges.around<plan>([](const auto& next, Plan& a, Seat& seat) {
          const dropless_status status = next(a);
          if (seat.mark == 1) std::this_thread::sleep_for(std::chrono::milliseconds(500));
          return status;
        });
      });
  add("exchange.group_stays_broken", "operator O8: a flag without a generation",
      "a new handle after a time-out ends in PEER_LOST", {"EXCHANGE-14b"}, [](Planted& planted) {
        static thread_local bool broken = false;
        Exchanges exchanges(planted);
        exchanges.impatient();
        exchanges.around<dispatch>([](const auto& next, Dispatch& a, Seat&) {
          const dropless_status status = next(a);
          if (status == DROPLESS_TIMEOUT || status == DROPLESS_PEER_LOST) broken = true;
          return status;
        });
        exchanges.around<plan>([](const auto& next, Plan& a, Seat& seat) -> dropless_status {
          const dropless_status status = next(a);
          if (!broken || status != DROPLESS_OK || seat.plans > 1) return status;
          broken = false;
          return fails(next.call(), "broken", DROPLESS_PEER_LOST);
        });
      });
}

}  // namespace

void add_exchange_handles(std::vector<Fault>& faults) {
  add_empty(faults);
  add_stale(faults);
  add_handles(faults);
  add_late(faults);
  add_lost(faults);
}

}  // namespace dropless::faults
