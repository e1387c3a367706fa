// SPDX-License-Identifier: Apache-2.0
// Faults that send tokens to the wrong experts.
#include <algorithm>
#include <limits>

#include "tests/faults/routers.h"

namespace dropless::faults {
namespace {

constexpr double minus_infinity = -std::numeric_limits<double>::infinity();

std::size_t at(Index i) {
  return static_cast<std::size_t>(i);
}

template <class Change>
std::vector<double> mapped(std::vector<double> values, Change change) {
  for (std::size_t e = 0; e < values.size(); ++e) values[e] = change(values[e], e);
  return values;
}

void add_precision(std::vector<Fault>& faults) {
  faults.push_back({.name = "routing.scores_in_bf16",
                    .provenance = "AstrAI 57; Megatron-LM 5694",
                    .symptom = "training and rollout pick different experts",
                    .trigger = "probabilities closer than one bf16 ulp",
                    .clauses = {"ROUTING-2c", "ROUTING-3a"},
                    .plant = [](Planted& planted) {
                      select_otherwise(planted, [](const RouterRow& row) {
                        return row.best(
                            mapped(row.compared, [](double v, std::size_t) { return bf16(v); }));
                      });
                    }});
  faults.push_back({.name = "routing.bias_added_in_bf16",
                    .provenance = "vllm-xpu-kernels 527",
                    .symptom = "the sum of score and bias is rounded to half precision",
                    .trigger = "a bias that is large beside the differences of the scores",
                    .clauses = {"ROUTING-2c", "ROUTING-3a", "ROUTING-2a"},
                    .plant = [](Planted& planted) {
                      select_otherwise(planted, [](const RouterRow& row) {
                        return row.best(mapped(row.compared, [&](double v, std::size_t e) {
                          return bf16(bf16(row.scores[e]) + bf16(v - row.scores[e]));
                        }));
                      });
                    }});
  faults.push_back(
      {.name = "routing.tie_break_epsilon",
       .provenance = "operator O17: another order by an epsilon, copied into the oracle",
       .symptom = "close scores are swapped",
       .trigger = "an epsilon times the index is subtracted to break ties",
       .clauses = {"ROUTING-3a", "ROUTING-2c"},
       .plant = [](Planted& planted) {
         select_otherwise(planted, [](const RouterRow& row) {
           return row.best(mapped(row.compared, [](double v, std::size_t e) {
             return v - 1e-4 * static_cast<double>(e);
           }));
         });
       }});
  faults.push_back({.name = "routing.selection_on_unbiased_scores",
                    .provenance = "operator O10: value of the wrong twin, as in PaddleFormers 3452",
                    .symptom = "the expert bias has no influence on the selection",
                    .trigger = "any expert bias",
                    .clauses = {"ROUTING-2a", "ROUTING-3a"},
                    .plant = [](Planted& planted) {
                      select_otherwise(planted, [](const RouterRow& row) {
                        return over_selected(row.settings) ? row.ids : row.best(row.scores);
                      });
                    }});
  faults.push_back({.name = "routing.bf16_logits_read_as_fp32",
                    .provenance = "flashinfer 2889, bug B",
                    .symptom = "wrong experts for bf16 logits",
                    .trigger = "bf16 logits: two of them are read as one fp32 number",
                    .clauses = {"ROUTING-1d", "ROUTING-3a"},
                    .plant = [](Planted& planted) {
                      planted.around<&Table::route_forward>([](const auto& next, auto& a) {
                        if (!has_elements(a.logits) || a.logits->dtype != DROPLESS_BF16) {
                          return next(a);
                        }
                        const std::vector<Index> bits = integers_of(a.logits);
                        Copy misread(a.logits, DROPLESS_FP32);
                        each_integer(misread.tensor(), [&](Index, Index i) {
                          const std::size_t low = at(2 * i) % bits.size();
                          return bits[low] | bits[(low + 1) % bits.size()] << 16;
                        });
                        a.logits = misread.tensor();
                        return next(a);
                      });
                    }});
}

void add_groups(std::vector<Fault>& faults) {
  faults.push_back({.name = "routing.groups_masked_with_zero",
                    .provenance = "transformers 45440; sglang 3705",
                    .symptom = "experts outside the kept groups are chosen",
                    .trigger = "group-limited routing with a negative bias",
                    .clauses = {"ROUTING-4c", "ROUTING-4a"},
                    .plant = [](Planted& planted) {
                      select_otherwise(planted, [](const RouterRow& row) {
                        if (row.kept.empty()) return row.ids;
                        const std::vector<double> filled =
                            mapped(row.compared, [&](double v, std::size_t e) {
                              return row.kept[e / at(row.group_size())] != 0 ? v : 0.0;
                            });
                        return row.best(filled, false);
                      });
                    }});
  faults.push_back({.name = "routing.groups_ignored",
                    .provenance = "Megatron-LM 5195",
                    .symptom = "the group limit is not applied",
                    .trigger = "group-limited routing",
                    .clauses = {"ROUTING-4a"},
                    .plant = [](Planted& planted) {
                      select_otherwise(planted, [](const RouterRow& row) {
                        return row.best(row.compared, false);
                      });
                    }});
  faults.push_back({.name = "routing.group_score_always_top_two",
                    .provenance = "Megatron-LM 1441",
                    .symptom = "group scores always add the best two",
                    .trigger = "top-k / kept groups other than 2",
                    .clauses = {"ROUTING-4c", "GENERAL-3"},
                    .plant = [](Planted& planted) {
                      planted.behave_as(
                          [](dropless_profile& p) { p.group_width = DROPLESS_GROUP_WIDTH_TWO; });
                    }});
  faults.push_back({.name = "routing.group_score_is_maximum",
                    .provenance = "flashinfer 2889, bug D",
                    .symptom = "one group score is silently taken for the other",
                    .trigger = "groups that are scored by the sum of their best",
                    .clauses = {"ROUTING-4c"},
                    .plant = [](Planted& planted) {
                      change_forward_settings(planted, [](dropless_route_settings& s) {
                        s.group_score = DROPLESS_GROUP_SCORE_MAX;
                      });
                    }});
  faults.push_back({.name = "routing.group_score_on_unbiased",
                    .provenance = "operator O10: value of the wrong twin, as in PaddleFormers 3452",
                    .symptom = "groups are scored without the bias",
                    .trigger = "groups together with a bias",
                    .clauses = {"ROUTING-4b", "ROUTING-4c", "ROUTING-4a"},
                    .plant = [](Planted& planted) {
                      select_otherwise(planted, [](const RouterRow& given) {
                        if (given.kept.empty()) return given.ids;
                        RouterRow row = given;
                        row.kept = kept_groups(
                            row.settings,
                            reference::group_scores(row.settings, *correct().profile, row.scores));
                        return row.best(row.compared);
                      });
                    }});
  faults.push_back({.name = "routing.small_groups_read_their_neighbour",
                    .provenance = "vllm 29439",
                    .symptom = "the best two of a group with one expert include the next group's",
                    .trigger = "groups of one expert, scored by their best two",
                    .clauses = {"ROUTING-4c"},
                    .plant = [](Planted& planted) {
                      planted.declare(
                          [](dropless_profile& p) { p.group_width = DROPLESS_GROUP_WIDTH_TWO; });
                      select_otherwise(planted, [](const RouterRow& given) {
                        const auto& s = given.settings;
                        if (given.kept.empty() || s.group_score != DROPLESS_GROUP_SCORE_TOP_SUM) {
                          return given.ids;
                        }
                        const Index width = 2, size = given.group_size();
                        std::vector<double> sums;
                        for (Index g = 0; g < s.num_groups; ++g) {
                          std::vector<double> members;
                          for (Index i = 0; i < std::max(size, width); ++i) {
                            members.push_back(given.compared[at((g * size + i) % s.num_experts)]);
                          }
                          std::sort(members.rbegin(), members.rend());
                          double sum = 0;
                          for (Index i = 0; i < width; ++i) sum += members[at(i)];
                          sums.push_back(sum);
                        }
                        RouterRow row = given;
                        row.kept = kept_groups(s, sums);
                        return row.best(row.compared);
                      });
                    }});
  faults.push_back(
      {.name = "routing.masked_members_count_as_zero",
       .provenance = "transformers 45440, the same fill in the group score",
       .symptom = "a group with masked experts outranks one without",
       .trigger = "logits of -Inf and negative compared values",
       .clauses = {"ROUTING-4d"},
       .plant = [](Planted& planted) {
         select_otherwise(planted, [](const RouterRow& given) {
           if (given.kept.empty()) return given.ids;
           const std::vector<double> filled = mapped(
               given.compared, [](double v, std::size_t) { return v == minus_infinity ? 0.0 : v; });
           RouterRow row = given;
           row.kept = kept_groups(
               row.settings, reference::group_scores(row.settings, *correct().profile, filled));
           return row.best(row.compared);
         });
       }});
  faults.push_back({.name = "routing.tied_groups_last_first",
                    .provenance = "tokenspeed 605",
                    .symptom = "of equal groups the last one is kept",
                    .trigger = "groups with equal scores",
                    .clauses = {"ROUTING-5c"},
                    .plant = [](Planted& planted) {
                      select_otherwise(planted, [](const RouterRow& given) {
                        if (given.kept.empty()) return given.ids;
                        RouterRow row = given;
                        row.kept = kept_groups(
                            row.settings,
                            reference::group_scores(row.settings, *correct().profile, row.compared),
                            DROPLESS_TIE_HIGHEST_INDEX);
                        return row.best(row.compared);
                      });
                    }});
}

void add_order_and_limits(std::vector<Fault>& faults) {
  faults.push_back({.name = "routing.tie_rule_reversed",
                    .provenance = "tokenspeed 605",
                    .symptom = "the index is found by equality with the maximum, the last one wins",
                    .trigger = "equal logits",
                    .clauses = {"ROUTING-5b", "ROUTING-5c"},
                    .plant = [](Planted& planted) {
                      planted.behave_as(
                          [](dropless_profile& p) { p.tie_rule = DROPLESS_TIE_HIGHEST_INDEX; });
                    }});
  faults.push_back({.name = "routing.ids_sorted_weights_not",
                    .provenance = "transformers 45473, bug 1",
                    .symptom = "every routing weight is paired with a wrong expert",
                    .trigger = "ids are sorted, weights stay in the order of the scores",
                    .clauses = {"ROUTING-5d", "ROUTING-6c"},
                    .plant = [](Planted& planted) {
                      planted.after<&Table::route_forward>([](auto& a) {
                        if (a.given_ids != nullptr) return;
                        for (Index t = 0; t < view(a.ids).shape(0); ++t) {
                          std::vector<Index> ids = row_of(a, t).ids;
                          std::sort(ids.begin(), ids.end());
                          for (std::size_t j = 0; j < ids.size(); ++j) {
                            view(a.ids).store_integer(ids[j], t, static_cast<Index>(j));
                          }
                        }
                      });
                    }});
  faults.push_back({.name = "routing.order_not_as_declared",
                    .provenance = "torchtitan 2679",
                    .symptom = "unsorted top-k: another order of slots than declared",
                    .trigger = "a consumer that relies on the order",
                    .clauses = {"ROUTING-5d"},
                    .plant = [](Planted& planted) {
                      planted.behave_as([](dropless_profile& p) {
                        p.selection_order = DROPLESS_ORDER_ASCENDING_ID;
                      });
                    }});
  faults.push_back({.name = "routing.expert_ids_of_eight_bits",
                    .provenance = "flux 186",
                    .symptom = "results do not match beyond 256 experts",
                    .trigger = "more than 256 experts",
                    .clauses = {"ROUTING-3a", "ROUTING-5a"},
                    .plant = [](Planted& planted) {
                      planted.after<&Table::route_forward>([](auto& a) {
                        each_integer(a.ids, [](Index id, Index) { return id < 0 ? id : id & 255; });
                      });
                    }});
  faults.push_back({.name = "routing.last_expert_unreachable",
                    .provenance = "tpu-inference 1252",
                    .symptom = "the padding of the expert axis covers one column too many",
                    .trigger = "a token whose best expert is the last one",
                    .clauses = {"ROUTING-3a"},
                    .plant = [](Planted& planted) {
                      select_otherwise(planted, [](const RouterRow& row) {
                        if (row.settings.top_k == row.settings.num_experts) return row.ids;
                        std::vector<double> values = row.compared;
                        values.back() = minus_infinity;
                        return row.best(values);
                      });
                    }});
  faults.push_back({.name = "routing.only_the_first_blocks_of_tokens",
                    .provenance = "mirage 764",
                    .symptom = "the end of the batch holds garbage",
                    .trigger = "a number of tokens that is no multiple of the block of 16",
                    .clauses = {"ROUTING-5a", "ROUTING-3a", "GENERAL-1"},
                    .plant = [](Planted& planted) {
                      planted.around<&Table::route_forward>([](const auto& next, auto& a) {
                        Copy ids(a.ids), weights(a.weights);
                        const dropless_status status = next(a);
                        if (status != DROPLESS_OK) return status;
                        const Index tokens = view(a.ids).shape(0), k = view(a.ids).shape(1);
                        for (Index t = tokens / 16 * 16; t < tokens; ++t) {
                          for (Index j = 0; j < k; ++j) {
                            view(a.ids).store_integer(ids.elements().load_integer(t, j), t, j);
                            view(a.weights).store_integer(weights.elements().load_integer(t, j), t,
                                                          j);
                          }
                        }
                        return status;
                      });
                    }});
  faults.push_back({.name = "routing.ids_written_at_32_bit_pitch",
                    .provenance = "aiter 5255; vllm 55147",
                    .symptom = "most of the expert ids are invalid",
                    .trigger = "ids of 64 bits",
                    .clauses = {"ROUTING-3a", "ROUTING-5a", "ROUTING-13a"},
                    .plant = [](Planted& planted) {
                      planted.after<&Table::route_forward>([](auto& a) {
                        if (a.ids->dtype != DROPLESS_I64) return;
                        std::vector<Index> ids = integers_of(a.ids);
                        ids.resize(ids.size() + 1, 0);
                        each_integer(a.ids, [&](Index kept, Index i) {
                          if (at(2 * i) + 1 >= ids.size()) return kept;
                          return (ids[at(2 * i)] & 0xFFFFFFFF) | ids[at(2 * i + 1)] << 32;
                        });
                      });
                    }});
  faults.push_back({.name = "routing.sigmoid_taken_for_softmax",
                    .provenance = "flashinfer 2889, bugs A and D",
                    .symptom = "a score function is silently mapped to another one",
                    .trigger = "sigmoid scores",
                    .clauses = {"ROUTING-1b", "ROUTING-6c", "ROUTING-3a"},
                    .plant = [](Planted& planted) {
                      change_forward_settings(planted, [](dropless_route_settings& s) {
                        if (s.score_function != DROPLESS_SCORE_SIGMOID) return;
                        s.score_function = DROPLESS_SCORE_SOFTMAX;
                        s.softmax_order = DROPLESS_SOFTMAX_BEFORE_TOP_K;
                      });
                    }});
}

}  // namespace

void add_routing_selection(std::vector<Fault>& faults) {
  add_precision(faults);
  add_groups(faults);
  add_order_and_limits(faults);
}

}  // namespace dropless::faults
