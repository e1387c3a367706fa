// SPDX-License-Identifier: Apache-2.0
// Faults of the router's gradients and of the bias update.
#include <cmath>

#include "tests/faults/routers.h"

namespace dropless::faults {
namespace {

std::size_t at(Index i) {
  return static_cast<std::size_t>(i);
}

void add_gradients(std::vector<Fault>& faults) {
  faults.push_back({.name = "routing.gradient_treats_sum_as_constant",
                    .provenance = "operator O16: detached graph (transformers 48205)",
                    .symptom = "the derivative of the renormalising sum is missing",
                    .trigger = "renormalisation",
                    .clauses = {"ROUTING-12a"},
                    .plant = [](Planted& planted) {
                      change_backward_settings(planted, [](dropless_route_settings& s) {
                        if (s.top_k > 1) s.renormalize = 0;
                      });
                    }});
  faults.push_back({.name = "routing.gradient_of_selected_logits_only",
                    .provenance = "operator O16: no backward twin (Megatron-LM 955)",
                    .symptom = "experts that were not selected get no gradient",
                    .trigger = "a softmax over all experts without renormalisation",
                    .clauses = {"ROUTING-12a"},
                    .plant = [](Planted& planted) {
                      planted.after<&Table::route_backward>([](auto& a) {
                        const std::vector<Index> ids = integers_of(a.ids);
                        const Index experts = view(a.d_logits).shape(1), k = view(a.ids).shape(1);
                        each(a.d_logits, [&](double d, Index i) {
                          for (Index j = 0; j < k; ++j) {
                            if (ids[at(i / experts * k + j)] == i % experts) return d;
                          }
                          return 0.0;
                        });
                      });
                    }});
  faults.push_back({.name = "routing.gradient_lacks_scaling_factor",
                    .provenance = "operator O16: no backward twin (vllm 24119)",
                    .symptom = "the router learns too slowly",
                    .trigger = "a scaling factor other than 1",
                    .clauses = {"ROUTING-12a"},
                    .plant = [](Planted& planted) {
                      change_backward_settings(
                          planted, [](dropless_route_settings& s) { s.scaling_factor = 1; });
                    }});
  faults.push_back({.name = "routing.gradient_in_bf16",
                    .provenance = "Megatron-LM 1421, in the backward pass",
                    .symptom = "the router's gradient is rounded to bf16",
                    .trigger = "always",
                    .clauses = {"ROUTING-12a"},
                    .plant = [](Planted& planted) {
                      planted.after<&Table::route_backward>([](auto& a) {
                        each(a.d_logits, [](double d, Index) { return bf16(d); });
                      });
                    }});
  faults.push_back({.name = "routing.gradient_lost_for_single_expert",
                    .provenance = "operator O16: detached graph, the top-1 path",
                    .symptom = "a top-1 router never learns",
                    .trigger = "K = 1 without renormalisation",
                    .clauses = {"ROUTING-12c"},
                    .plant = [](Planted& planted) {
                      planted.after<&Table::route_backward>([](auto& a) {
                        if (a.settings->top_k != 1) return;
                        each(a.d_logits, [](double, Index) { return 0.0; });
                      });
                    }});
  faults.push_back({.name = "routing.gradient_of_renormalised_single_expert",
                    .provenance = "operator O16: no backward twin, the top-1 path",
                    .symptom = "a weight that is always 1 has a gradient",
                    .trigger = "K = 1 with renormalisation",
                    .clauses = {"ROUTING-12b"},
                    .plant = [](Planted& planted) {
                      change_backward_settings(
                          planted, [](dropless_route_settings& s) { s.renormalize_single = 0; });
                    }});
  faults.push_back({.name = "routing.expert_scale_gradient_scaled",
                    .provenance = "operator O9: factor twice (vllm 45037)",
                    .symptom = "the gradient of the per-expert scale contains the scale",
                    .trigger = "a per-expert scale",
                    .clauses = {"ROUTING-12d"},
                    .plant = [](Planted& planted) {
                      planted.after<&Table::route_backward>([](auto& a) {
                        const std::vector<double> scale = values_of(a.expert_scale);
                        if (scale.empty()) return;
                        each(a.d_expert_scale, [&](double d, Index e) { return d * scale[at(e)]; });
                      });
                    }});
  faults.push_back({.name = "routing.expert_scale_missing_in_gradient",
                    .provenance = "operator O16: no backward twin (vllm 45037)",
                    .symptom = "the router's gradient lacks the per-expert scale",
                    .trigger = "a per-expert scale",
                    .clauses = {"ROUTING-12a"},
                    .plant = [](Planted& planted) {
                      planted.around<&Table::route_backward>([](const auto& next, auto& a) {
                        const dropless_status status = next(a);
                        if (status != DROPLESS_OK || a.expert_scale == nullptr) return status;
                        dropless_route_backward_args unscaled = a;
                        unscaled.expert_scale = nullptr;
                        unscaled.d_expert_scale = nullptr;
                        return next(unscaled);
                      });
                    }});
  faults.push_back({.name = "routing.empty_slots_have_gradient",
                    .provenance = "transformers 48687, 48689; kernels-community 1056",
                    .symptom = "the loss is right, the router's gradient wrong",
                    .trigger = "ids of -1: their cotangent lands on expert 0",
                    .clauses = {"ROUTING-12e"},
                    .plant = [](Planted& planted) {
                      planted.around<&Table::route_backward>([](const auto& next, auto& a) {
                        const dropless_status status = next(a);
                        if (status != DROPLESS_OK) return status;
                        for (Index t = 0; t < view(a.ids).shape(0); ++t) {
                          for (Index j = 0; j < view(a.ids).shape(1); ++j) {
                            if (view(a.ids).load_integer(t, j) >= 0) continue;
                            const double more = view(a.d_weights).load(t, j);
                            view(a.d_logits).store(view(a.d_logits).load(t, 0) + more, t, 0);
                          }
                        }
                        return status;
                      });
                    }});
  faults.push_back({.name = "routing.masked_tokens_have_gradient",
                    .provenance = "Megatron-LM 5542, in the backward pass",
                    .symptom = "padding tokens train the router",
                    .trigger = "a token mask",
                    .clauses = {"ROUTING-9b"},
                    .plant = [](Planted& planted) {
                      planted.before<&Table::route_backward>(
                          [](auto& a) { a.token_mask = nullptr; });
                    }});
  faults.push_back({.name = "routing.gradient_accumulates_into_dirty_buffer",
                    .provenance = "MSLK 158: a buffer that is empty() instead of zeros()",
                    .symptom = "the second step differs from the first",
                    .trigger = "memory that was used before",
                    .clauses = {"ROUTING-12a", "ROUTING-12e"},
                    .plant = [](Planted& planted) {
                      planted.around<&Table::route_backward>([](const auto& next, auto& a) {
                        Copy before(a.d_logits);
                        const dropless_status status = next(a);
                        if (status == DROPLESS_OK) {
                          each(a.d_logits, [&](double d, Index i) {
                            return d == 0 ? before.elements().load_flat(i) : d;
                          });
                        }
                        return status;
                      });
                    }});
}

// The right update, with other counts.
template <class Change>
void change_counts(Planted& planted, Change change) {
  planted.around<&Table::bias_update>([change](const auto& next, auto& a) {
    Copy counts(a.counts);
    each_integer(counts.tensor(), change);
    a.counts = counts.tensor();
    return next(a);
  });
}

void add_bias_update(std::vector<Fault>& faults) {
  faults.push_back({.name = "routing.bias_update_reversed",
                    .provenance = "operator O9: factor inverted (Megatron-LM 7081)",
                    .symptom = "busy experts become busier",
                    .trigger = "always",
                    .clauses = {"ROUTING-16a", "ROUTING-16b"},
                    .plant = [](Planted& planted) {
                      planted.before<&Table::bias_update>([](auto& a) { a.rate = -a.rate; });
                    }});
  faults.push_back({.name = "routing.bias_never_updated",
                    .provenance = "maxtext 2494; torchtitan 3686",
                    .symptom = "the routing bias never changes",
                    .trigger = "always",
                    .clauses = {"ROUTING-16a", "ROUTING-16b"},
                    .plant = [](Planted& planted) {
                      planted.before<&Table::bias_update>([](auto& a) { a.rate = 0; });
                    }});
  faults.push_back({.name = "routing.idle_expert_keeps_bias",
                    .provenance = "Automodel 532",
                    .symptom = "the bias of an idle expert is not updated",
                    .trigger = "an expert without tokens",
                    .clauses = {"ROUTING-16a"},
                    .plant = [](Planted& planted) {
                      planted.around<&Table::bias_update>([](const auto& next, auto& a) {
                        Copy before(a.expert_bias);
                        const dropless_status status = next(a);
                        if (status != DROPLESS_OK) return status;
                        each(a.expert_bias, [&](double b, Index e) {
                          for (Index i = 0; i < view(a.counts).shape(0); ++i) {
                            if (view(a.counts).load_integer(i, e) != 0) return b;
                          }
                          return before.elements().load_flat(e);
                        });
                        return status;
                      });
                    }});
  faults.push_back({.name = "routing.counts_in_bf16",
                    .provenance = "Megatron-LM 7081",
                    .symptom = "the bias moves the wrong way",
                    .trigger = "counts above 256 that are held in bf16",
                    .clauses = {"ROUTING-16b"},
                    .plant = [](Planted& planted) {
                      change_counts(planted, [](Index n, Index) {
                        return static_cast<Index>(bf16(static_cast<double>(n)));
                      });
                    }});
  faults.push_back({.name = "routing.counts_in_fp32",
                    .provenance = "Megatron-LM 7081, one format wider",
                    .symptom = "counts above 2^24 are rounded",
                    .trigger = "very large counts",
                    .clauses = {"ROUTING-16b"},
                    .plant = [](Planted& planted) {
                      change_counts(planted, [](Index n, Index) {
                        return static_cast<Index>(static_cast<float>(n));
                      });
                    }});
  faults.push_back({.name = "routing.counts_of_first_micro_batch_only",
                    .provenance = "Megatron-LM 4433: counters cleared at the wrong time",
                    .symptom = "only one micro-batch decides",
                    .trigger = "several rows of counts",
                    .clauses = {"ROUTING-16b", "ROUTING-16a"},
                    .plant = [](Planted& planted) {
                      planted.around<&Table::bias_update>([](const auto& next, auto& a) {
                        Copy counts(a.counts);
                        if (is_readable(a.counts) && a.counts->rank == 2) {
                          const Index experts = a.counts->shape[1];
                          each_integer(counts.tensor(), [experts](Index n, Index i) {
                            return i < experts ? n : Index{0};
                          });
                        }
                        a.counts = counts.tensor();
                        return next(a);
                      });
                    }});
  faults.push_back({.name = "routing.bias_moves_at_the_mean",
                    .provenance = "operator O4: drop a zero case",
                    .symptom = "sign(0) counts as 1",
                    .trigger = "an expert with exactly the mean load",
                    .clauses = {"ROUTING-16a"},
                    .plant = [](Planted& planted) {
                      planted.around<&Table::bias_update>([](const auto& next, auto& a) {
                        Copy before(a.expert_bias);
                        const dropless_status status = next(a);
                        if (status != DROPLESS_OK) return status;
                        each(a.expert_bias, [&](double b, Index e) {
                          return b == before.elements().load_flat(e) ? b + a.rate : b;
                        });
                        return status;
                      });
                    }});
}

}  // namespace

void add_routing_backward(std::vector<Fault>& faults) {
  add_gradients(faults);
  add_bias_update(faults);
}

}  // namespace dropless::faults
