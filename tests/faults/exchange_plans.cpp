// SPDX-License-Identifier: Apache-2.0
// Faults of who holds which expert, of what a plan counts, and of the capacity.
#include <algorithm>

#include "tests/faults/exchanges.h"

namespace dropless::faults {
namespace {

using Plan = dropless_exchange_plan_args;

// change(args, seat) after a plan.
void after_plan(Planted& planted, Exchanges::Edit<&Table::exchange_plan> change) {
  Exchanges exchanges(planted);
  exchanges.after<&Table::exchange_plan>(std::move(change));
}

// The plan for other ids: change(ids, seat) on [T,K].
void change_ids(Planted& planted, void (*change)(const TensorView&, Seat&)) {
  Exchanges exchanges(planted);
  exchanges.around<&Table::exchange_plan>([change](const auto& next, Plan& a, Seat& seat) {
    const Copy ids(a.ids);
    if (!ids.readable()) return next(a);
    change(ids.elements(), seat);
    Plan b = a;
    b.ids = ids.tensor();
    const dropless_status status = next(b);
    a.checked = b.checked;
    return status;
  });
}

void expert_major(Planted& planted, int alignment) {
  planted.declare([alignment](dropless_profile& p) {
    p.dispatch_layout = DROPLESS_DISPATCH_EXPERT_MAJOR;
    p.alignment = alignment;
  });
}

Index up(Index rows, Index alignment) {
  return (rows + alignment - 1) / alignment * alignment;
}

void add_owners(std::vector<Fault>& faults) {
  faults.push_back({.name = "exchange.expert_rank_from_a_modulo",
                    .provenance = "NeMo Speech 8713",
                    .symptom = "an expert is looked for on rank expert mod R",
                    .trigger = "several ranks with several experts each",
                    .clauses = {"EXCHANGE-0a", "EXCHANGE-4a"},
                    .plant = [](Planted& planted) {
                      change_ids(planted, [](const TensorView& ids, Seat& seat) {
                        if (seat.experts % seat.ranks != 0) return;
                        for (Index i = 0; i < ids.size(); ++i) {
                          const Index e = ids.load_integer_flat(i);
                          if (e < 0) continue;
                          const Index own = seat.experts / seat.ranks;
                          ids.store_integer_flat(e % seat.ranks * own + e / seat.ranks, i);
                        }
                      });
                    }});
  faults.push_back({.name = "exchange.experts_not_divisible",
                    .provenance = "vllm-ascend 16384; DeepSpeed 7551",
                    .symptom = "experts without an owner: their pairs are lost",
                    .trigger = "experts that ranks don't divide",
                    .clauses = {"EXCHANGE-0b", "EXCHANGE-1a", "EXCHANGE-4a"},
                    .plant = [](Planted& planted) {
                      change_ids(planted, [](const TensorView& ids, Seat& seat) {
                        const Index owned = seat.experts / seat.ranks * seat.ranks;
                        for (Index i = 0; i < ids.size(); ++i) {
                          if (ids.load_integer_flat(i) >= owned) ids.store_integer_flat(-1, i);
                        }
                      });
                    }});
  faults.push_back({.name = "exchange.placement_ignored",
                    .provenance = "operator O17: a setting that never arrives",
                    .symptom = "experts stay in blocks",
                    .trigger = "a placement with one slot for each expert",
                    .clauses = {"EXCHANGE-0b", "EXCHANGE-4a", "GENERAL-3"},
                    .plant = [](Planted& planted) {
                      Exchanges exchanges(planted);
                      exchanges.settings([](dropless_exchange_settings& s) {
                        if (!has_elements(s.placement)) return;
                        if (view(s.placement).size() == s.num_experts) s.placement = nullptr;
                      });
                    }});
  faults.push_back({.name = "exchange.replica_chosen_by_rank",
                    .provenance = "sglang 32962",
                    .symptom = "the source rank chooses the copy, not the token",
                    .trigger = "replicated experts",
                    .clauses = {"EXCHANGE-0c", "EXCHANGE-4a"},
                    .plant = [](Planted& planted) {
                      Exchanges exchanges(planted);
                      planted.behave_as([](dropless_profile& p) {
                        p.replica_map = DROPLESS_REPLICA_DECLARED;
                        p.replica_copy = [](Index rank, Index, Index, Index, Index copies) {
                          return rank % copies;
                        };
                      });
                    }});
  faults.push_back({.name = "exchange.copies_in_descending_order",
                    .provenance = "operator O3: swapped index spaces (vllm-ascend 4793)",
                    .symptom = "copy 0 is the one in the last slot",
                    .trigger = "replicated experts",
                    .clauses = {"EXCHANGE-0c", "EXCHANGE-4a"},
                    .plant = [](Planted& planted) {
                      Exchanges exchanges(planted);
                      planted.behave_as([](dropless_profile& p) {
                        p.replica_map = DROPLESS_REPLICA_DECLARED;
                        p.replica_copy = [](Index, Index token, Index, Index, Index copies) {
                          return copies - 1 - token % copies;
                        };
                      });
                    }});
  faults.push_back({.name = "exchange.id_minus_one_is_expert_zero",
                    .provenance = "operator O1: index 0 for padding (DeepEP 739)",
                    .symptom = "pairs that select nothing go to expert 0",
                    .trigger = "an id of -1",
                    .clauses = {"EXCHANGE-1b", "EXCHANGE-4a"},
                    .plant = [](Planted& planted) {
                      change_ids(planted, [](const TensorView& ids, Seat& seat) {
                        for (Index first = 0; first < ids.size(); first += seat.top_k) {
                          bool taken = false;
                          for (Index i = first; i < first + seat.top_k; ++i) {
                            taken = taken || ids.load_integer_flat(i) == 0;
                          }
                          for (Index i = first; i < first + seat.top_k && !taken; ++i) {
                            taken = ids.load_integer_flat(i) == -1;
                            if (taken) ids.store_integer_flat(0, i);
                          }
                        }
                      });
                    }});
  faults.push_back({.name = "exchange.stops_at_the_first_hole",
                    .provenance = "operator O4: a zero case that is dropped",
                    .symptom = "pairs behind an id of -1 are lost",
                    .trigger = "an id of -1 that is not the last",
                    .clauses = {"EXCHANGE-1a", "EXCHANGE-4a"},
                    .plant = [](Planted& planted) {
                      change_ids(planted, [](const TensorView& ids, Seat& seat) {
                        for (Index i = 0; i < ids.size(); ++i) {
                          if (i % seat.top_k != 0 && ids.load_integer_flat(i - 1) == -1) {
                            ids.store_integer_flat(-1, i);
                          }
                        }
                      });
                    }});
}

void add_counts(std::vector<Fault>& faults) {
  faults.push_back({.name = "exchange.global_counts_are_local",
                    .provenance = "operator O12: each rank decides what all must decide",
                    .symptom = "global counts lack the pairs of other ranks",
                    .trigger = "two ranks",
                    .clauses = {"EXCHANGE-4d"},
                    .plant = [](Planted& planted) {
                      after_plan(planted, [](Plan& a, Seat&) {
                        const std::vector<Index> ids = integers_of(a.ids);
                        each_integer(a.global_counts, [&](Index, Index e) {
                          return static_cast<Index>(std::count(ids.begin(), ids.end(), e));
                        });
                      });
                    }});
  faults.push_back({.name = "exchange.global_expert_count_on_local_weights",
                    .provenance = "sglang 29055",
                    .symptom = "a rank takes the counts of the first experts for its own",
                    .trigger = "any rank but the first",
                    .clauses = {"EXCHANGE-4a"},
                    .plant = [](Planted& planted) {
                      after_plan(planted, [](Plan& a, Seat& seat) {
                        each_integer(a.tokens_per_local_expert, [&](Index, Index local) {
                          return seat.plan().global_counts[at(local % seat.experts)];
                        });
                      });
                    }});
  faults.push_back({.name = "exchange.counts_with_the_stride_of_the_grid",
                    .provenance = "pplx-kernels 25",
                    .symptom = "counts of later experts are those of the first ones",
                    .trigger = "more than 16 experts on a rank",
                    .clauses = {"EXCHANGE-4a"},
                    .plant = [](Planted& planted) {
                      after_plan(planted, [](Plan& a, Seat&) {
                        const std::vector<Index> counts = integers_of(a.tokens_per_local_expert);
                        each_integer(a.tokens_per_local_expert,
                                     [&](Index, Index local) { return counts[at(local % 16)]; });
                      });
                    }});
  faults.push_back({.name = "exchange.counts_with_padding",
                    .provenance = "operator O6: the padded size for the valid one",
                    .symptom = "counts are sizes of zones",
                    .trigger = "a zone that is not full",
                    .clauses = {"EXCHANGE-4a"},
                    .plant = [](Planted& planted) {
                      expert_major(planted, 32);
                      after_plan(planted, [](Plan& a, Seat&) {
                        each_integer(a.tokens_per_local_expert,
                                     [](Index count, Index) { return up(count, 32); });
                      });
                    }});
  faults.push_back({.name = "exchange.offsets_without_padding",
                    .provenance = "operator O6: the valid stride for the padded one",
                    .symptom = "zones are not aligned",
                    .trigger = "a zone that is not full",
                    .clauses = {"EXCHANGE-4b"},
                    .plant = [](Planted& planted) {
                      expert_major(planted, 32);
                      Exchanges exchanges(planted);
                      planted.behave_as([](dropless_profile& p) {
                        p.dispatch_layout = DROPLESS_DISPATCH_EXPERT_MAJOR;
                        p.alignment = 1;
                      });
                    }});
  faults.push_back({.name = "exchange.offsets_inclusive",
                    .provenance = "operator O20: off by one entry (pytorch 163462)",
                    .symptom = "offsets begin with the first count",
                    .trigger = "always",
                    .clauses = {"EXCHANGE-4b"},
                    .plant = [](Planted& planted) {
                      after_plan(planted, [](Plan& a, Seat&) {
                        std::vector<Index> offsets = integers_of(a.offsets);
                        offsets.push_back(offsets.back());
                        each_integer(a.offsets, [&](Index, Index e) { return offsets[at(e) + 1]; });
                      });
                    }});
  faults.push_back({.name = "exchange.empty_expert_takes_a_block",
                    .provenance = "operator O17: the neighbouring rule, that of the permutation",
                    .symptom = "an empty expert has a zone of one block",
                    .trigger = "an expert without tokens",
                    .clauses = {"EXCHANGE-4b"},
                    .plant = [](Planted& planted) {
                      expert_major(planted, 16);
                      after_plan(planted, [](Plan& a, Seat&) {
                        const std::vector<Index> counts = integers_of(a.tokens_per_local_expert);
                        Index more = 0;
                        each_integer(a.offsets, [&](Index offset, Index e) {
                          if (e > 0 && counts[at(e) - 1] == 0) more += 16;
                          return offset + more;
                        });
                      });
                    }});
  faults.push_back({.name = "exchange.own_rows_not_counted",
                    .provenance = "operator O4: a zero case that is dropped",
                    .symptom = "rows that stay on their rank are missing in rows_per_source",
                    .trigger = "a token that stays on its rank",
                    .clauses = {"EXCHANGE-4c"},
                    .plant = [](Planted& planted) {
                      expert_major(planted, 1);
                      after_plan(planted, [](Plan& a, Seat& seat) {
                        view(a.rows_per_source).store_integer_flat(0, seat.rank);
                      });
                    }});
  faults.push_back({.name = "exchange.scan_of_128_ranks",
                    .provenance = "TRT-LLM 18799",
                    .symptom = "the total lacks the rows of the first 128 ranks",
                    .trigger = "more than 128 ranks",
                    .clauses = {"EXCHANGE-5a", "EXCHANGE-4c"},
                    .plant = [](Planted& planted) {
                      after_plan(planted, [](Plan& a, Seat& seat) {
                        if (seat.ranks <= 128) return;
                        const std::vector<Index> rows = integers_of(a.rows_per_source);
                        Index sum = 0;
                        for (std::size_t from = 128; from < rows.size(); ++from) sum += rows[from];
                        store(a.total_rows, sum);
                      });
                    }});
  faults.push_back({.name = "exchange.pointer_table_of_32_ranks",
                    .provenance = "openxla 47283",
                    .symptom = "rows of later ranks are counted for the first ones",
                    .trigger = "more than 32 ranks",
                    .clauses = {"EXCHANGE-5a", "EXCHANGE-4c"},
                    .plant = [](Planted& planted) {
                      after_plan(planted, [](Plan& a, Seat&) {
                        const std::vector<Index> rows = integers_of(a.rows_per_source);
                        each_integer(a.rows_per_source,
                                     [&](Index, Index from) { return rows[at(from % 32)]; });
                      });
                    }});
  faults.push_back({.name = "exchange.rows_in_16_bits",
                    .provenance = "operator O2: an index that is too narrow (DeepEP 454)",
                    .symptom = "the total is too small by 65536",
                    .trigger = "more than 65535 rows on a rank",
                    .clauses = {"EXCHANGE-5a", "EXCHANGE-4c"},
                    .plant = [](Planted& planted) {
                      after_plan(planted, [](Plan& a, Seat&) {
                        store(a.total_rows, stored(a.total_rows) % 65536);
                      });
                    }});
  faults.push_back({.name = "exchange.demand_of_this_rank",
                    .provenance = "operator O12: each rank decides what all must decide",
                    .symptom = "the demand is this rank's, not that of the fullest",
                    .trigger = "unequal loads",
                    .clauses = {"EXCHANGE-4c"},
                    .plant = [](Planted& planted) {
                      after_plan(planted,
                                 [](Plan& a, Seat&) { store(a.demand, stored(a.total_rows)); });
                    }});
  faults.push_back({.name = "exchange.demand_without_padding",
                    .provenance = "operator O6: the valid size for the padded one",
                    .symptom = "the demand is too small by the padding",
                    .trigger = "a zone that is not full",
                    .clauses = {"EXCHANGE-4c"},
                    .plant = [](Planted& planted) {
                      expert_major(planted, 32);
                      after_plan(planted, [](Plan& a, Seat& seat) {
                        Index most = 0;
                        for (const auto& received : seat.plan().received) {
                          Index rows = 0;
                          for (const Index one : received.rows_per_source) rows += one;
                          most = std::max(most, rows);
                        }
                        store(a.demand, most);
                      });
                    }});
}

// Distinct (token, target) pairs of this rank's tokens, targets in [0, targets).
template <class Target>
Index distinct_targets(Seat& seat, Index own, const Target& target) {
  const reference::ExchangePlan& plan = seat.plan();
  Index sum = 0;
  for (Index token = plan.first_token[at(seat.rank)]; token < plan.first_token[at(seat.rank) + 1];
       ++token) {
    std::vector<Index> seen;
    for (Index pair = token * seat.top_k; pair < (token + 1) * seat.top_k; ++pair) {
      if (plan.slot_of_pair[at(pair)] < 0) continue;
      const Index to = target(plan.rank_of_pair(pair), pair);
      if (to == own || std::find(seen.begin(), seen.end(), to) != seen.end()) continue;
      seen.push_back(to), ++sum;
    }
  }
  return sum;
}

void add_bytes(std::vector<Fault>& faults) {
  faults.push_back({.name = "exchange.flat_rows_not_deduplicated",
                    .provenance = "operator O14: contribute twice",
                    .symptom = "a token has one row for each of its experts on a rank",
                    .trigger = "two experts of a token on one rank",
                    .clauses = {"EXCHANGE-5a"},
                    .plant = [](Planted& planted) {
                      after_plan(planted, [](Plan& a, Seat&) {
                        Index pairs = 0;
                        for (const Index n : integers_of(a.tokens_per_local_expert)) pairs += n;
                        store(a.total_rows, pairs);
                      });
                    }});
  faults.push_back({.name = "exchange.bytes_of_every_pair",
                    .provenance = "operator O14: contribute twice",
                    .symptom = "a token counts once for each expert, not for each rank",
                    .trigger = "two experts of a token on another rank",
                    .clauses = {"EXCHANGE-5b"},
                    .plant = [](Planted& planted) {
                      after_plan(planted, [](Plan& a, Seat& seat) {
                        const Index pairs = distinct_targets(seat, -1, [&](Index to, Index pair) {
                          return to == seat.rank ? Index{-1} : seat.ranks + pair;
                        });
                        store(a.sent_bytes, pairs * seat.token_bytes);
                      });
                    }});
  faults.push_back({.name = "exchange.bytes_without_scales",
                    .provenance = "operator O9: a factor that is incomplete",
                    .symptom = "scales are not counted",
                    .trigger = "scales that travel",
                    .clauses = {"EXCHANGE-5b"},
                    .plant = [](Planted& planted) {
                      after_plan(planted, [](Plan& a, Seat& seat) {
                        const Index tokens = stored(a.sent_bytes) / seat.token_bytes;
                        store(a.sent_bytes, tokens * seat.settings.row_bytes);
                      });
                    }});
  faults.push_back({.name = "exchange.bytes_that_stay_are_counted",
                    .provenance = "operator O18: a formula with a wrong entry",
                    .symptom = "tokens that stay on their rank count as sent",
                    .trigger = "a token that stays",
                    .clauses = {"EXCHANGE-5b"},
                    .plant = [](Planted& planted) {
                      after_plan(planted, [](Plan& a, Seat& seat) {
                        const Index tokens =
                            distinct_targets(seat, -1, [](Index to, Index) { return to; });
                        store(a.sent_bytes, tokens * seat.token_bytes);
                      });
                    }});
  faults.push_back({.name = "exchange.node_bytes_of_every_rank",
                    .provenance = "operator O14: contribute twice",
                    .symptom = "a token counts once for each rank of a node",
                    .trigger = "a token for two ranks of another node",
                    .clauses = {"EXCHANGE-5c"},
                    .plant = [](Planted& planted) {
                      after_plan(planted, [](Plan& a, Seat& seat) {
                        const std::vector<Index> nodes = seat.plan().topology.node_of_rank;
                        const Index own = nodes[at(seat.rank)];
                        const Index tokens = distinct_targets(seat, -1, [&](Index to, Index) {
                          return nodes[at(to)] == own ? Index{-1} : to;
                        });
                        store(a.sent_node_bytes, tokens * seat.token_bytes);
                      });
                    }});
  faults.push_back({.name = "exchange.nodes_taken_for_contiguous",
                    .provenance = "operator O17: a setting that never arrives",
                    .symptom = "the node of a rank is its number divided by ranks per node",
                    .trigger = "a node map that is not in blocks",
                    .clauses = {"EXCHANGE-5c"},
                    .plant = [](Planted& planted) {
                      after_plan(planted, [](Plan& a, Seat& seat) {
                        const Index nodes = seat.plan().topology.nodes;
                        const Index width = std::max<Index>(seat.ranks / nodes, 1);
                        const Index tokens = distinct_targets(
                            seat, seat.rank / width, [&](Index to, Index) { return to / width; });
                        store(a.sent_node_bytes, tokens * seat.token_bytes);
                      });
                    }});
}

// The capacity of other settings.
void change_capacity(Planted& planted, void (*change)(dropless_exchange_settings&)) {
  planted.around<&Table::exchange_capacity>([change](const auto& next, auto& a) {
    if (a.settings == nullptr || a.settings->struct_size < sizeof *a.settings) return next(a);
    const dropless_status status = next(a);
    if (status != DROPLESS_OK) return status;
    dropless_exchange_settings settings = *a.settings;
    change(settings);
    dropless_exchange_capacity_args b = a;
    b.settings = &settings;
    if (next(b) == DROPLESS_OK) a.capacity = b.capacity;
    return status;
  });
}

void add_capacity(std::vector<Fault>& faults) {
  faults.push_back({.name = "exchange.buffer_from_own_count",
                    .provenance = "ATOM 2176",
                    .symptom = "the buffer has room for one rank's tokens only",
                    .trigger = "several ranks that send to one",
                    .clauses = {"EXCHANGE-9a"},
                    .plant = [](Planted& planted) {
                      change_capacity(planted, [](dropless_exchange_settings& s) {
                        if (s.ragged_buffer_factor != -1 || s.placement != nullptr) return;
                        s.num_experts /= s.ranks, s.ranks = 1;
                        s.top_k = std::min(s.top_k, s.num_experts);
                      });
                    }});
  faults.push_back({.name = "exchange.capacity_counts_experts_not_slots",
                    .provenance = "vllm-ascend 4793, 5311",
                    .symptom = "copies of experts have no room",
                    .trigger = "replicated experts",
                    .clauses = {"EXCHANGE-9b", "EXCHANGE-9a"},
                    .plant = [](Planted& planted) {
                      planted.declare([](dropless_profile& p) {
                        p.dispatch_layout = DROPLESS_DISPATCH_EXPERT_MAJOR;
                        p.alignment = 16;
                      });
                      change_capacity(planted, [](dropless_exchange_settings& s) {
                        if (s.num_experts % s.ranks == 0) s.placement = nullptr;
                      });
                    }});
  faults.push_back({.name = "exchange.capacity_factor_rounded_up",
                    .provenance = "operator O18: a formula that is naive",
                    .symptom = "a decimal factor costs a row",
                    .trigger = "a factor that is a little too large in binary",
                    .clauses = {"EXCHANGE-9b"},
                    .plant = [](Planted& planted) {
                      change_capacity(planted, [](dropless_exchange_settings& s) {
                        if (s.ragged_buffer_factor > 1) s.ragged_buffer_factor /= 1 - 0x1p-20;
                      });
                    }});
  faults.push_back({.name = "exchange.capacity_without_padding",
                    .provenance = "operator O6: the valid size for the padded one",
                    .symptom = "zones that are not full have no room for their padding",
                    .trigger = "an alignment above 1",
                    .clauses = {"EXCHANGE-9a"},
                    .plant = [](Planted& planted) {
                      expert_major(planted, 32);
                      planted.around<&Table::exchange_capacity>([](const auto& next, auto& a) {
                        const dropless_status status = next(a);
                        if (status != DROPLESS_OK) return status;
                        const Index ranks = a.settings->ranks, tokens = a.settings->max_tokens;
                        a.capacity =
                            std::min(a.capacity, up(ranks * tokens * a.settings->top_k, 32));
                        return status;
                      });
                    }});
  faults.push_back({.name = "exchange.capacity_needs_an_open_exchange",
                    .provenance = "operator O19: a check that is too strict",
                    .symptom = "the capacity is refused before anything was opened",
                    .trigger = "asking for it first",
                    .clauses = {"EXCHANGE-9c"},
                    .plant = [](Planted& planted) {
                      planted.around<&Table::exchange_capacity>(
                          [](const auto& next, auto& a) -> dropless_status {
                            const bool bare =
                                a.settings != nullptr && a.settings->all_gather == nullptr;
                            return bare ? DROPLESS_INVALID_ARGUMENT : next(a);
                          });
                    }});
}

}  // namespace

void add_exchange_plans(std::vector<Fault>& faults) {
  add_owners(faults);
  add_counts(faults);
  add_bytes(faults);
  add_capacity(faults);
}

}  // namespace dropless::faults
