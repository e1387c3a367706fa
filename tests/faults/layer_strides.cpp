// SPDX-License-Identifier: Apache-2.0
// Layers that take a part of a larger tensor for a tensor of its own.
#include <initializer_list>
#include <vector>

#include "tests/faults/layers.h"
#include "tests/faults/refusals.h"

namespace dropless::faults {
namespace {

using Parameters = dropless_layer_parameters;
using Member = const dropless_tensor* Parameters::*;

constexpr const char* padded = "operator O6: the valid stride for the padded one";

// Tensors as if they were dense, as long as this lives.
class Dense {
 public:
  Dense() { tensors_.reserve(8); }
  Dense(const Dense&) = delete;
  Dense& operator=(const Dense&) = delete;

  const dropless_tensor* of(const dropless_tensor* tensor) {
    if (!is_readable(tensor)) return tensor;
    return &tensors_.emplace_back(without_strides(*tensor));
  }
  void change(Parameters& parameters, std::initializer_list<Member> members) {
    for (const Member member : members) parameters.*member = of(parameters.*member);
  }

 private:
  std::vector<dropless_tensor> tensors_;  // never more than were reserved
};

// In both passes.
template <class Members>
void parameters_as_dense(Planted& planted, Members members) {
  planted.around<&Table::layer_forward>([members](const auto& next, Forward& a) {
    LayerParts parts;
    if (!parts.take(a)) return next(a);
    Dense dense;
    members(dense, parts.parameters);
    parts.put_into(a);
    return next(a);
  });
  planted.around<&Table::layer_backward>([members](const auto& next, Backward& a) {
    LayerParts parts;
    if (a.forward == nullptr || a.forward->struct_size < sizeof(Forward) ||
        !parts.take(*a.forward)) {
      return next(a);
    }
    Dense dense;
    members(dense, parts.parameters);
    Forward forward = *a.forward;
    parts.put_into(forward);
    a.forward = &forward;
    return next(a);
  });
}

}  // namespace

void add_layer_strides(std::vector<Fault>& faults) {
  const auto add = adder(faults);
  add("layer.strides_ignored", padded, "tokens are read from other places",
      "an input with gaps between its rows", {"GENERAL-6"}, [](Planted& planted) {
        planted.around<&Table::layer_forward>([](const auto& next, Forward& a) {
          Dense dense;
          a.x = dense.of(a.x);
          return next(a);
        });
      });
  add("layer.weight_strides_ignored", "flashinfer 3103: the layout is not checked",
      "weights of other rows and experts are read", "weights with gaps between their rows",
      {"GENERAL-6"}, [](Planted& planted) {
        parameters_as_dense(planted, [](Dense& dense, Parameters& p) {
          dense.change(p, {&Parameters::gate_up, &Parameters::down});
        });
      });
  add("layer.shared_weight_strides_ignored", "flashinfer 3103: the layout is not checked",
      "the shared expert reads weights of other rows", "a shared expert as a part of a larger one",
      {"GENERAL-6"}, [](Planted& planted) {
        parameters_as_dense(planted, [](Dense& dense, Parameters& p) {
          dense.change(p, {&Parameters::shared_gate_up, &Parameters::shared_down});
        });
      });
  add("layer.bias_strides_ignored", "vllm 53345: a stride that is taken for 1",
      "biases of other experts are read", "a bias that is a column of a matrix", {"GENERAL-6"},
      [](Planted& planted) {
        parameters_as_dense(planted, [](Dense& dense, Parameters& p) {
          dense.change(
              p, {&Parameters::router_bias, &Parameters::expert_bias, &Parameters::expert_scale});
        });
      });
  add("layer.gradient_taken_as_contiguous", "pytorch 159620: a chunk of a fused matrix",
      "gradients of other tokens are read", "an output gradient with gaps between its rows",
      {"GENERAL-6"}, [](Planted& planted) {
        planted.around<&Table::layer_backward>([](const auto& next, Backward& a) {
          Dense dense;
          a.d_y = dense.of(a.d_y);
          return next(a);
        });
      });
  add("layer.output_strides_ignored", padded, "rows of the output are written without gaps",
      "an output with gaps between its rows", {"GENERAL-6", "GENERAL-0"}, [](Planted& planted) {
        planted.around<&Table::layer_forward>([](const auto& next, Forward& a) {
          Dense dense;
          a.y = dense.of(a.y);
          return next(a);
        });
      });
  add("layer.input_gradient_strides_ignored", padded,
      "rows of the input's gradient are written without gaps",
      "an input gradient with gaps between its rows", {"GENERAL-6", "GENERAL-0"},
      [](Planted& planted) {
        planted.around<&Table::layer_backward>([](const auto& next, Backward& a) {
          Dense dense;
          a.d_x = dense.of(a.d_x);
          return next(a);
        });
      });
  add("layer.weight_gradient_strides_ignored", "flashinfer 3103: the layout is not checked",
      "weight gradients are written without gaps", "weight gradients with gaps between their rows",
      {"GENERAL-6", "GENERAL-0"}, [](Planted& planted) {
        planted.around<&Table::layer_backward>([](const auto& next, Backward& a) {
          if (a.gradients == nullptr || a.gradients->struct_size < sizeof(Parameters)) {
            return next(a);
          }
          Parameters gradients = *a.gradients;
          Dense dense;
          dense.change(gradients, {&Parameters::gate_up, &Parameters::down});
          a.gradients = &gradients;
          return next(a);
        });
      });
}

}  // namespace dropless::faults
