// SPDX-License-Identifier: Apache-2.0
// Faults of the activation's gradients, and the changes that activation faults are made of.
#include <algorithm>
#include <cmath>

#include "tests/faults/activations.h"

namespace dropless::faults {
namespace {

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

template <auto entry>
void change_one(Planted& planted, const std::function<void(Settings&)>& change) {
  planted.around<entry>([change](const auto& next, auto& a) {
    const bool complete = a.settings != nullptr && a.settings->struct_size >= sizeof(Settings);
    if (!complete) return next(a);
    Settings settings = *a.settings;
    change(settings);
    a.settings = &settings;
    return next(a);
  });
}

// d_x at the gate's or up's column = change(d, point, dh); NaN of `dh` included.
using GradientChange = std::function<double(double d, const Point& point, double dh)>;
void change_gradient(Planted& planted, bool of_gate, GradientChange change) {
  planted.after<&Table::activation_backward>([of_gate, change](auto& a) {
    const Index width = view(a.dh).shape(1);
    each_real(a, width, [&](Index row, Index i) {
      const auto columns = reference::gate_up_columns(*a.settings, width, i);
      const Index column = of_gate ? columns.gate : columns.up;
      if (column < 0) return;
      const double right = view(a.d_x).load(row, column);
      view(a.d_x).store(change(right, point_of(a, width, row, i), view(a.dh).load(row, i)), row,
                        column);
    });
  });
}

// d_w[row] = dot of dh with h(point), by another h.
using WeightedTerm = std::function<double(const Point& point, double h)>;
void change_weight_gradient(Planted& planted, WeightedTerm term) {
  planted.after<&Table::activation_backward>([term](auto& a) {
    if (a.row_weights == nullptr || a.d_row_weights == nullptr) return;
    const Index width = view(a.dh).shape(1);
    for (const Zone& zone : zones_of(a.offsets, a.counts, view(a.x).shape(0))) {
      for (Index row = zone.first; row < zone.real_end; ++row) {
        double sum = 0;
        for (Index i = 0; i < width; ++i) {
          const Point p = point_of(a, width, row, i);
          sum += view(a.dh).load(row, i) * term(p, reference::activate(p.settings, p.gate, p.up).h);
        }
        view(a.d_row_weights).store(sum, row);
      }
    }
  });
}

void add_slopes(std::vector<Fault>& faults) {
  faults.push_back({.name = "activation.slope_without_its_second_term",
                    .provenance = "operator O18: an incomplete derivative",
                    .symptom = "the derivative of silu is taken as sigmoid",
                    .trigger = "swiglu",
                    .clauses = {"ACTIVATION-4a", "ACTIVATION-5b"},
                    .plant = [](Planted& planted) {
                      change_gradient(planted, true, [](double d, const Point& p, double dh) {
                        if (p.settings.kind != DROPLESS_SWIGLU) return d;
                        return dh * p.weight * p.up * sigmoid(p.gate);
                      });
                    }});
  faults.push_back(
      {.name = "activation.gradient_passes_the_clamp",
       .provenance = "operator O16: mask only in the forward pass (transformers 48687)",
       .symptom = "inputs that the clamp holds have a gradient",
       .trigger = "swiglu_clamped beyond the limit",
       .clauses = {"ACTIVATION-4a", "ACTIVATION-5b"},
       .plant = [](Planted& planted) {
         change_gradient(planted, false, [](double d, const Point& p, double dh) {
           const Settings& s = p.settings;
           if (s.kind != DROPLESS_SWIGLU_CLAMPED) return d;
           const double gate = std::min(p.gate, s.limit);
           return dh * p.weight * gate * sigmoid(s.alpha * gate);
         });
       }});
  faults.push_back(
      {.name = "activation.slope_at_the_limit_twice",
       .provenance = "operator O14: contribute twice (both branches take the equality)",
       .symptom = "exactly at the limit the gradient counts twice",
       .trigger = "an input exactly at the limit",
       .clauses = {"ACTIVATION-4b"},
       .plant = [](Planted& planted) {
         change_gradient(planted, false, [](double d, const Point& p, double dh) {
           const Settings& s = p.settings;
           const bool at_limit = s.kind == DROPLESS_SWIGLU_CLAMPED && std::fabs(p.up) == s.limit;
           const double gate = std::min(p.gate, s.limit);
           return at_limit ? 2 * dh * p.weight * gate * sigmoid(s.alpha * gate) : d;
         });
       }});
  faults.push_back({.name = "activation.slope_of_negative_inputs",
                    .provenance = "operator O4: drop a zero case (Nemotron)",
                    .symptom = "negative inputs of relu2 have a gradient",
                    .trigger = "relu2",
                    .clauses = {"ACTIVATION-4a", "ACTIVATION-5b"},
                    .plant = [](Planted& planted) {
                      change_gradient(planted, true, [](double d, const Point& p, double dh) {
                        return p.settings.kind == DROPLESS_RELU2 ? 2 * p.gate * dh * p.weight : d;
                      });
                    }});
  faults.push_back({.name = "activation.offset_missing_in_the_slope",
                    .provenance = "operator O16: no backward twin (gpt-oss)",
                    .symptom = "the gate's gradient lacks the offset of up",
                    .trigger = "swiglu_clamped with an offset",
                    .clauses = {"ACTIVATION-4a"},
                    .plant = [](Planted& planted) {
                      planted.around<&Table::activation_backward>([](const auto& next, auto& a) {
                        const dropless_status status = next(a);
                        if (status != DROPLESS_OK) return status;
                        Settings settings = *a.settings;
                        settings.offset = 0;
                        a.settings = &settings;
                        return next(a);
                      });
                    }});
  faults.push_back({.name = "activation.gradients_in_bf16",
                    .provenance = "operator O15: a rounding between two steps (torchtitan 2679)",
                    .symptom = "fp32 gradients are rounded to bf16",
                    .trigger = "fp32",
                    .clauses = {"ACTIVATION-4a"},
                    .plant = [](Planted& planted) {
                      change_gradient(planted, false,
                                      [](double d, const Point&, double) { return bf16(d); });
                    }});
  faults.push_back({.name = "activation.gradients_swapped",
                    .provenance = "operator O3: swapped index spaces (vllm: w1/w3 order)",
                    .symptom = "gate's gradient stands in up's column",
                    .trigger = "gated kinds",
                    .clauses = {"ACTIVATION-4a", "ACTIVATION-5b"},
                    .plant = [](Planted& planted) {
                      planted.after<&Table::activation_backward>([](auto& a) {
                        const Index width = view(a.dh).shape(1);
                        each_real(a, width, [&](Index row, Index i) {
                          const auto c = reference::gate_up_columns(*a.settings, width, i);
                          if (c.up < 0) return;
                          const double gate = view(a.d_x).load(row, c.gate);
                          view(a.d_x).store(view(a.d_x).load(row, c.up), row, c.gate);
                          view(a.d_x).store(gate, row, c.up);
                        });
                      });
                    }});
}

void add_weight_gradients(std::vector<Fault>& faults) {
  faults.push_back({.name = "activation.weight_gradient_of_rounded_values",
                    .provenance = "operator O10: value of the wrong twin (mcore-bridge 125)",
                    .symptom = "d_w is made from h rounded to bf16",
                    .trigger = "early weights",
                    .clauses = {"ACTIVATION-5b"},
                    .plant = [](Planted& planted) {
                      change_weight_gradient(planted,
                                             [](const Point&, double h) { return bf16(h); });
                    }});
  faults.push_back({.name = "activation.weight_gradient_weighted",
                    .provenance = "operator O9: factor twice (vllm 24119)",
                    .symptom = "d_w contains the weight",
                    .trigger = "early weights",
                    .clauses = {"ACTIVATION-5b"},
                    .plant = [](Planted& planted) {
                      change_weight_gradient(planted,
                                             [](const Point& p, double h) { return p.weight * h; });
                    }});
  faults.push_back({.name = "activation.input_gradient_not_weighted",
                    .provenance = "operator O16: no backward twin (vllm 45037)",
                    .symptom = "gradients of gate and up lack the weight",
                    .trigger = "early weights",
                    .clauses = {"ACTIVATION-5b"},
                    .plant = [](Planted& planted) {
                      planted.around<&Table::activation_backward>([](const auto& next, auto& a) {
                        const dropless_status status = next(a);
                        if (status != DROPLESS_OK || a.row_weights == nullptr) return status;
                        dropless_activation_backward_args plain = a;
                        plain.row_weights = plain.d_row_weights = nullptr;
                        return next(plain);
                      });
                    }});
  faults.push_back({.name = "activation.padding_gradients_multiplied_by_zero",
                    .provenance = "transformers 45621: 0 * NaN in the backward pass",
                    .symptom = "NaN from the second step on",
                    .trigger = "padding rows that hold NaN",
                    .clauses = {"ACTIVATION-6"},
                    .plant = [](Planted& planted) {
                      planted.after<&Table::activation_backward>([](auto& a) {
                        for (const Zone& zone : zones_of(a.offsets, a.counts, view(a.x).shape(0))) {
                          for (Index row = zone.real_end; row < zone.end; ++row) {
                            for (Index c = 0; c < view(a.d_x).shape(1); ++c) {
                              view(a.d_x).store(0 * view(a.x).load(row, c), row, c);
                            }
                          }
                        }
                      });
                    }});
  faults.push_back(
      {.name = "activation.padding_weight_gradients_unwritten",
       .provenance = "kernels-community 1056: an uninitialised tail",
       .symptom = "d_w of padding rows holds what the buffer held",
       .trigger = "early weights and padding rows",
       .clauses = {"ACTIVATION-6"},
       .plant = [](Planted& planted) {
         planted.around<&Table::activation_backward>([](const auto& next, auto& a) {
           const Copy before(a.d_row_weights);
           const dropless_status status = next(a);
           if (status != DROPLESS_OK || a.d_row_weights == nullptr) return status;
           for (const Zone& zone : zones_of(a.offsets, a.counts, view(a.x).shape(0))) {
             for (Index row = zone.real_end; row < zone.end; ++row) {
               view(a.d_row_weights).store_integer(before.elements().load_integer(row), row);
             }
           }
           return status;
         });
       }});
}

}  // namespace

void change_activation(Planted& planted, std::function<void(Settings&)> change) {
  change_one<&Table::activation_forward>(planted, change);
  change_one<&Table::activation_backward>(planted, change);
}

void change_results(Planted& planted, std::function<double(double, const Point&)> change) {
  planted.after<&Table::activation_forward>([change](auto& a) {
    const Index width = view(a.h).shape(1);
    each_real(a, width, [&](Index row, Index i) {
      const double right = view(a.h).load(row, i);
      view(a.h).store(change(right, point_of(a, width, row, i)), row, i);
    });
  });
}

void swap_gate_and_up(Planted& planted) {
  planted.around<&Table::activation_forward>([](const auto& next, auto& a) {
    const dropless_status status = next(a);
    if (status != DROPLESS_OK || a.settings->kind == DROPLESS_RELU2) return status;
    const Copy swapped(a.x);
    const Index width = view(a.h).shape(1);
    for (Index row = 0; row < view(a.x).shape(0); ++row) {
      for (Index i = 0; i < width; ++i) {
        const auto c = reference::gate_up_columns(*a.settings, width, i);
        swapped.elements().store_integer(view(a.x).load_integer(row, c.up), row, c.gate);
        swapped.elements().store_integer(view(a.x).load_integer(row, c.gate), row, c.up);
      }
    }
    a.x = swapped.tensor();
    return next(a);
  });
}

void add_activation_backward(std::vector<Fault>& faults) {
  add_slopes(faults);
  add_weight_gradients(faults);
}

}  // namespace dropless::faults
