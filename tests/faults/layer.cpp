// SPDX-License-Identifier: Apache-2.0
// Faults of the layer's forward pass; gradients and state are in layer_backward.cpp.
#include <algorithm>
#include <cmath>

#include "tests/faults/layers.h"
#include "tests/faults/refusals.h"

namespace dropless::faults {
namespace {

bool is_masked(const Forward& a, Index token) {
  return a.token_mask != nullptr && view(a.token_mask).load_integer(token) == 0;
}

// y of the same call with other parameters, unrounded; the state is not kept.
template <class NextForward>
std::vector<double> y_with(const NextForward& next, const Forward& a, const PartsChange& change) {
  LayerParts parts;
  if (!parts.take(a)) return {};
  change(parts);
  const Copy y(a.y), ids(a.ids), counts(a.tokens_per_expert);
  Forward other = a;
  parts.put_into(other);
  other.y = y.tensor(), other.ids = ids.tensor(), other.tokens_per_expert = counts.tensor();
  other.keep = 0;
  next(other);
  return values_of(y.tensor());
}

void without_shared_expert(LayerParts& parts) {
  auto& p = parts.parameters;
  p.shared_gate_up = p.shared_down = p.shared_gate = nullptr;
}

void add_shared_expert(std::vector<Fault>& faults) {
  faults.push_back({.name = "layer.shared_expert_divided_by_the_factor",
                    .provenance = "sglang 28237",
                    .symptom = "the shared expert counts 1 / factor",
                    .trigger = "a shared expert and a scaling factor other than 1",
                    .clauses = {"LAYER-1a", "LAYER-1b", "LAYER-1c"},
                    .plant = [](Planted& planted) {
                      planted.around<&Table::layer_forward>([](const auto& next, Forward& a) {
                        const dropless_status status = next(a);
                        LayerParts parts;
                        if (status != DROPLESS_OK || !parts.take(a)) return status;
                        if (parts.parameters.shared_down == nullptr) return status;
                        const auto routed = y_with(next, a, without_shared_expert);
                        each(a.y, [&](double y, Index i) {
                          const double r = routed[static_cast<std::size_t>(i)];
                          return r + (y - r) / parts.route.scaling_factor;
                        });
                        return status;
                      });
                    }});
  faults.push_back({.name = "layer.shared_expert_missing",
                    .provenance = "operator O18: a term is left out (vllm 45037)",
                    .symptom = "the shared expert is not added",
                    .trigger = "a shared expert",
                    .clauses = {"LAYER-1a", "LAYER-1b"},
                    .plant = [](Planted& planted) {
                      change_layer(planted, Pass::forward, without_shared_expert);
                    }});
  faults.push_back({.name = "layer.shared_gate_ignored",
                    .provenance = "operator O18: a term is left out (Qwen2-MoE)",
                    .symptom = "the shared expert is added ungated",
                    .trigger = "a shared gate",
                    .clauses = {"LAYER-1a", "LAYER-1b"},
                    .plant = [](Planted& planted) {
                      planted.around<&Table::layer_forward>([](const auto& next, Forward& a) {
                        LayerParts parts;
                        if (!parts.take(a)) return next(a);
                        if (parts.parameters.shared_gate != nullptr)
                          a.keep = 0;  // of another layer
                        parts.parameters.shared_gate = nullptr;
                        parts.put_into(a);
                        return next(a);
                      });
                    }});
  faults.push_back({.name = "layer.shared_expert_lost_for_masked_tokens",
                    .provenance = "sglang 30895: padding rows of the output are zeroed",
                    .symptom = "masked tokens miss the shared expert",
                    .trigger = "a token mask and a shared expert",
                    .clauses = {"LAYER-1b", "LAYER-1g"},
                    .plant = [](Planted& planted) {
                      after_forward(planted, [](Forward& a, const LayerParts&) {
                        each(a.y, [&](double y, Index i) {
                          return is_masked(a, i / view(a.y).shape(1)) ? 0.0 : y;
                        });
                      });
                    }});
}

void add_experts(std::vector<Fault>& faults) {
  faults.push_back({.name = "layer.gelu_for_silu",
                    .provenance = "operator O17: the neighbouring mode (public MoE tests pass it)",
                    .symptom = "experts use GELU",
                    .trigger = "swiglu",
                    .clauses = {"LAYER-1a", "LAYER-1c", "LAYER-1e"},
                    .plant = [](Planted& planted) {
                      change_layer(planted, Pass::both, [](LayerParts& parts) {
                        if (parts.activation.kind == DROPLESS_SWIGLU) {
                          parts.activation.kind = DROPLESS_GEGLU_TANH;
                        }
                      });
                    }});
  faults.push_back({.name = "layer.scaling_factor_twice",
                    .provenance = "vllm 24119, 45037",
                    .symptom = "the factor is applied in the router and on the output",
                    .trigger = "a scaling factor other than 1",
                    .clauses = {"LAYER-1a", "LAYER-1c", "LAYER-1e"},
                    .plant = [](Planted& planted) {
                      change_layer(planted, Pass::forward, [](LayerParts& parts) {
                        parts.route.scaling_factor *= parts.route.scaling_factor;
                      });
                    }});
  faults.push_back({.name = "layer.factor_lost_for_a_single_expert",
                    .provenance = "sglang 40187",
                    .symptom = "the fast path for K = 1 skips the scaling",
                    .trigger = "K = 1 and a factor other than 1",
                    .clauses = {"LAYER-1a", "LAYER-1c", "LAYER-1d"},
                    .plant = [](Planted& planted) {
                      change_layer(planted, Pass::both, [](LayerParts& parts) {
                        if (parts.route.top_k == 1) parts.route.scaling_factor = 1;
                      });
                    }});
  faults.push_back({.name = "layer.late_weights_applied_early",
                    .provenance = "operator O17: the neighbouring mode (torchtitan 2416)",
                    .symptom = "the bias of the second matrix is not weighted",
                    .trigger = "late weights and a second bias",
                    .clauses = {"LAYER-1a", "LAYER-1c"},
                    .plant = [](Planted& planted) {
                      change_layer(planted, Pass::both, [](LayerParts& parts) {
                        if (parts.settings.weight_placement == DROPLESS_WEIGHTS_LATE) {
                          parts.settings.weight_placement = DROPLESS_WEIGHTS_EARLY;
                        }
                      });
                    }});
  faults.push_back({.name = "layer.input_weights_applied_late",
                    .provenance = "operator O17: the neighbouring mode (Llama-4)",
                    .symptom = "the weight multiplies the output instead of the input",
                    .trigger = "weights on the input",
                    .clauses = {"LAYER-1c", "LAYER-1a"},
                    .plant = [](Planted& planted) {
                      change_layer(planted, Pass::both, [](LayerParts& parts) {
                        if (parts.settings.weight_placement == DROPLESS_WEIGHTS_INPUT) {
                          parts.settings.weight_placement = DROPLESS_WEIGHTS_LATE;
                        }
                      });
                    }});
  faults.push_back({.name = "layer.first_bias_ignored",
                    .provenance = "pytorch 152665: the bias seems dropped",
                    .symptom = "the bias of gate and up is not added",
                    .trigger = "a model with biases (gpt-oss)",
                    .clauses = {"LAYER-1a"},
                    .plant = [](Planted& planted) {
                      change_layer(planted, Pass::forward, [](LayerParts& parts) {
                        parts.parameters.gate_up_bias = nullptr;
                      });
                    }});
  faults.push_back({.name = "layer.router_bias_ignored",
                    .provenance = "operator O18: a term is left out (gpt-oss)",
                    .symptom = "the router's bias is not added to the logits",
                    .trigger = "a router bias",
                    .clauses = {"LAYER-1a"},
                    .plant = [](Planted& planted) {
                      change_layer(planted, Pass::forward, [](LayerParts& parts) {
                        parts.parameters.router_bias = nullptr;
                      });
                    }});
  faults.push_back({.name = "layer.expert_bias_ignored",
                    .provenance = "maxtext 2494",
                    .symptom = "the load-balance bias has no effect",
                    .trigger = "an expert bias",
                    .clauses = {"LAYER-1a"},
                    .plant = [](Planted& planted) {
                      change_layer(planted, Pass::forward, [](LayerParts& parts) {
                        parts.parameters.expert_bias = nullptr;
                      });
                    }});
  faults.push_back({.name = "layer.neighbouring_expert_computes",
                    .provenance = "xtuner 2053; transformers 48792",
                    .symptom = "tokens are computed by a neighbouring expert",
                    .trigger = "more than one expert",
                    .clauses = {"LAYER-1a", "LAYER-1d"},
                    .plant = [](Planted& planted) {
                      planted.around<&Table::layer_forward>([](const auto& next, Forward& a) {
                        LayerParts parts;
                        if (!parts.take(a)) return next(a);
                        const Copy down(parts.parameters.down);
                        if (down.readable() && down.elements().rank() == 3) {
                          const TensorView from = view(parts.parameters.down);
                          const Index size = from.shape(1) * from.shape(2);
                          each_integer(down.tensor(), [&](Index, Index i) {
                            return from.load_integer_flat((i + size) % from.size());
                          });
                          parts.parameters.down = down.tensor();
                        }
                        parts.put_into(a);
                        return next(a);
                      });
                    }});
  faults.push_back({.name = "layer.output_truncated",
                    .provenance = "numerics: output truncated, not RNE",
                    .symptom = "y is rounded towards zero",
                    .trigger = "bf16 activations",
                    .clauses = {"LAYER-1d"},
                    .plant = [](Planted& planted) {
                      planted.around<&Table::layer_forward>([](const auto& next, Forward& a) {
                        const bool narrow = is_readable(a.y) && a.y->dtype == DROPLESS_BF16 &&
                                            is_readable(a.x) && a.x->dtype == DROPLESS_BF16;
                        const dropless_status status = next(a);
                        if (!narrow || status != DROPLESS_OK) return status;
                        const Copy x(a.x, DROPLESS_FP32), y(a.y, DROPLESS_FP32), ids(a.ids),
                            counts(a.tokens_per_expert);
                        Forward exact = a;
                        exact.x = x.tensor(), exact.y = y.tensor(), exact.ids = ids.tensor();
                        exact.tokens_per_expert = counts.tensor(), exact.keep = 0;
                        if (next(exact) != DROPLESS_OK) return status;
                        each(a.y, [&](double, Index i) {
                          const double v = y.elements().load_flat(i);
                          const auto bits = encode_bits(DROPLESS_FP32, v) & 0xFFFF0000u;
                          return decode_bits(DROPLESS_FP32, bits);
                        });
                        return status;
                      });
                    }});
}

void add_routing_of_the_layer(std::vector<Fault>& faults) {
  faults.push_back(
      {.name = "layer.logits_not_in_the_router_type",
       .provenance = "Megatron-LM 5694; AstrAI 57",
       .symptom = "logits keep fp32 where the model rounds them to bf16, or the reverse",
       .trigger = "the router's output type",
       .clauses = {"LAYER-1e", "LAYER-1a"},
       .plant = [](Planted& planted) {
         change_layer(planted, Pass::forward, [](LayerParts& parts) {
           parts.settings.logits_dtype =
               parts.settings.logits_dtype == DROPLESS_BF16 ? DROPLESS_FP32 : DROPLESS_BF16;
         });
       }});
  faults.push_back({.name = "layer.token_mask_ignored",
                    .provenance = "Megatron-LM 5542, 1984",
                    .symptom = "padding tokens enter the experts",
                    .trigger = "a token mask",
                    .clauses = {"LAYER-1a", "LAYER-1g"},
                    .plant = [](Planted& planted) {
                      planted.before<&Table::layer_forward>(
                          [](Forward& a) { a.token_mask = nullptr; });
                    }});
  faults.push_back({.name = "layer.counts_bumped_in_the_replay",
                    .provenance = "torchtitan 1593; Automodel 3247",
                    .symptom = "usage counters are twice too high",
                    .trigger = "recompute",
                    .clauses = {"LAYER-3a"},
                    .plant = [](Planted& planted) {
                      after_forward(planted, [](Forward& a, const LayerParts& parts) {
                        if (parts.settings.recompute == 0) return;
                        each_integer(a.tokens_per_expert, [](Index n, Index) { return 2 * n; });
                      });
                    }});
  faults.push_back({.name = "layer.input_overwritten",
                    .provenance = "vllm 28939",
                    .symptom = "the routed path overwrites hidden states that others still need",
                    .trigger = "an in-place layer",
                    .clauses = {"GENERAL-0"},
                    .plant = [](Planted& planted) {
                      after_forward(planted, [](Forward& a, const LayerParts&) {
                        if (!has_elements(a.x)) return;
                        view(a.x).store_integer(view(a.y).load_integer(0, 0), 0, 0);
                      });
                    }});
  faults.push_back({.name = "layer.weights_cached_by_address",
                    .provenance = "Transformer Engine 1593; starter-kit 21",
                    .symptom = "a cached copy of the weights is used after they changed",
                    .trigger = "other weights at the same address",
                    .clauses = {"LAYER-1a"},
                    .plant = [](Planted& planted) {
                      planted.around<&Table::layer_forward>([](const auto& next, Forward& a) {
                        static Remembered weights;
                        LayerParts parts;
                        if (!parts.take(a) || !has_elements(parts.parameters.down)) return next(a);
                        parts.parameters.down = weights.of(parts.parameters.down);
                        parts.put_into(a);
                        return next(a);
                      });
                    }});
  faults.push_back({.name = "layer.second_micro_batch_differs",
                    .provenance = "Transformer Engine 1047",
                    .symptom = "the error jumps from the second micro-batch on",
                    .trigger = "a second call",
                    .clauses = {"GENERAL-5", "LAYER-1a"},
                    .plant = [](Planted& planted) {
                      after_forward(planted, [](Forward& a, const LayerParts&) {
                        static int calls = 0;
                        if (++calls % 2 != 0) return;
                        each_integer(a.y, [](Index bits, Index) { return bits ^ 1; });
                      });
                    }});
}

void add_recipe(std::vector<Fault>& faults) {
  faults.push_back({.name = "layer.recipe_ignored",
                    .provenance = "flashinfer 2889: a setting that never arrives",
                    .symptom = "expert operands are not quantised",
                    .trigger = "the MXFP8 recipe",
                    .clauses = {"LAYER-2"},
                    .plant = [](Planted& planted) {
                      change_layer(planted, Pass::both, [](LayerParts& parts) {
                        parts.settings.recipe = DROPLESS_RECIPE_PLAIN;
                      });
                    }});
  faults.push_back({.name = "layer.gradient_format_ignored",
                    .provenance = "Transformer Engine 3342, 3352",
                    .symptom = "gradients are E4M3 although the recipe says E5M2, or the reverse",
                    .trigger = "the hybrid recipe",
                    .clauses = {"LAYER-2", "LAYER-1e"},
                    .plant = [](Planted& planted) {
                      change_layer(planted, Pass::backward, [](LayerParts& parts) {
                        auto& format = parts.settings.gradient_format;
                        format = format == DROPLESS_E5M2 ? DROPLESS_E4M3 : DROPLESS_E5M2;
                      });
                    }});
  faults.push_back({.name = "layer.router_sees_quantised_input",
                    .provenance = "operator O10: value of the wrong twin (mcore-bridge 125)",
                    .symptom = "the router reads the codes made for the experts",
                    .trigger = "the MXFP8 recipe",
                    .clauses = {"LAYER-2", "LAYER-1a"},
                    .plant = [](Planted& planted) {
                      planted.around<&Table::layer_forward>([](const auto& next, Forward& a) {
                        LayerParts parts;
                        const Copy x(a.x);
                        if (!x.readable() || !parts.take(a)) return next(a);
                        if (parts.settings.recipe != DROPLESS_RECIPE_MXFP8) return next(a);
                        each(x.tensor(), [](double v, Index) {
                          return decode_bits(DROPLESS_E4M3, encode_bits(DROPLESS_E4M3, v));
                        });
                        a.x = x.tensor();
                        return next(a);
                      });
                    }});
  faults.push_back({.name = "layer.scale_rule_of_another_recipe",
                    .provenance = "numerics: A scaled FLOOR, not RCEIL",
                    .symptom = "expert operands are scaled by FLOOR",
                    .trigger = "the MXFP8 recipe",
                    .clauses = {"LAYER-2"},
                    .plant = [](Planted& planted) {
                      planted.behave_as(
                          [](dropless_profile& p) { p.scale_rule = DROPLESS_SCALE_FLOOR; });
                    }});
}

}  // namespace

void add_layer(std::vector<Fault>& faults) {
  add_shared_expert(faults);
  add_experts(faults);
  add_routing_of_the_layer(faults);
  add_recipe(faults);
  add_layer_backward(faults);
  add_layer_strides(faults);
  add_layer_elsewhere(faults);
  add_layer_over_ranks(faults);
}

}  // namespace dropless::faults
