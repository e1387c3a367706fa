// SPDX-License-Identifier: Apache-2.0
// Faults of the layer's gradients and of its saved state.
#include <cmath>

#include "tests/faults/exchanges.h"
#include "tests/faults/layers.h"
#include "tests/faults/refusals.h"

namespace dropless::faults {
namespace {

using Parameters = dropless_layer_parameters;

void clear(const dropless_tensor* tensor) {
  each(tensor, [](double, Index) { return 0.0; });
}

void add_missing_gradients(std::vector<Fault>& faults) {
  const auto add = [&](const char* name, const char* provenance, const char* symptom,
                       const char* trigger, void (*plant)(Planted&)) {
    faults.push_back({.name = name,
                      .provenance = provenance,
                      .symptom = symptom,
                      .trigger = trigger,
                      .clauses = {"LAYER-1e"},
                      .plant = plant});
  };
  add("layer.router_gradient_missing", "Automodel 2995, part 2; transformers 48205",
      "the router is trained by the auxiliary loss only", "detached probabilities",
      [](Planted& planted) {
        after_backward(planted, [](Backward&, const Parameters& g) { clear(g.router_weight); });
      });
  add("layer.router_bias_gradient_missing", "operator O16: no backward twin (gpt-oss)",
      "the router's bias is never trained", "a router bias", [](Planted& planted) {
        after_backward(planted, [](Backward&, const Parameters& g) { clear(g.router_bias); });
      });
  add("layer.expert_scale_gradient_missing", "operator O16: no backward twin (Gemma 4)",
      "the per-expert scale is never trained", "a per-expert scale", [](Planted& planted) {
        after_backward(planted, [](Backward&, const Parameters& g) { clear(g.expert_scale); });
      });
  add("layer.first_bias_gradient_missing", "cuBLAS 12.3U1 [4910924]: bias-gradient epilogue",
      "the bias of gate and up is never trained", "a model with biases", [](Planted& planted) {
        after_backward(planted, [](Backward&, const Parameters& g) { clear(g.gate_up_bias); });
      });
  add("layer.second_bias_gradient_not_weighted", "operator O16: no backward twin",
      "the bias gradient of the second matrix is halved", "a model with biases",
      [](Planted& planted) {
        after_backward(planted, [](Backward&, const Parameters& g) {
          each(g.down_bias, [](double d, Index) { return d / 2; });
        });
      });
  add("layer.shared_expert_not_trained", "operator O16: detached graph (transformers 48205)",
      "the shared expert has no gradient", "a shared expert", [](Planted& planted) {
        after_backward(planted, [](Backward&, const Parameters& g) {
          clear(g.shared_gate_up);
          clear(g.shared_down);
        });
      });
  add("layer.input_gradient_lacks_the_router", "transformers 48205, part 2; Automodel 2995",
      "everything upstream has a partial gradient", "always", [](Planted& planted) {
        planted.around<&Table::layer_backward>([](const auto& next, Backward& a) {
          // With the saved logits at hand the router's weight is needed for d_x alone.
          LayerParts parts;
          const bool usable = a.forward != nullptr && a.forward->struct_size >= sizeof(Forward) &&
                              a.forward->keep != 0 && a.forward->saved != nullptr &&
                              parts.take(*a.forward) && parts.settings.recompute == 0;
          if (!usable) return next(a);
          const Copy zero(parts.parameters.router_weight);
          if (!zero.readable()) return next(a);
          clear(zero.tensor());
          parts.parameters.router_weight = zero.tensor();
          Forward forward = *a.forward;
          parts.put_into(forward);
          a.forward = &forward;
          return next(a);
        });
      });
  add("layer.further_loss_ignored", "transformers 44242; vmoe 218",
      "the gradient of the auxiliary losses does not reach the router",
      "d_logits of further losses", [](Planted& planted) {
        planted.before<&Table::layer_backward>([](Backward& a) { a.d_logits = nullptr; });
      });
  add("layer.gradients_added_to_the_buffer", "MSLK 158; Transformer Engine 3437, the reverse",
      "gradients are added to what the buffer held", "a dirty gradient buffer",
      [](Planted& planted) {
        planted.around<&Table::layer_backward>([](const auto& next, Backward& a) {
          const Copy before(a.gradients != nullptr ? a.gradients->down : nullptr);
          const dropless_status status = next(a);
          if (status != DROPLESS_OK || !before.readable()) return status;
          each(a.gradients->down,
               [&](double d, Index i) { return d + before.elements().load_flat(i); });
          return status;
        });
      });
  add("layer.gradient_sign_of_the_gate", "operator O18: an incomplete derivative",
      "the gradient of the first matrix has the wrong sign in its gate half", "always",
      [](Planted& planted) {
        after_backward(planted, [](Backward&, const Parameters& g) {
          if (!is_readable(g.gate_up) || g.gate_up->rank != 3) return;
          const Index rows = g.gate_up->shape[1], columns = g.gate_up->shape[2];
          each(g.gate_up,
               [&](double d, Index i) { return i / columns % rows < rows / 2 ? -d : d; });
        });
      });
  add("layer.weight_gradients_in_bf16_steps", "Transformer Engine 3440; FlagGems 5876",
      "weight gradients are rounded twice", "fp32 gradients", [](Planted& planted) {
        after_backward(planted, [](Backward&, const Parameters& g) {
          each(g.router_weight, [](double d, Index) { return bf16(d); });
        });
      });
}

void add_idle_experts(std::vector<Fault>& faults) {
  faults.push_back({.name = "layer.idle_expert_gradient_unwritten",
                    .provenance = "Automodel 2995, part 3; MSLK 158; MaxText 3354",
                    .symptom = "the gradient of an idle expert is what the buffer held",
                    .trigger = "an expert without tokens",
                    .clauses = {"LAYER-1f", "LAYER-1g"},
                    .plant = [](Planted& planted) {
                      planted.around<&Table::layer_backward>([](const auto& next, Backward& a) {
                        const Copy before(a.gradients != nullptr ? a.gradients->gate_up : nullptr);
                        const dropless_status status = next(a);
                        if (status != DROPLESS_OK || !before.readable()) return status;
                        const TensorView gradient = view(a.gradients->gate_up);
                        const std::vector<Index> counts = integers_of(a.forward->tokens_per_expert);
                        if (gradient.rank() != 3) return status;
                        const Index size = gradient.shape(1) * gradient.shape(2);
                        for (std::size_t e = 0; e < counts.size(); ++e) {
                          if (counts[e] != 0) continue;
                          const auto first = static_cast<Index>(e) * size;
                          for (Index i = first; i < first + size; ++i) {
                            gradient.store_integer_flat(before.elements().load_integer_flat(i), i);
                          }
                        }
                        return status;
                      });
                    }});
  faults.push_back({.name = "layer.no_tokens_returns_early",
                    .provenance = "pytorch 192497; Transformer Engine 1468",
                    .symptom = "gradients are not written for an empty batch",
                    .trigger = "T = 0",
                    .clauses = {"LAYER-1g", "LAYER-1f"},
                    .plant = [](Planted& planted) {
                      planted.around<&Table::layer_backward>([](const auto& next, Backward& a) {
                        const bool empty = is_readable(a.d_y) && view(a.d_y).size() == 0;
                        const Copy before(a.gradients != nullptr ? a.gradients->down : nullptr);
                        const dropless_status status = next(a);
                        if (status == DROPLESS_OK && empty) before.write_back();
                        return status;
                      });
                    }});
  faults.push_back({.name = "layer.no_tokens_refused",
                    .provenance = "pytorch 192497; sglang 25397",
                    .symptom = "a rank without tokens fails",
                    .trigger = "T = 0",
                    .clauses = {"GENERAL-1", "LAYER-1g", "GENERAL-4"},
                    .plant = [](Planted& planted) {
                      Exchanges(planted).impatient();  // the other ranks wait for it
                      refuse_empty<&Table::layer_forward>(planted, [](auto& a) { return a.x; });
                    }});
  faults.push_back({.name = "layer.refusals_swallowed",
                    .provenance = "operator O19: a missing check (DeepGEMM 268)",
                    .symptom = "shapes that do not fit are accepted",
                    .trigger = "an illegal request",
                    .clauses = {"GENERAL-3"},
                    .plant = [](Planted& planted) {
                      swallow_refusals<&Table::layer_forward>(planted);
                      swallow_refusals<&Table::layer_backward>(planted);
                    }});
}

// Bits of router gradients change where `when` holds.
template <class When>
void disturb_gradients(Planted& planted, When when) {
  planted.around<&Table::layer_backward>([when](const auto& next, Backward& a) {
    LayerParts parts;
    const bool disturbed = a.forward != nullptr && a.forward->struct_size >= sizeof(Forward) &&
                           parts.take(*a.forward) && when(*a.forward, parts.settings);
    const dropless_status status = next(a);
    if (status != DROPLESS_OK || !disturbed || a.gradients == nullptr) return status;
    each_integer(a.gradients->router_weight,
                 [](Index bits, Index) { return bits == 0 ? bits : bits ^ 1; });
    return status;
  });
}

void add_state(std::vector<Fault>& faults) {
  faults.push_back({.name = "layer.recompute_gives_other_bits",
                    .provenance = "Megatron-LM 4038: runs that cannot resume bit-exactly",
                    .symptom = "gradients change when activations are recomputed",
                    .trigger = "recompute",
                    .clauses = {"LAYER-3a"},
                    .plant = [](Planted& planted) {
                      disturb_gradients(planted,
                                        [](const Forward&, const dropless_layer_settings& s) {
                                          return s.recompute != 0;
                                        });
                    }});
  faults.push_back({.name = "layer.offload_rounds",
                    .provenance = "operator O15: a narrower format on the way (Megatron-LM 1421)",
                    .symptom = "gradients change when activations go to host memory",
                    .trigger = "offload",
                    .clauses = {"LAYER-3a"},
                    .plant = [](Planted& planted) {
                      disturb_gradients(planted,
                                        [](const Forward&, const dropless_layer_settings& s) {
                                          return s.offload != 0;
                                        });
                    }});
  faults.push_back(
      {.name = "layer.saved_state_is_coarser",
       .provenance = "operator O15: a narrower format on the way (Transformer Engine 1593)",
       .symptom = "gradients differ with and without saved state",
       .trigger = "saved state",
       .clauses = {"LAYER-3b"},
       .plant = [](Planted& planted) {
         disturb_gradients(planted, [](const Forward& f, const dropless_layer_settings&) {
           return f.keep != 0 && f.saved != nullptr;
         });
       }});
  faults.push_back({.name = "layer.release_of_unused_state_fails",
                    .provenance = "operator O4: drop a case (evaluation without a backward pass)",
                    .symptom = "state that no backward pass used cannot be released",
                    .trigger = "a forward pass without a backward pass",
                    .clauses = {"GENERAL-1", "LAYER-3b"},
                    .plant = [](Planted& planted) {
                      planted.around<&Table::layer_release>([](const auto& next, Forward& a) {
                        const dropless_status status = next(a);
                        std::strncpy(next.call()->message, "state is in use",
                                     sizeof next.call()->message - 1);
                        return status == DROPLESS_OK ? DROPLESS_INVALID_ARGUMENT : status;
                      });
                    }});
}

}  // namespace

void add_layer_backward(std::vector<Fault>& faults) {
  add_missing_gradients(faults);
  add_idle_experts(faults);
  add_state(faults);
}

}  // namespace dropless::faults
