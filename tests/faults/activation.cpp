// SPDX-License-Identifier: Apache-2.0
// Faults of the activation: formulas and rows in this file, gradients in activation_backward.cpp.
#include <algorithm>
#include <cmath>

#include "tests/faults/activations.h"
#include "tests/faults/refusals.h"

namespace dropless::faults {
namespace {

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

void add_formulas(std::vector<Fault>& faults) {
  faults.push_back({.name = "activation.gelu_for_silu",
                    .provenance = "operator O17: the neighbouring mode (public MoE tests pass it)",
                    .symptom = "the gate goes through GELU",
                    .trigger = "swiglu",
                    .clauses = {"ACTIVATION-1a"},
                    .plant = [](Planted& planted) {
                      change_activation(planted, [](Settings& s) {
                        if (s.kind == DROPLESS_SWIGLU) s.kind = DROPLESS_GEGLU_TANH;
                      });
                    }});
  faults.push_back({.name = "activation.silu_rounded_before_the_product",
                    .provenance = "torchtitan 2679: a rounding between two steps",
                    .symptom = "silu of the gate is stored in bf16",
                    .trigger = "fp32 output",
                    .clauses = {"ACTIVATION-1a"},
                    .plant = [](Planted& planted) {
                      change_results(planted, [](double h, const Point& p) {
                        if (p.settings.kind != DROPLESS_SWIGLU) return h;
                        return bf16(p.gate * sigmoid(p.gate)) * p.up * p.weight;
                      });
                    }});
  faults.push_back({.name = "activation.erf_for_tanh",
                    .provenance = "operator O17: the neighbouring mode (two forms of GELU)",
                    .symptom = "the exact GELU is computed instead of its tanh form",
                    .trigger = "geglu",
                    .clauses = {"ACTIVATION-1c"},
                    .plant = [](Planted& planted) {
                      change_results(planted, [](double h, const Point& p) {
                        if (p.settings.kind != DROPLESS_GEGLU_TANH) return h;
                        const double gelu = 0.5 * p.gate * (1 + std::erf(p.gate / std::sqrt(2.0)));
                        return gelu * p.up * p.weight;
                      });
                    }});
  faults.push_back({.name = "activation.relu_not_squared",
                    .provenance = "operator O17: the neighbouring mode (Nemotron)",
                    .symptom = "the square is left out",
                    .trigger = "relu2",
                    .clauses = {"ACTIVATION-1d"},
                    .plant = [](Planted& planted) {
                      change_results(planted, [](double h, const Point& p) {
                        return p.settings.kind == DROPLESS_RELU2 ? std::max(p.gate, 0.0) * p.weight
                                                                 : h;
                      });
                    }});
  faults.push_back({.name = "activation.square_without_relu",
                    .provenance = "operator O4: drop a zero case (Nemotron)",
                    .symptom = "negative inputs are squared",
                    .trigger = "relu2",
                    .clauses = {"ACTIVATION-1d"},
                    .plant = [](Planted& planted) {
                      change_results(planted, [](double h, const Point& p) {
                        return p.settings.kind == DROPLESS_RELU2 ? p.gate * p.gate * p.weight : h;
                      });
                    }});
  const auto clamped = [&](const char* name, const char* symptom, const char* trigger,
                           void (*plant)(Planted&)) {
    faults.push_back({.name = name,
                      .provenance = "operator O17: a setting that never arrives (flashinfer 2889; "
                                    "gpt-oss 7, 1.702, 1)",
                      .symptom = symptom,
                      .trigger = trigger,
                      .clauses = {"ACTIVATION-1b"},
                      .plant = plant});
  };
  clamped(
      "activation.clamp_missing", "neither gate nor up is limited", "values beyond the limit",
      [](Planted& planted) { change_activation(planted, [](Settings& s) { s.limit = 1e30; }); });
  clamped("activation.alpha_is_one", "the gate's slope is that of silu", "alpha other than 1",
          [](Planted& planted) { change_activation(planted, [](Settings& s) { s.alpha = 1; }); });
  clamped("activation.offset_missing", "1 is not added to up", "offset other than 0",
          [](Planted& planted) { change_activation(planted, [](Settings& s) { s.offset = 0; }); });
  clamped("activation.gate_limited_below", "the gate is limited on both sides",
          "a gate below -limit", [](Planted& planted) {
            change_results(planted, [](double h, const Point& p) {
              const Settings& s = p.settings;
              if (s.kind != DROPLESS_SWIGLU_CLAMPED || p.gate >= -s.limit) return h;
              const double up = std::clamp(p.up, -s.limit, s.limit);
              return -s.limit * sigmoid(-s.alpha * s.limit) * (up + s.offset) * p.weight;
            });
          });
  clamped("activation.up_limited_above_only", "up has no lower limit", "up below -limit",
          [](Planted& planted) {
            change_results(planted, [](double h, const Point& p) {
              const Settings& s = p.settings;
              if (s.kind != DROPLESS_SWIGLU_CLAMPED || p.up >= -s.limit) return h;
              const double gate = std::min(p.gate, s.limit);
              return gate * sigmoid(s.alpha * gate) * (p.up + s.offset) * p.weight;
            });
          });
}

void add_layouts_and_range(std::vector<Fault>& faults) {
  faults.push_back({.name = "activation.gate_and_up_swapped",
                    .provenance = "operator O3: swapped index spaces (vllm: w1/w3 order)",
                    .symptom = "the activation is applied to up",
                    .trigger = "gated kinds",
                    .clauses = {"ACTIVATION-2", "ACTIVATION-1a", "ACTIVATION-1b"},
                    .plant = [](Planted& planted) { swap_gate_and_up(planted); }});
  faults.push_back(
      {.name = "activation.layout_ignored",
       .provenance = "operator O17: a setting that never arrives (gpt-oss interleaves)",
       .symptom = "interleaved columns are taken as concatenated",
       .trigger = "the interleaved layout",
       .clauses = {"ACTIVATION-2", "ACTIVATION-5a"},
       .plant = [](Planted& planted) {
         change_activation(planted,
                           [](Settings& s) { s.gate_up_layout = DROPLESS_GATE_UP_CONCATENATED; });
       }});
  faults.push_back({.name = "activation.clamp_swallows_nan",
                    .provenance = "Transformer Engine 3550: a minimum that drops NaN",
                    .symptom = "a NaN becomes the limit",
                    .trigger = "swiglu_clamped and a NaN",
                    .clauses = {"ACTIVATION-2b"},
                    .plant = [](Planted& planted) {
                      change_results(planted, [](double h, const Point& p) {
                        const Settings& s = p.settings;
                        if (s.kind != DROPLESS_SWIGLU_CLAMPED || !std::isnan(p.gate)) return h;
                        return s.limit * sigmoid(s.alpha * s.limit) * (p.up + s.offset) * p.weight;
                      });
                    }});
  faults.push_back({.name = "activation.relu_swallows_nan",
                    .provenance = "Transformer Engine 3550: a maximum that drops NaN",
                    .symptom = "a NaN becomes 0",
                    .trigger = "relu2 and a NaN",
                    .clauses = {"ACTIVATION-2b"},
                    .plant = [](Planted& planted) {
                      change_results(planted, [](double h, const Point& p) {
                        return p.settings.kind == DROPLESS_RELU2 && std::isnan(p.gate) ? 0.0 : h;
                      });
                    }});
  faults.push_back({.name = "activation.exponential_overflows",
                    .provenance = "operator O18: naive formula g * e^g / (1 + e^g)",
                    .symptom = "a large gate gives NaN",
                    .trigger = "a gate above 88",
                    .clauses = {"ACTIVATION-3"},
                    .plant = [](Planted& planted) {
                      change_results(planted, [](double h, const Point& p) {
                        return p.settings.kind == DROPLESS_SWIGLU && p.gate > 88.8 ? std::nan("")
                                                                                   : h;
                      });
                    }});
  faults.push_back({.name = "activation.negative_gate_divides_infinities",
                    .provenance = "operator O18: naive formula, tanh as (e^2z - 1) / (e^2z + 1)",
                    .symptom = "a large gate gives NaN",
                    .trigger = "geglu and a gate above 8",
                    .clauses = {"ACTIVATION-3", "ACTIVATION-1c"},
                    .plant = [](Planted& planted) {
                      change_results(planted, [](double h, const Point& p) {
                        return p.settings.kind == DROPLESS_GEGLU_TANH && p.gate > 9.5 ? std::nan("")
                                                                                      : h;
                      });
                    }});
  faults.push_back(
      {.name = "activation.product_in_fp16",
       .provenance = "operator O15: a narrower format on the way (DeepSpeed 5156)",
       .symptom = "results above 65504 are infinite",
       .trigger = "large gate and up",
       .clauses = {"ACTIVATION-3", "ACTIVATION-1a"},
       .plant = [](Planted& planted) {
         change_results(planted, [](double h, const Point&) { return round_to(DROPLESS_FP16, h); });
       }});
}

void add_weights(std::vector<Fault>& faults) {
  faults.push_back({.name = "activation.early_weight_ignored",
                    .provenance = "operator O9: factor never applied (vllm 45037)",
                    .symptom = "the routing weight is not applied",
                    .trigger = "early weights",
                    .clauses = {"ACTIVATION-5a"},
                    .plant = [](Planted& planted) {
                      planted.around<&Table::activation_forward>([](const auto& next, auto& a) {
                        const dropless_status status = next(a);
                        a.row_weights = nullptr;
                        return status == DROPLESS_OK ? next(a) : status;
                      });
                    }});
  faults.push_back({.name = "activation.early_weight_twice",
                    .provenance = "operator O9: factor twice (vllm 24119)",
                    .symptom = "the routing weight is applied again",
                    .trigger = "early weights",
                    .clauses = {"ACTIVATION-5a"},
                    .plant = [](Planted& planted) {
                      change_results(planted,
                                     [](double h, const Point& p) { return h * p.weight; });
                    }});
  faults.push_back({.name = "activation.rounded_before_the_weight",
                    .provenance = "torchtitan 2679: a rounding between two steps",
                    .symptom = "h is rounded to bf16, then weighted and rounded again",
                    .trigger = "early weights and bf16 output",
                    .clauses = {"ACTIVATION-5a"},
                    .plant = [](Planted& planted) {
                      planted.around<&Table::activation_forward>([](const auto& next, auto& a) {
                        const dropless_status status = next(a);
                        if (status != DROPLESS_OK || a.row_weights == nullptr) return status;
                        dropless_activation_args plain = a;
                        plain.row_weights = nullptr;
                        const Copy h(a.h);
                        plain.h = h.tensor();
                        next(plain);
                        each_real(a, view(a.h).shape(1), [&](Index row, Index i) {
                          const double rounded = h.elements().load(row, i);
                          view(a.h).store(rounded * view(a.row_weights).load(row), row, i);
                        });
                        return status;
                      });
                    }});
  faults.push_back({.name = "activation.weight_of_the_next_row",
                    .provenance = "transformers 45473; vllm 53345",
                    .symptom = "rows are weighted with their neighbour's weight",
                    .trigger = "early weights",
                    .clauses = {"ACTIVATION-5a"},
                    .plant = [](Planted& planted) {
                      planted.around<&Table::activation_forward>([](const auto& next, auto& a) {
                        const dropless_status status = next(a);
                        if (status != DROPLESS_OK || a.row_weights == nullptr) return status;
                        const Copy weights(a.row_weights);
                        const std::vector<double> right = values_of(a.row_weights);
                        for (const Zone& zone : zones_of(a.offsets, a.counts, view(a.x).shape(0))) {
                          for (Index row = zone.first; row + 1 < zone.real_end; ++row) {
                            weights.elements().store(right[static_cast<std::size_t>(row) + 1], row);
                          }
                        }
                        a.row_weights = weights.tensor();
                        return next(a);
                      });
                    }});
}

void add_rows(std::vector<Fault>& faults) {
  faults.push_back({.name = "activation.padding_rows_computed",
                    .provenance = "Transformer Engine 3484; sglang 30895",
                    .symptom = "padding rows hold the activation of what they held",
                    .trigger = "padding rows",
                    .clauses = {"ACTIVATION-6"},
                    .plant = [](Planted& planted) {
                      planted.before<&Table::activation_forward>(
                          [](auto& a) { a.counts = nullptr; });
                    }});
  faults.push_back({.name = "activation.tail_rows_computed",
                    .provenance = "torchtitan 1237: the whole buffer is processed",
                    .symptom = "rows beyond the end are written",
                    .trigger = "a buffer longer than the rows in use",
                    .clauses = {"ACTIVATION-6"},
                    .plant = [](Planted& planted) {
                      planted.around<&Table::activation_forward>([](const auto& next, auto& a) {
                        const dropless_status status = next(a);
                        if (status != DROPLESS_OK || a.offsets == nullptr) return status;
                        const Copy h(a.h);
                        dropless_activation_args all = a;
                        all.offsets = all.counts = nullptr;
                        all.h = h.tensor();
                        next(all);
                        const Index end = integers_of(a.offsets).back();
                        each_integer(a.h, [&](Index bits, Index i) {
                          return i / view(a.h).shape(1) >= end ? h.elements().load_integer_flat(i)
                                                               : bits;
                        });
                        return status;
                      });
                    }});
  faults.push_back({.name = "activation.padding_rows_unwritten",
                    .provenance = "Transformer Engine 1945; Primus-Turbo 401",
                    .symptom = "padding rows hold what the buffer held",
                    .trigger = "padding rows",
                    .clauses = {"ACTIVATION-6"},
                    .plant = [](Planted& planted) {
                      planted.around<&Table::activation_forward>([](const auto& next, auto& a) {
                        const Copy before(a.h);
                        const dropless_status status = next(a);
                        if (status == DROPLESS_OK) restore_padding(a, before, a.h);
                        return status;
                      });
                    }});
  faults.push_back({.name = "activation.results_depend_on_threads",
                    .provenance = "operator O15: unordered work (vllm 53440)",
                    .symptom = "another number of threads gives other low bits",
                    .trigger = "another number of threads",
                    .clauses = {"GENERAL-5"},
                    .plant = [](Planted& planted) {
                      planted.around<&Table::activation_forward>([](const auto& next, auto& a) {
                        const dropless_status status = next(a);
                        if (status != DROPLESS_OK || next.call()->threads < 2) return status;
                        each_real(a, view(a.h).shape(1), [&](Index row, Index i) {
                          const Index bits = view(a.h).load_integer(row, i);
                          if (bits != 0) view(a.h).store_integer(bits ^ 1, row, i);
                        });
                        return status;
                      });
                    }});
  faults.push_back({.name = "activation.strides_ignored",
                    .provenance = "pytorch 159620: a chunk of a fused matrix",
                    .symptom = "columns of other rows are read",
                    .trigger = "rows with gaps",
                    .clauses = {"GENERAL-6"},
                    .plant = [](Planted& planted) {
                      planted.around<&Table::activation_forward>([](const auto& next, auto& a) {
                        if (!is_readable(a.x)) return next(a);
                        const dropless_tensor dense = without_strides(*a.x);
                        a.x = &dense;
                        return next(a);
                      });
                    }});
  faults.push_back({.name = "activation.refusals_swallowed",
                    .provenance = "operator O19: a missing check (DeepGEMM 268)",
                    .symptom = "shapes that do not fit are accepted",
                    .trigger = "an illegal request",
                    .clauses = {"GENERAL-3"},
                    .plant = [](Planted& planted) {
                      swallow_refusals<&Table::activation_forward>(planted);
                      swallow_refusals<&Table::activation_backward>(planted);
                    }});
  faults.push_back({.name = "activation.no_rows_refused",
                    .provenance = "pytorch 192497",
                    .symptom = "a buffer without rows is rejected",
                    .trigger = "no rows",
                    .clauses = {"GENERAL-4"},
                    .plant = [](Planted& planted) {
                      refuse_empty<&Table::activation_forward>(planted,
                                                               [](auto& a) { return a.x; });
                    }});
  faults.push_back({.name = "activation.index_in_32_bits",
                    .provenance = "flashinfer 2642; vllm 53390",
                    .symptom = "wrong rows, then an illegal access",
                    .trigger = "row * columns beyond 2^31",
                    .clauses = {},
                    .visibility = Visibility::gpu,
                    .reason = "needs more than 2^31 elements"});
}

}  // namespace

void add_activation(std::vector<Fault>& faults) {
  add_formulas(faults);
  add_layouts_and_range(faults);
  add_weights(faults);
  add_activation_backward(faults);
  add_rows(faults);
}

}  // namespace dropless::faults
