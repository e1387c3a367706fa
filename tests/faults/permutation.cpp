// SPDX-License-Identifier: Apache-2.0
// Faults of the permutation: the plan in this file, rows and gradients in permutation_rows.cpp.
#include <algorithm>
#include <numeric>

#include "tests/faults/permuters.h"
#include "tests/faults/refusals.h"

namespace dropless::faults {
namespace {

std::size_t at(Index i) {
  return static_cast<std::size_t>(i);
}

// The plan for other ids, as long as the original request is a legal one.
template <class Change>
void change_ids(Planted& planted, Change change) {
  planted.around<&Table::permute_plan>([change](const auto& next, auto& a) -> dropless_status {
    const dropless_status status = next(a);
    if (status != DROPLESS_OK) return status;
    Copy ids(a.ids);
    change(a, ids.elements());
    dropless_permute_plan_args b = a;
    b.ids = ids.tensor();
    next(b);  // where the wrong rows don't fit the right ones stay
    return status;
  });
}

// Puts the rows of every zone into another order, maps included. order(pairs) sorts them.
template <class Order>
void reorder_zones(Planted& planted, Order order) {
  planted.after<&Table::permute_plan>([order](auto& a) {
    const TensorView row_map = view(a.row_map), source = view(a.source);
    const Index k = view(a.ids).shape(1);
    for (const Zone& zone : zones_of(a.offsets, a.tokens_per_expert, source.size())) {
      std::vector<Index> pairs;
      for (Index row = zone.first; row < zone.real_end; ++row) {
        pairs.push_back(source.load_integer(row));
      }
      order(pairs, k);
      for (std::size_t i = 0; i < pairs.size(); ++i) {
        const Index row = zone.first + static_cast<Index>(i);
        source.store_integer(pairs[i], row);
        row_map.store_integer(row, pairs[i] / k, pairs[i] % k);
      }
    }
  });
}

void add_order(std::vector<Fault>& faults) {
  faults.push_back({.name = "permutation.unstable_order",
                    .provenance = "vllm 53440: rows placed by atomic counters",
                    .symptom = "tokens of an expert stand in another order",
                    .trigger = "an expert with two tokens",
                    .clauses = {"PERMUTATION-1a"},
                    .plant = [](Planted& planted) {
                      reorder_zones(planted, [](std::vector<Index>& pairs, Index) {
                        std::reverse(pairs.begin(), pairs.end());
                      });
                    }});
  faults.push_back({.name = "permutation.slots_before_tokens",
                    .provenance = "operator O3: swapped index spaces (Megatron-LM 3626)",
                    .symptom = "rows are sorted by (expert, slot, token)",
                    .trigger = "an expert that is chosen in different slots",
                    .clauses = {"PERMUTATION-1a"},
                    .plant = [](Planted& planted) {
                      reorder_zones(planted, [](std::vector<Index>& pairs, Index k) {
                        std::stable_sort(pairs.begin(), pairs.end(),
                                         [k](Index x, Index y) { return x % k < y % k; });
                      });
                    }});
  faults.push_back({.name = "permutation.source_is_transposed",
                    .provenance = "operator O3: swapped index spaces (mori 475)",
                    .symptom = "source holds slot * T + token",
                    .trigger = "K above 1",
                    .clauses = {"PERMUTATION-2", "PERMUTATION-1a"},
                    .plant = [](Planted& planted) {
                      planted.after<&Table::permute_plan>([](auto& a) {
                        const Index tokens = view(a.ids).shape(0), k = view(a.ids).shape(1);
                        const Index rows = view(a.offsets).load_integer(view(a.offsets).size() - 1);
                        each_integer(a.source, [&](Index pair, Index row) {
                          return row >= rows || pair < 0 ? pair : pair % k * tokens + pair / k;
                        });
                      });
                    }});
  faults.push_back({.name = "permutation.histogram_of_first_block_reused",
                    .provenance = "uzu 715",
                    .symptom = "routes overlap other rows of the expert",
                    .trigger = "more than 256 tokens",
                    .clauses = {"PERMUTATION-2"},
                    .plant = [](Planted& planted) {
                      planted.after<&Table::permute_plan>([](auto& a) {
                        const TensorView map = view(a.row_map), ids = view(a.ids);
                        for (Index t = 256; t < map.shape(0); ++t) {
                          for (Index j = 0; j < map.shape(1); ++j) {
                            const Index id = ids.load_integer(t, j);
                            if (id >= 0) {
                              map.store_integer(view(a.offsets).load_integer(id), t, j);
                            }
                          }
                        }
                      });
                    }});
  faults.push_back({.name = "permutation.offsets_scan_one_block",
                    .provenance = "TRT-LLM 18799",
                    .symptom = "offsets start again at 0",
                    .trigger = "more than 128 experts",
                    .clauses = {"PERMUTATION-3a", "PERMUTATION-1b"},
                    .plant = [](Planted& planted) {
                      planted.after<&Table::permute_plan>([](auto& a) {
                        if (view(a.offsets).size() <= 129) return;
                        const Index base = view(a.offsets).load_integer(128);
                        each_integer(a.offsets,
                                     [&](Index o, Index e) { return e > 128 ? o - base : o; });
                      });
                    }});
  faults.push_back({.name = "permutation.offsets_inclusive",
                    .provenance = "operator O20: offsets off by one entry (pytorch 163462)",
                    .symptom = "offsets begin with the first zone's size",
                    .trigger = "always",
                    .clauses = {"PERMUTATION-3a", "PERMUTATION-1b"},
                    .plant = [](Planted& planted) {
                      planted.after<&Table::permute_plan>([](auto& a) {
                        std::vector<Index> offsets = integers_of(a.offsets);
                        offsets.push_back(offsets.back());
                        each_integer(a.offsets, [&](Index, Index e) { return offsets[at(e) + 1]; });
                      });
                    }});
  faults.push_back({.name = "permutation.zone_ends_one_row_early",
                    .provenance = "DeepGEMM 450: rows at the boundary get the neighbour's label",
                    .symptom = "the last row of an expert belongs to the next one",
                    .trigger = "an expert that is neither first nor empty",
                    .clauses = {"PERMUTATION-3a", "PERMUTATION-1b"},
                    .plant = [](Planted& planted) {
                      planted.after<&Table::permute_plan>([](auto& a) {
                        const Index last = view(a.offsets).size() - 1;
                        each_integer(a.offsets, [&](Index o, Index e) {
                          return e > 0 && e < last && o > 0 ? o - 1 : o;
                        });
                      });
                    }});
}

void add_ids(std::vector<Fault>& faults) {
  faults.push_back({.name = "permutation.empty_slot_goes_to_a_real_expert",
                    .provenance = "transformers 40545, 45473, 48653",
                    .symptom = "an expert computes tokens that are not its own",
                    .trigger = "ids of -1, masked with a real expert",
                    .clauses = {"PERMUTATION-2", "PERMUTATION-1b"},
                    .plant = [](Planted& planted) {
                      change_ids(planted, [](auto& a, const TensorView& ids) {
                        for (Index t = 0; t < ids.shape(0); ++t) {
                          Index free = 0;
                          const auto taken = [&](Index e) {
                            for (Index j = 0; j < ids.shape(1); ++j) {
                              if (ids.load_integer(t, j) == e) return true;
                            }
                            return false;
                          };
                          for (Index j = 0; j < ids.shape(1); ++j) {
                            if (ids.load_integer(t, j) >= 0) continue;
                            while (taken(free)) ++free;
                            if (free < a.num_experts) ids.store_integer(free, t, j);
                          }
                        }
                      });
                    }});
  faults.push_back({.name = "permutation.empty_slot_writes_before_the_map",
                    .provenance = "Transformer Engine 2908, second bug",
                    .symptom = "memory before the row map is written",
                    .trigger = "ids of -1",
                    .clauses = {"GENERAL-0"},
                    .plant = [](Planted& planted) {
                      planted.after<&Table::permute_plan>([](auto& a) {
                        for (const Index id : integers_of(a.ids)) {
                          if (id < 0) view(a.row_map).store_integer(0, -1);
                        }
                      });
                    }});
  faults.push_back({.name = "permutation.wild_ids_not_routed",
                    .provenance = "vllm 50845",
                    .symptom = "an id beyond the experts is accepted",
                    .trigger = "ids of E and above",
                    .clauses = {"GENERAL-3"},
                    .plant = [](Planted& planted) {
                      planted.around<&Table::permute_plan>([](const auto& next, auto& a) {
                        Copy ids(a.ids);
                        each_integer(ids.tensor(), [&](Index id, Index) {
                          return id >= a.num_experts ? -1 : id;
                        });
                        a.ids = ids.tensor();
                        return next(a);
                      });
                    }});
  faults.push_back({.name = "permutation.ids_read_as_32_bit",
                    .provenance = "operator O11: type reinterpreted (aiter 5255)",
                    .symptom = "every second id is 0 or -1",
                    .trigger = "ids of 64 bits",
                    .clauses = {"PERMUTATION-2", "PERMUTATION-1b", "PERMUTATION-1a"},
                    .plant = [](Planted& planted) {
                      planted.around<&Table::permute_plan>([](const auto& next, auto& a) {
                        const dropless_status status = next(a);
                        if (status != DROPLESS_OK || a.ids->dtype != DROPLESS_I64) return status;
                        const std::vector<Index> wide = integers_of(a.ids);
                        Copy ids(a.ids);
                        each_integer(ids.tensor(), [&](Index, Index i) {
                          // Half of a token's words are upper halves: those slots stay empty.
                          return i % 2 != 0 ? -1 : wide[at(i / 2)];
                        });
                        a.ids = ids.tensor();
                        next(a);
                        return status;
                      });
                    }});
  faults.push_back({.name = "permutation.only_eight_slots",
                    .provenance = "operator O13: fixed limit (TRT-LLM 18799)",
                    .symptom = "slots beyond the eighth are forgotten",
                    .trigger = "K above 8",
                    .clauses = {"PERMUTATION-2", "PERMUTATION-1b"},
                    .plant = [](Planted& planted) {
                      change_ids(planted, [](auto&, const TensorView& ids) {
                        for (Index t = 0; t < ids.shape(0); ++t) {
                          for (Index j = 8; j < ids.shape(1); ++j) ids.store_integer(-1, t, j);
                        }
                      });
                    }});
  faults.push_back({.name = "permutation.refusals_swallowed",
                    .provenance = "FBGEMM 3949: an undeclared precondition",
                    .symptom = "a token may name an expert twice",
                    .trigger = "an illegal request",
                    .clauses = {"GENERAL-3"},
                    .plant = [](Planted& planted) {
                      swallow_refusals<&Table::permute_plan>(planted);
                      swallow_refusals<&Table::permute_forward>(planted);
                      swallow_refusals<&Table::unpermute_forward>(planted);
                    }});
  faults.push_back({.name = "permutation.no_tokens_refused",
                    .provenance = "Transformer Engine 1468 (ROCm 161)",
                    .symptom = "a rank with 0 tokens fails",
                    .trigger = "T = 0",
                    .clauses = {"GENERAL-1", "GENERAL-4"},
                    .plant = [](Planted& planted) {
                      refuse_empty<&Table::permute_plan>(planted, [](auto& a) { return a.ids; });
                    }});
  faults.push_back({.name = "permutation.no_tokens_returns_early",
                    .provenance = "Transformer Engine 1468, the early return",
                    .symptom = "offsets are not written for an empty batch",
                    .trigger = "T = 0",
                    .clauses = {"PERMUTATION-1b", "PERMUTATION-3a", "GENERAL-4"},
                    .plant = [](Planted& planted) {
                      planted.around<&Table::permute_plan>([](const auto& next, auto& a) {
                        Copy offsets(a.offsets), counts(a.tokens_per_expert);
                        const dropless_status status = next(a);
                        if (status == DROPLESS_OK && view(a.ids).size() == 0) {
                          offsets.write_back();
                          counts.write_back();
                        }
                        return status;
                      });
                    }});
  faults.push_back(
      {.name = "permutation.strides_ignored",
       .provenance = "vllm 53345",
       .symptom = "ids of other tokens are read",
       .trigger = "rows with gaps",
       .clauses = {"GENERAL-1", "PERMUTATION-1a", "PERMUTATION-1b", "PERMUTATION-2", "GENERAL-6"},
       .plant = [](Planted& planted) {
         planted.around<&Table::permute_plan>([](const auto& next, auto& a) {
           const dropless_status status = next(a);
           if (status != DROPLESS_OK) return status;
           const dropless_tensor dense = without_strides(*a.ids);
           a.ids = &dense;
           // What the canaries hold is no id: those calls end refused.
           return next(a);
         });
       }});
}

void add_alignment(std::vector<Fault>& faults) {
  faults.push_back({.name = "permutation.alignment_16_by_default",
                    .provenance = "Megatron-LM 4038",
                    .symptom = "unquantised runs are padded and cannot resume bit-exactly",
                    .trigger = "an implementation that declares no alignment",
                    .clauses = {"PERMUTATION-3a", "PERMUTATION-1a", "GENERAL-1"},
                    .plant = [](Planted& planted) {
                      planted.behave_as([](dropless_profile& p) { p.alignment = 16; });
                    }});
  faults.push_back({.name = "permutation.declared_alignment_not_kept",
                    .provenance = "torchtitan 1651, 1718",
                    .symptom = "zones do not start at multiples of the alignment",
                    .trigger = "an alignment of 32",
                    .clauses = {"PERMUTATION-3a", "PERMUTATION-1a"},
                    .plant = [](Planted& planted) {
                      planted.declare([](dropless_profile& p) { p.alignment = 32; });
                      planted.behave_as([](dropless_profile& p) { p.alignment = 16; });
                    }});
  faults.push_back({.name = "permutation.empty_expert_gets_no_block",
                    .provenance = "torchtitan 1166; pytorch 152668",
                    .symptom = "an empty group reaches a consumer that hangs on it",
                    .trigger = "an expert without tokens, aligned zones",
                    .clauses = {"PERMUTATION-3a"},
                    .plant = [](Planted& planted) {
                      planted.declare([](dropless_profile& p) {
                        p.alignment = 16;
                        p.empty_expert = DROPLESS_EMPTY_EXPERT_ONE_BLOCK;
                      });
                      planted.behave_as(
                          [](dropless_profile& p) { p.empty_expert = DROPLESS_EMPTY_EXPERT_NONE; });
                    }});
  faults.push_back({.name = "permutation.total_not_rounded",
                    .provenance = "torchtitan 1651",
                    .symptom = "the last zone is not padded",
                    .trigger = "an alignment of 16",
                    .clauses = {"PERMUTATION-3a"},
                    .plant = [](Planted& planted) {
                      planted.declare([](dropless_profile& p) { p.alignment = 16; });
                      planted.after<&Table::permute_plan>([](auto& a) {
                        const Index last = view(a.offsets).size() - 1;
                        const Index start = view(a.offsets).load_integer(last - 1);
                        const Index real = view(a.tokens_per_expert).load_integer(last - 1);
                        view(a.offsets).store_integer(start + real, last);
                      });
                    }});
  faults.push_back({.name = "permutation.counts_include_padding",
                    .provenance = "xtuner 2053",
                    .symptom = "group sizes are taken from metadata rounded to the alignment",
                    .trigger = "an alignment of 16",
                    .clauses = {"PERMUTATION-1b"},
                    .plant = [](Planted& planted) {
                      planted.declare([](dropless_profile& p) { p.alignment = 16; });
                      planted.after<&Table::permute_plan>([](auto& a) {
                        const std::vector<Index> offsets = integers_of(a.offsets);
                        each_integer(a.tokens_per_expert, [&](Index, Index e) {
                          return offsets[at(e) + 1] - offsets[at(e)];
                        });
                      });
                    }});
  faults.push_back({.name = "permutation.padding_points_at_a_real_pair",
                    .provenance = "torchtitan 1237, 1254",
                    .symptom = "padding rows scatter into token 0",
                    .trigger = "an alignment of 16",
                    .clauses = {"PERMUTATION-2", "PERMUTATION-1a"},
                    .plant = [](Planted& planted) {
                      planted.declare([](dropless_profile& p) { p.alignment = 16; });
                      planted.after<&Table::permute_plan>([](auto& a) {
                        const Index rows = view(a.offsets).load_integer(view(a.offsets).size() - 1);
                        each_integer(a.source, [&](Index pair, Index row) {
                          return row < rows && pair < 0 ? 0 : pair;
                        });
                      });
                    }});
  faults.push_back({.name = "permutation.source_tail_looks_valid",
                    .provenance = "DeepEP 739",
                    .symptom = "rows beyond the end join an expert's list",
                    .trigger = "a buffer longer than the rows in use",
                    .clauses = {"PERMUTATION-8"},
                    .plant = [](Planted& planted) {
                      planted.after<&Table::permute_plan>([](auto& a) {
                        const Index rows = view(a.offsets).load_integer(view(a.offsets).size() - 1);
                        each_integer(a.source,
                                     [&](Index pair, Index row) { return row >= rows ? 0 : pair; });
                      });
                    }});
}

void add_capacity(std::vector<Fault>& faults) {
  faults.push_back({.name = "permutation.demand_clamped",
                    .provenance = "operator O19: the check cannot fire (MaxText 5080)",
                    .symptom = "overflow cannot be noticed",
                    .trigger = "a row capacity below the demand",
                    .clauses = {"PERMUTATION-5"},
                    .plant = [](Planted& planted) {
                      planted.after<&Table::permute_plan>([](auto& a) {
                        each_integer(a.demand, [&](Index demand, Index) {
                          return a.row_capacity < 0 ? demand : std::min(demand, a.row_capacity);
                        });
                      });
                    }});
  faults.push_back({.name = "permutation.cut_pairs_keep_their_rows",
                    .provenance = "MaxText 4898, 4905",
                    .symptom = "sizes are truncated, the way back uses the original offsets",
                    .trigger = "a row capacity below the demand",
                    .clauses = {"PERMUTATION-2", "PERMUTATION-5"},
                    .plant = [](Planted& planted) {
                      planted.after<&Table::permute_plan>([](auto& a) {
                        if (a.row_capacity < 0) return;
                        const std::vector<Index> ids = integers_of(a.ids);
                        each_integer(a.row_map, [&](Index row, Index i) {
                          return row < 0 && ids[at(i)] >= 0 ? a.row_capacity : row;
                        });
                      });
                    }});
  faults.push_back({.name = "permutation.counts_before_capacity",
                    .provenance = "MaxText 4905",
                    .symptom = "counts are those before the cut",
                    .trigger = "a row capacity below the demand",
                    .clauses = {"PERMUTATION-1b", "PERMUTATION-5"},
                    .plant = [](Planted& planted) {
                      planted.after<&Table::permute_plan>([](auto& a) {
                        if (a.row_capacity < 0) return;
                        each_integer(a.tokens_per_expert, [](Index, Index) { return Index{0}; });
                        for (const Index id : integers_of(a.ids)) {
                          if (id < 0) continue;
                          const TensorView counts = view(a.tokens_per_expert);
                          counts.store_integer(counts.load_integer(id) + 1, id);
                        }
                      });
                    }});
  faults.push_back({.name = "permutation.capacity_never_enforced",
                    .provenance = "transformers 48421; DeepSpeed 1658",
                    .symptom = "rows beyond the capacity are kept",
                    .trigger = "a row capacity below the demand",
                    .clauses = {"PERMUTATION-3a", "PERMUTATION-5", "PERMUTATION-2"},
                    .plant = [](Planted& planted) {
                      planted.around<&Table::permute_plan>([](const auto& next, auto& a) {
                        const dropless_status status = next(a);
                        if (status != DROPLESS_OK || a.row_capacity < 0) return status;
                        dropless_permute_plan_args unlimited = a;
                        unlimited.row_capacity = -1;
                        std::vector<Index> longer(at(view(a.ids).size() * 2 + 512));
                        dropless_tensor source = *a.source;
                        source.data = longer.data();
                        source.shape[0] = static_cast<Index>(longer.size());
                        source.strides[0] = 1;
                        unlimited.source = &source;
                        return next(unlimited);
                      });
                    }});
  faults.push_back({.name = "permutation.drops_by_importance",
                    .provenance = "DeepSpeed 7986",
                    .symptom = "other pairs survive than the first ones",
                    .trigger = "a row capacity below the demand",
                    .clauses = {"PERMUTATION-1a", "PERMUTATION-2", "PERMUTATION-5"},
                    .plant = [](Planted& planted) {
                      planted.after<&Table::permute_plan>([](auto& a) {
                        if (a.row_capacity < 0) return;
                        const TensorView map = view(a.row_map), ids = view(a.ids);
                        // A cut pair takes the row of the last survivor of its expert.
                        for (const Zone& zone :
                             zones_of(a.offsets, a.tokens_per_expert, view(a.source).size())) {
                          if (zone.first == zone.real_end) continue;
                          const Index row = zone.real_end - 1;
                          const Index old = view(a.source).load_integer(row);
                          const Index expert = ids.load_integer_flat(old);
                          for (Index pair = ids.size() - 1; pair > old; --pair) {
                            if (ids.load_integer_flat(pair) != expert) continue;
                            map.store_integer_flat(-1, old);
                            map.store_integer_flat(row, pair);
                            view(a.source).store_integer(pair, row);
                            break;
                          }
                        }
                      });
                    }});
}

void add_elsewhere(std::vector<Fault>& faults) {
  faults.push_back({.name = "permutation.index_times_stride_in_32_bits",
                    .provenance = "sglang 6348; vllm 48398; torchtitan 2430",
                    .symptom = "rows are gathered from wrong addresses, then an illegal access",
                    .trigger = "1.3 million rows of 4096 elements",
                    .clauses = {"PERMUTATION-4a"},
                    .visibility = Visibility::gpu,
                    .reason = "needs more than 2^31 elements: the buffers fit a GPU test only"});
  faults.push_back({.name = "permutation.fused_backward_explodes",
                    .provenance = "tgale96/grouped_gemm 31",
                    .symptom = "the gradient norm explodes with the fused permute only",
                    .trigger = "K = 8",
                    .clauses = {"PERMUTATION-7b"},
                    .visibility = Visibility::gpu,
                    .reason = "the cause was never found; a device kernel is needed to see it"});
}

}  // namespace

void add_permutation(std::vector<Fault>& faults) {
  add_order(faults);
  add_ids(faults);
  add_alignment(faults);
  add_capacity(faults);
  add_permutation_rows(faults);
  add_elsewhere(faults);
}

}  // namespace dropless::faults
