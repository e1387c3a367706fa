// SPDX-License-Identifier: Apache-2.0
// Faults at NaN, infinity, masks, given ids, counts, and in what the router refuses and reports.
#include <cmath>
#include <limits>

#include "tests/faults/refusals.h"
#include "tests/faults/routers.h"

namespace dropless::faults {
namespace {

std::size_t at(Index i) {
  return static_cast<std::size_t>(i);
}

// change(args, token), for every undefined row of a forward call that succeeded.
template <class Change>
void change_undefined_rows(Planted& planted, Change change) {
  planted.after<&Table::route_forward>([change](auto& a) {
    for (Index t = 0; t < view(a.ids).shape(0); ++t) {
      if (a.token_mask != nullptr && view(a.token_mask).load_integer(t) == 0) continue;
      const RouterRow row = row_of(a, t);
      if (reference::is_undefined_row(row.settings.score_function, row.logits)) change(a, t);
    }
  });
}

void add_special_rows(std::vector<Fault>& faults) {
  faults.push_back({.name = "routing.nan_row_repeats_expert_zero",
                    .provenance = "vllm 39391, 39244; mirage 764",
                    .symptom = "the same expert K times, later wild pointers",
                    .trigger = "a row with a NaN logit",
                    .clauses = {"ROUTING-8a"},
                    .plant = [](Planted& planted) {
                      change_undefined_rows(planted, [](auto& a, Index t) {
                        for (Index j = 0; j < view(a.ids).shape(1); ++j) {
                          view(a.ids).store_integer(0, t, j);
                        }
                      });
                    }});
  faults.push_back({.name = "routing.nan_row_selects_padding",
                    .provenance = "sglang 30079",
                    .symptom = "an expert id outside 0 .. E-1",
                    .trigger = "a row with a NaN logit: a padding column wins",
                    .clauses = {"ROUTING-8a"},
                    .plant = [](Planted& planted) {
                      change_undefined_rows(planted, [](auto& a, Index t) {
                        view(a.ids).store_integer(a.settings->num_experts, t, 0);
                      });
                    }});
  faults.push_back({.name = "routing.nan_row_hidden",
                    .provenance = "cosmos-rl: nan_to_num as a cure (Primus-Turbo 397)",
                    .symptom = "a NaN logit gives ordinary weights",
                    .trigger = "a row with a NaN logit",
                    .clauses = {"ROUTING-8a"},
                    .plant = [](Planted& planted) {
                      change_undefined_rows(planted, [](auto& a, Index t) {
                        for (Index j = 0; j < view(a.weights).shape(1); ++j) {
                          view(a.weights).store(0, t, j);
                        }
                      });
                    }});
  faults.push_back({.name = "routing.nan_row_not_counted",
                    .provenance = "xtuner 2053: counts of another source than the ids",
                    .symptom = "counts do not agree with the ids",
                    .trigger = "a row with a NaN logit",
                    .clauses = {"ROUTING-8a", "ROUTING-10"},
                    .plant = [](Planted& planted) {
                      change_undefined_rows(planted, [](auto& a, Index t) {
                        const TensorView counts = view(a.tokens_per_expert);
                        for (Index j = 0; j < view(a.ids).shape(1); ++j) {
                          const Index id = view(a.ids).load_integer(t, j);
                          counts.store_integer(counts.load_integer(id) - 1, id);
                        }
                      });
                    }});
  faults.push_back({.name = "routing.nan_leaks_into_next_row",
                    .provenance = "vllm 39593, 37758",
                    .symptom = "good rows become NaN beside a bad one",
                    .trigger = "a row with a NaN logit",
                    .clauses = {"ROUTING-8b"},
                    .plant = [](Planted& planted) {
                      change_undefined_rows(planted, [](auto& a, Index t) {
                        if (t + 1 < view(a.weights).shape(0)) {
                          view(a.weights).store(std::nan(""), t + 1, 0);
                        }
                      });
                    }});
  faults.push_back({.name = "routing.sigmoid_of_infinity_is_nan",
                    .provenance = "operator O18: naive formula e^x / (1 + e^x)",
                    .symptom = "a saturated logit gives NaN",
                    .trigger = "sigmoid scores and a logit above 88",
                    .clauses = {"ROUTING-8c", "ROUTING-1b"},
                    .plant = [](Planted& planted) {
                      change_weights(planted, [](double w, const RouterRow& row, Index slot) {
                        if (row.settings.score_function != DROPLESS_SCORE_SIGMOID) return w;
                        const double logit = row.logits[at(row.ids[at(slot)])];
                        return logit > 88.8 ? std::nan("") : w;
                      });
                    }});
  faults.push_back({.name = "routing.bias_wakes_masked_experts",
                    .provenance = "DeepSeek-V3 741; sglang 3705",
                    .symptom = "a masked expert is selected",
                    .trigger = "a logit of -Inf together with a positive bias",
                    .clauses = {"ROUTING-7a"},
                    .plant = [](Planted& planted) {
                      planted.around<&Table::route_forward>([](const auto& next, auto& a) {
                        const bool biased = a.expert_bias != nullptr && a.given_ids == nullptr;
                        if (!biased || next(a) != DROPLESS_OK) return next(a);
                        // -Inf has the score 0; a very negative logit has it as well.
                        Copy logits(a.logits);
                        each(logits.tensor(), [](double l, Index) {
                          return l == -std::numeric_limits<double>::infinity() ? -1000.0 : l;
                        });
                        a.logits = logits.tensor();
                        return next(a);
                      });
                    }});
  faults.push_back({.name = "routing.exhausted_experts_repeat",
                    .provenance = "vllm-omni 7175; vllm 42608",
                    .symptom = "the same expert is chosen twice",
                    .trigger = "fewer unmasked experts than K",
                    .clauses = {"ROUTING-7b", "ROUTING-5a"},
                    .plant = [](Planted& planted) {
                      planted.after<&Table::route_forward>([](auto& a) {
                        if (a.given_ids != nullptr) return;
                        for (Index t = 0; t < view(a.ids).shape(0); ++t) {
                          const RouterRow row = row_of(a, t);
                          for (std::size_t j = 0; j < row.ids.size(); ++j) {
                            if (row.ids[j] < 0 || row.experts[at(row.ids[j])] != 0) continue;
                            view(a.ids).store_integer(0, t, static_cast<Index>(j));
                          }
                        }
                      });
                    }});
  faults.push_back({.name = "routing.masked_pick_has_weight",
                    .provenance = "vllm 42608: the marker is summed into the norm",
                    .symptom = "a masked expert gets a share of the weight",
                    .trigger = "fewer unmasked experts than K",
                    .clauses = {"ROUTING-7b"},
                    .plant = [](Planted& planted) {
                      change_weights(planted, [](double w, const RouterRow& row, Index slot) {
                        return row.experts[at(row.ids[at(slot)])] != 0 ? w : 1e-3;
                      });
                    }});
}

void add_masks_and_given_ids(std::vector<Fault>& faults) {
  faults.push_back({.name = "routing.token_mask_ignored",
                    .provenance = "Megatron-LM 5542, 1984",
                    .symptom = "padding tokens take expert capacity and enter the dispatch",
                    .trigger = "a token mask",
                    .clauses = {"ROUTING-9a"},
                    .plant = [](Planted& planted) {
                      planted.before<&Table::route_forward>(
                          [](auto& a) { a.token_mask = nullptr; });
                    }});
  faults.push_back({.name = "routing.masked_tokens_keep_ids",
                    .provenance = "sglang 28378",
                    .symptom = "weights of padding tokens are zeroed, their ids are not",
                    .trigger = "a token mask",
                    .clauses = {"ROUTING-9a"},
                    .plant = [](Planted& planted) {
                      planted.after<&Table::route_forward>([](auto& a) {
                        if (a.token_mask == nullptr) return;
                        each_integer(a.ids, [](Index id, Index) { return id < 0 ? 0 : id; });
                      });
                    }});
  faults.push_back({.name = "routing.masked_tokens_counted",
                    .provenance = "Megatron-LM 1984",
                    .symptom = "padding tokens are part of tokens_per_expert",
                    .trigger = "a token mask",
                    .clauses = {"ROUTING-9a", "ROUTING-10"},
                    .plant = [](Planted& planted) {
                      planted.around<&Table::route_forward>([](const auto& next, auto& a) {
                        if (a.token_mask == nullptr) return next(a);
                        dropless_route_args unmasked = a;
                        unmasked.token_mask = nullptr;
                        Copy ids(a.ids), weights(a.weights);
                        unmasked.ids = ids.tensor(), unmasked.weights = weights.tensor();
                        const dropless_status status = next(a);
                        if (status == DROPLESS_OK) return next(unmasked);  // counts are shared
                        return status;
                      });
                    }});
  faults.push_back({.name = "routing.scatter_overwrites_on_empty_slots",
                    .provenance = "maxtext 4826",
                    .symptom = "a valid routing weight becomes 0",
                    .trigger = "forced routing with -1, mapped to expert 0",
                    .clauses = {"ROUTING-13b", "ROUTING-13a"},
                    .plant = [](Planted& planted) {
                      change_weights(planted, [](double w, const RouterRow& row, Index slot) {
                        const bool gap =
                            std::find(row.ids.begin(), row.ids.end(), -1) != row.ids.end();
                        return gap && row.ids[at(slot)] == 0 ? 0.0 : w;
                      });
                    }});
  faults.push_back({.name = "routing.empty_slots_enter_the_sum",
                    .provenance = "vllm 42608; aiter 4636",
                    .symptom = "an id of -1 reads the last expert's score into the norm",
                    .trigger = "given ids with -1 and renormalisation",
                    .clauses = {"ROUTING-13b", "ROUTING-13a"},
                    .plant = [](Planted& planted) {
                      change_weights(planted, [](double w, const RouterRow& row, Index) {
                        double sum = 0, wrong = 0;
                        for (const Index id : row.ids) {
                          (id < 0 ? wrong : sum) += id < 0 ? row.scores.back() : row.scores[at(id)];
                        }
                        return over_selected(row.settings) ? w : w * sum / (sum + wrong);
                      });
                    }});
  faults.push_back({.name = "routing.given_ids_ignored",
                    .provenance = "operator O17: replayed routing is computed anew",
                    .symptom = "forced routing has no effect",
                    .trigger = "given ids",
                    .clauses = {"ROUTING-13a"},
                    .plant = [](Planted& planted) {
                      planted.around<&Table::route_forward>([](const auto& next, auto& a) {
                        const dropless_status status = next(a);
                        if (status != DROPLESS_OK || a.given_ids == nullptr) return status;
                        a.given_ids = nullptr;
                        return next(a);
                      });
                    }});
  faults.push_back({.name = "routing.counts_bumped_twice",
                    .provenance = "torchtitan 1593; Automodel 3247",
                    .symptom = "usage counters are twice too high",
                    .trigger = "the router is replayed",
                    .clauses = {"ROUTING-10"},
                    .plant = [](Planted& planted) {
                      planted.after<&Table::route_forward>([](auto& a) {
                        each_integer(a.tokens_per_expert, [](Index n, Index) { return 2 * n; });
                      });
                    }});
  faults.push_back({.name = "routing.counts_only_of_experts_in_use",
                    .provenance = "Automodel 532; TRT-LLM 5519",
                    .symptom = "counts of idle experts are never written",
                    .trigger = "an expert without tokens",
                    .clauses = {"ROUTING-10"},
                    .plant = [](Planted& planted) {
                      planted.around<&Table::route_forward>([](const auto& next, auto& a) {
                        const std::vector<Index> before = integers_of(a.tokens_per_expert);
                        const dropless_status status = next(a);
                        if (status == DROPLESS_OK) {
                          each_integer(a.tokens_per_expert, [&](Index n, Index e) {
                            return n == 0 ? before[at(e)] : n;
                          });
                        }
                        return status;
                      });
                    }});
  faults.push_back({.name = "routing.counts_fold_at_128_experts",
                    .provenance = "uzu 715; TRT-LLM 18799",
                    .symptom = "counts of later experts land on earlier ones",
                    .trigger = "more than 128 experts",
                    .clauses = {"ROUTING-10"},
                    .plant = [](Planted& planted) {
                      planted.after<&Table::route_forward>([](auto& a) {
                        const TensorView counts = view(a.tokens_per_expert);
                        for (Index e = 128; e < counts.size(); ++e) {
                          counts.store_integer(
                              counts.load_integer(e % 128) + counts.load_integer(e), e % 128);
                          counts.store_integer(0, e);
                        }
                      });
                    }});
}

void add_contract(std::vector<Fault>& faults) {
  faults.push_back({.name = "routing.refusals_swallowed",
                    .provenance = "DeepSpeed 5353: K above E; flashinfer 2889",
                    .symptom = "impossible settings are accepted",
                    .trigger = "an illegal request",
                    .clauses = {"GENERAL-3"},
                    .plant = [](Planted& planted) {
                      swallow_refusals<&Table::route_forward>(planted);
                      swallow_refusals<&Table::route_backward>(planted);
                    }});
  faults.push_back({.name = "routing.outputs_cleared_before_checks",
                    .provenance = "operator O19: the check comes too late",
                    .symptom = "a refused call has destroyed its outputs",
                    .trigger = "an illegal request",
                    .clauses = {"GENERAL-3"},
                    .plant = [](Planted& planted) {
                      clear_before_checks<&Table::route_forward>(
                          planted, [](auto& a) { return a.tokens_per_expert; });
                    }});
  faults.push_back({.name = "routing.no_tokens_refused",
                    .provenance = "pytorch 192497; Transformer Engine 1468",
                    .symptom = "a rank without tokens cannot route",
                    .trigger = "T = 0",
                    .clauses = {"GENERAL-4"},
                    .plant = [](Planted& planted) {
                      refuse_empty<&Table::route_forward>(planted,
                                                          [](auto& a) { return a.logits; });
                    }});
  faults.push_back({.name = "routing.no_tokens_returns_early",
                    .provenance = "Transformer Engine 1468, the early return",
                    .symptom = "counts are not written for an empty batch",
                    .trigger = "T = 0",
                    .clauses = {"GENERAL-4"},
                    .plant = [](Planted& planted) {
                      planted.around<&Table::route_forward>([](const auto& next, auto& a) {
                        Copy counts(a.tokens_per_expert);
                        const dropless_status status = next(a);
                        if (status == DROPLESS_OK && view(a.logits).size() == 0) {
                          counts.write_back();
                        }
                        return status;
                      });
                    }});
  faults.push_back({.name = "routing.logits_overwritten",
                    .provenance = "vllm 28939: an input is used as scratch",
                    .symptom = "the router changes its input",
                    .trigger = "always",
                    .clauses = {"GENERAL-0"},
                    .plant = [](Planted& planted) {
                      planted.after<&Table::route_forward>([](auto& a) {
                        if (has_elements(a.logits)) view(a.logits).store(0.5, 0, 0);
                      });
                    }});
  faults.push_back({.name = "routing.counters_cleared_too_far",
                    .provenance = "TRT-LLM 5519",
                    .symptom = "memory behind the histogram is cleared",
                    .trigger = "fewer experts than the clear assumes",
                    .clauses = {"GENERAL-0"},
                    .plant = [](Planted& planted) {
                      planted.after<&Table::route_forward>([](auto& a) {
                        const TensorView counts = view(a.tokens_per_expert);
                        counts.store_integer(0, counts.size());
                      });
                    }});
  faults.push_back({.name = "routing.path_not_reported",
                    .provenance = "operator O19: a fallback that nobody can see",
                    .symptom = "the code path stays unknown",
                    .trigger = "always",
                    .clauses = {"GENERAL-0"},
                    .plant = [](Planted& planted) {
                      planted.around<&Table::route_forward>([](const auto& next, auto& a) {
                        const dropless_status status = next(a);
                        next.call()->path[0] = '\0';
                        return status;
                      });
                    }});
  faults.push_back(
      {.name = "routing.weights_depend_on_threads",
       .provenance = "vllm 53440, 53442",
       .symptom = "same input, different low bits",
       .trigger = "another number of threads",
       .clauses = {"GENERAL-5"},
       .plant = [](Planted& planted) {
         planted.around<&Table::route_forward>([](const auto& next, auto& a) {
           const dropless_status status = next(a);
           if (status == DROPLESS_OK && next.call()->threads > 1) {
             each_integer(a.weights, [](Index bits, Index) { return bits == 0 ? bits : bits ^ 1; });
           }
           return status;
         });
       }});
  faults.push_back({.name = "routing.strides_ignored",
                    .provenance = "pytorch 159620; vllm 53345",
                    .symptom = "logits of other tokens are read",
                    .trigger = "rows with gaps",
                    .clauses = {"GENERAL-6"},
                    .plant = [](Planted& planted) {
                      planted.around<&Table::route_forward>([](const auto& next, auto& a) {
                        if (!is_readable(a.logits)) return next(a);
                        const dropless_tensor dense = without_strides(*a.logits);
                        a.logits = &dense;
                        return next(a);
                      });
                    }});
}

}  // namespace

void add_routing_special(std::vector<Fault>& faults) {
  add_special_rows(faults);
  add_masks_and_given_ids(faults);
  add_contract(faults);
}

}  // namespace dropless::faults
