// SPDX-License-Identifier: Apache-2.0
// Faults of scores and routing weights.
#include <cmath>

#include "tests/faults/routers.h"

namespace dropless::faults {
namespace {

std::size_t at(Index i) {
  return static_cast<std::size_t>(i);
}

// The weight made from other scores than the right ones: divided and scaled like theirs.
double weight_from(const RouterRow& row, const std::vector<double>& chosen, Index slot) {
  double sum = 0;
  for (const double score : chosen) sum += score;
  return chosen[at(slot)] / reference::weight_divisor(row.settings, sum) *
         row.settings.scaling_factor;
}

// chosen[j] = change(e), for the experts of the row.
template <class Change>
std::vector<double> chosen_by(const RouterRow& row, Change change) {
  std::vector<double> chosen;
  for (const Index id : row.ids) chosen.push_back(id < 0 ? 0 : change(at(id)));
  return chosen;
}

void add_score_functions(std::vector<Fault>& faults) {
  faults.push_back({.name = "routing.softmax_of_the_chosen_only",
                    .provenance = "Megatron-LM 955, 1593; Qwen3 687",
                    .symptom = "combine weights are several times too large",
                    .trigger = "softmax scores without renormalisation",
                    .clauses = {"ROUTING-6a"},
                    .plant = [](Planted& planted) {
                      change_weights(planted, [](double w, const RouterRow& row, Index) {
                        if (row.settings.score_function != DROPLESS_SCORE_SOFTMAX) return w;
                        if (over_selected(row.settings)) return w;
                        const auto& settings = row.settings;
                        const bool renormalised =
                            settings.top_k > 1 ? settings.renormalize : settings.renormalize_single;
                        double sum = 0;
                        for (const Index id : row.ids) sum += id < 0 ? 0 : row.scores[at(id)];
                        return renormalised ? w : w / sum;
                      });
                    }});
  faults.push_back({.name = "routing.softmax_over_all_instead_of_chosen",
                    .provenance = "vllm 43223",
                    .symptom = "weights do not sum to one",
                    .trigger = "softmax over the selected experts",
                    .clauses = {"ROUTING-6b"},
                    .plant = [](Planted& planted) {
                      change_weights(planted, [](double w, const RouterRow& row, Index slot) {
                        if (!over_selected(row.settings)) return w;
                        return row.scores[at(row.ids[at(slot)])] * row.settings.scaling_factor;
                      });
                    }});
  faults.push_back({.name = "routing.softmax_sum_includes_padding",
                    .provenance = "tpu-inference 1252; vllm 37591",
                    .symptom = "padding columns of the expert axis take part in the softmax",
                    .trigger = "a number of experts that is no multiple of 32",
                    .clauses = {"ROUTING-6a", "ROUTING-1a", "ROUTING-6c"},
                    .plant = [](Planted& planted) {
                      change_weights(planted, [](double w, const RouterRow& row, Index) {
                        const auto& s = row.settings;
                        if (s.score_function != DROPLESS_SCORE_SOFTMAX || over_selected(s)) {
                          return w;
                        }
                        const double lse = reference::log_sum_exp(row.logits).value();
                        const auto columns = static_cast<double>((32 - s.num_experts % 32) % 32);
                        return w / (1 + columns * std::exp(-lse));
                      });
                    }});
  faults.push_back({.name = "routing.softmax_maximum_starts_at_zero",
                    .provenance = "flashinfer 2822; vllm 37605, 38859",
                    .symptom = "routing is unrelated to the reference when all logits are negative",
                    .trigger = "every logit of a token far below zero",
                    .clauses = {"ROUTING-1a", "ROUTING-6a"},
                    .plant = [](Planted& planted) {
                      planted.after<&Table::route_forward>([](auto& a) {
                        if (a.settings->score_function != DROPLESS_SCORE_SOFTMAX) return;
                        for (Index t = 0; t < view(a.ids).shape(0); ++t) {
                          const RouterRow row = row_of(a, t);
                          float sum = 0;
                          for (const double l : row.logits) sum += std::exp(static_cast<float>(l));
                          if (sum > 0x1p-126f) continue;  // it underflows only here
                          for (Index j = 0; j < a.settings->top_k; ++j) {
                            view(a.weights).store(std::nan(""), t, j);
                          }
                        }
                      });
                    }});
  faults.push_back({.name = "routing.softmax_without_maximum",
                    .provenance = "operator O1: neutral element (flashinfer 2822)",
                    .symptom = "weights are NaN",
                    .trigger = "logits above 88",
                    .clauses = {"ROUTING-1a", "ROUTING-6a"},
                    .plant = [](Planted& planted) {
                      change_weights(planted, [](double w, const RouterRow& row, Index) {
                        if (row.settings.score_function != DROPLESS_SCORE_SOFTMAX) return w;
                        float sum = 0;
                        for (const double l : row.logits) sum += std::exp(static_cast<float>(l));
                        return std::isinf(sum) ? std::nan("") : w;
                      });
                    }});
  faults.push_back({.name = "routing.softplus_overflows",
                    .provenance = "operator O18: naive formula for DeepSeek-V4 scores",
                    .symptom = "scores are infinite",
                    .trigger = "logits above 88 with sqrt(softplus) scores",
                    .clauses = {"ROUTING-1c"},
                    .plant = [](Planted& planted) {
                      change_weights(planted, [](double w, const RouterRow& row, Index slot) {
                        if (row.settings.score_function != DROPLESS_SCORE_SQRT_SOFTPLUS) return w;
                        const double logit = row.logits[at(row.ids[at(slot)])];
                        return logit > 88.8 ? w * std::exp(static_cast<float>(logit)) : w;
                      });
                    }});
  faults.push_back({.name = "routing.softplus_without_root",
                    .provenance = "flashinfer 2889, bug A",
                    .symptom = "the square root of the score is left out",
                    .trigger = "sqrt(softplus) scores",
                    .clauses = {"ROUTING-1c"},
                    .plant = [](Planted& planted) {
                      change_weights(planted, [](double w, const RouterRow& row, Index slot) {
                        if (row.settings.score_function != DROPLESS_SCORE_SQRT_SOFTPLUS) return w;
                        const auto squared = [&](std::size_t e) {
                          return row.scores[e] * row.scores[e];
                        };
                        return weight_from(row, chosen_by(row, squared), slot);
                      });
                    }});
  faults.push_back({.name = "routing.scores_output_renormalised",
                    .provenance = "Megatron-LM 1438",
                    .symptom = "the loss sees other scores than the router's",
                    .trigger = "scores on request",
                    .clauses = {"ROUTING-1e"},
                    .plant = [](Planted& planted) {
                      planted.after<&Table::route_forward>([](auto& a) {
                        if (a.scores == nullptr) return;
                        for (Index t = 0; t < view(a.scores).shape(0); ++t) {
                          double sum = 0;
                          for (Index e = 0; e < view(a.scores).shape(1); ++e) {
                            sum += view(a.scores).load(t, e);
                          }
                          for (Index e = 0; e < view(a.scores).shape(1); ++e) {
                            view(a.scores).store(view(a.scores).load(t, e) / sum, t, e);
                          }
                        }
                      });
                    }});
  faults.push_back({.name = "routing.scores_output_biased",
                    .provenance = "PaddleFormers 3452, in the score output",
                    .symptom = "scores on request contain the bias",
                    .trigger = "an expert bias",
                    .clauses = {"ROUTING-1e", "ROUTING-2a"},
                    .plant = [](Planted& planted) {
                      planted.after<&Table::route_forward>([](auto& a) {
                        const std::vector<double> bias = values_of(a.expert_bias);
                        if (bias.empty()) return;
                        each(a.scores,
                             [&](double s, Index i) { return s + bias[at(i) % bias.size()]; });
                      });
                    }});
}

void add_bias_and_precision(std::vector<Fault>& faults) {
  faults.push_back({.name = "routing.bias_enters_weights",
                    .provenance = "PaddleFormers 3452",
                    .symptom = "combine weights contain the load-balance bias",
                    .trigger = "an expert bias",
                    .clauses = {"ROUTING-2a", "ROUTING-2b", "ROUTING-6c"},
                    .plant = [](Planted& planted) {
                      planted.around<&Table::route_forward>([](const auto& next, auto& a) {
                        const dropless_status status = next(a);
                        if (status != DROPLESS_OK || a.expert_bias == nullptr) return status;
                        for (Index t = 0; t < view(a.ids).shape(0); ++t) {
                          const RouterRow row = row_of(a, t);
                          for (Index j = 0; j < row.settings.top_k; ++j) {
                            if (row.ids[at(j)] < 0) continue;
                            const auto biased = [&](std::size_t e) { return row.compared[e]; };
                            view(a.weights).store(weight_from(row, chosen_by(row, biased), j), t,
                                                  j);
                          }
                        }
                        return status;
                      });
                    }});
  faults.push_back({.name = "routing.bias_subtracted_in_fp32",
                    .provenance = "operator O17: undeclared cancellation of the biased score",
                    .symptom = "weights lose digits",
                    .trigger = "a bias that is large beside the score",
                    .clauses = {"ROUTING-2b", "ROUTING-2a"},
                    .plant = [](Planted& planted) {
                      change_weights(planted, [](double w, const RouterRow& row, Index slot) {
                        const auto cancelled = [&](std::size_t e) {
                          const auto bias = static_cast<float>(row.compared[e] - row.scores[e]);
                          const float sum = static_cast<float>(row.scores[e]) + bias;
                          return static_cast<double>(sum - bias);
                        };
                        const bool plain = over_selected(row.settings);
                        return plain ? w
                                     : w * cancelled(at(row.ids[at(slot)])) /
                                           row.scores[at(row.ids[at(slot)])];
                      });
                    }});
  faults.push_back({.name = "routing.weights_in_bf16",
                    .provenance = "sglang 39351; Megatron-LM 1421",
                    .symptom = "routing weights are rounded to the activations' type",
                    .trigger = "always",
                    .clauses = {"ROUTING-6c", "ROUTING-6a", "ROUTING-6b"},
                    .plant = [](Planted& planted) {
                      change_weights(planted,
                                     [](double w, const RouterRow&, Index) { return bf16(w); });
                    }});
  faults.push_back({.name = "routing.bf16_logits_rounded_scores",
                    .provenance = "AstrAI 57, in the score output",
                    .symptom = "bf16 logits give bf16 scores",
                    .trigger = "bf16 logits",
                    .clauses = {"ROUTING-1d", "ROUTING-6c"},
                    .plant = [](Planted& planted) {
                      planted.after<&Table::route_forward>([](auto& a) {
                        if (a.logits->dtype != DROPLESS_BF16) return;
                        each(a.weights, [](double w, Index) { return bf16(w); });
                      });
                    }});
}

void add_normalisation(std::vector<Fault>& faults) {
  faults.push_back({.name = "routing.renormalise_flag_ignored",
                    .provenance = "flashinfer 2889, bug C",
                    .symptom = "weights are always renormalised",
                    .trigger = "a model without renormalisation",
                    .clauses = {"ROUTING-6c", "ROUTING-6a"},
                    .plant = [](Planted& planted) {
                      change_forward_settings(planted, [](dropless_route_settings& s) {
                        if (!over_selected(s)) s.renormalize = 1;
                      });
                    }});
  faults.push_back({.name = "routing.never_renormalised",
                    .provenance = "operator O9: factor never applied (flashinfer 2889)",
                    .symptom = "weights are not divided by their sum",
                    .trigger = "a model with renormalisation",
                    .clauses = {"ROUTING-6c"},
                    .plant = [](Planted& planted) {
                      change_forward_settings(
                          planted, [](dropless_route_settings& s) { s.renormalize = 0; });
                    }});
  faults.push_back({.name = "routing.single_expert_renormalised",
                    .provenance = "operator O17: the neighbouring mode (flashinfer 2889, bug C)",
                    .symptom = "the weight of a single expert is always 1",
                    .trigger = "K = 1 without renormalisation of a single expert",
                    .clauses = {"ROUTING-6d", "ROUTING-6c"},
                    .plant = [](Planted& planted) {
                      change_forward_settings(planted, [](dropless_route_settings& s) {
                        if (!over_selected(s)) s.renormalize_single = 1;
                      });
                    }});
  faults.push_back(
      {.name = "routing.single_expert_uses_common_switch",
       .provenance = "operator O10: value of the wrong twin (sglang 40187: top-1 paths)",
       .symptom = "K = 1 obeys the switch for K > 1",
       .trigger = "K = 1 and two different switches",
       .clauses = {"ROUTING-6d", "ROUTING-6g"},
       .plant = [](Planted& planted) {
         change_forward_settings(
             planted, [](dropless_route_settings& s) { s.renormalize_single = s.renormalize; });
       }});
  faults.push_back(
      {.name = "routing.eps_form_swapped",
       .provenance = "operator O17: the neighbouring mode (flashinfer 2889, bug D)",
       .symptom = "the eps is taken as a lower limit instead of being added, or the reverse",
       .trigger = "an eps that is not negligible",
       .clauses = {"ROUTING-6e"},
       .plant = [](Planted& planted) {
         change_forward_settings(planted, [](dropless_route_settings& s) {
           s.eps_form =
               s.eps_form == DROPLESS_EPS_ADDED ? DROPLESS_EPS_MAXIMUM : DROPLESS_EPS_ADDED;
         });
       }});
  faults.push_back({.name = "routing.eps_fixed",
                    .provenance = "flashinfer 2889: settings that never reach the kernel",
                    .symptom = "the eps of the model is ignored",
                    .trigger = "an eps other than 1e-20",
                    .clauses = {"ROUTING-6e"},
                    .plant = [](Planted& planted) {
                      change_forward_settings(
                          planted, [](dropless_route_settings& s) { s.renormalize_eps = 1e-20; });
                    }});
  faults.push_back({.name = "routing.scaling_factor_twice",
                    .provenance = "vllm 24119, 45037",
                    .symptom = "large loss of accuracy",
                    .trigger = "a scaling factor other than 1",
                    .clauses = {"ROUTING-6f"},
                    .plant = [](Planted& planted) {
                      change_forward_settings(planted, [](dropless_route_settings& s) {
                        s.scaling_factor *= s.scaling_factor;
                      });
                    }});
  faults.push_back({.name = "routing.scaling_factor_before_renormalisation",
                    .provenance = "operator O9: factor never effective (vllm 24119)",
                    .symptom = "the scaling factor cancels out",
                    .trigger = "a scaling factor together with renormalisation",
                    .clauses = {"ROUTING-6f"},
                    .plant = [](Planted& planted) {
                      change_forward_settings(planted, [](dropless_route_settings& s) {
                        if (s.renormalize != 0) s.scaling_factor = 1;
                      });
                    }});
  faults.push_back(
      {.name = "routing.expert_scale_before_renormalisation",
       .provenance = "operator O9: factor in the wrong place (vllm 45037)",
       .symptom = "the per-expert scale changes the sum that divides",
       .trigger = "a per-expert scale together with renormalisation",
       .clauses = {"ROUTING-6g"},
       .plant = [](Planted& planted) {
         planted.after<&Table::route_forward>([](auto& a) {
           const std::vector<double> scale = values_of(a.expert_scale);
           if (scale.empty() || over_selected(*a.settings)) return;
           for (Index t = 0; t < view(a.ids).shape(0); ++t) {
             const RouterRow row = row_of(a, t);
             for (Index j = 0; j < row.settings.top_k; ++j) {
               if (row.ids[at(j)] < 0) continue;
               const auto scaled = [&](std::size_t e) { return row.scores[e] * scale[e]; };
               view(a.weights).store(weight_from(row, chosen_by(row, scaled), j), t, j);
             }
           }
         });
       }});
  faults.push_back({.name = "routing.expert_scale_ignored",
                    .provenance = "operator O9: factor never applied (vllm 45037)",
                    .symptom = "the per-expert scale has no effect",
                    .trigger = "a per-expert scale",
                    .clauses = {"ROUTING-6g"},
                    .plant = [](Planted& planted) {
                      planted.around<&Table::route_forward>([](const auto& next, auto& a) {
                        if (const dropless_status status = next(a); status != DROPLESS_OK) {
                          return status;
                        }
                        a.expert_scale = nullptr;
                        return next(a);
                      });
                    }});
}

}  // namespace

void add_routing_weights(std::vector<Fault>& faults) {
  add_score_functions(faults);
  add_bias_and_precision(faults);
  add_normalisation(faults);
}

}  // namespace dropless::faults
