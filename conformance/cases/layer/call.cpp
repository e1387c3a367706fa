// SPDX-License-Identifier: Apache-2.0
// The calls of the layer cases.
#include <algorithm>

#include "conformance/cases/layer/setup.h"
#include "conformance/judge/memory.h"

namespace dropless::conformance {

Layout LayerCall::layout(const char* name, dropless_dtype dtype, Shape& shape) const {
  if (!layouts_) return {};
  const Layout layout = layouts_(name, dtype, shape);
  if (shape.size() == 1 && layout.row_gap > 0) shape.push_back(1);
  return layout;
}

template <class Value>
Buffer& LayerCall::input(const char* name, dropless_dtype dtype, Shape shape,
                         const std::vector<Value>& values) {
  const Layout wanted = layout(name, dtype, shape);
  return run_.buffers().input(name, dtype, std::move(shape), std::span<const Value>(values),
                              wanted);
}

Buffer& LayerCall::output(const char* name, dropless_dtype dtype, Shape shape, Poison poison) {
  Layout wanted = layout(name, dtype, shape);
  wanted.poison = poison;
  return run_.buffers().output(name, dtype, std::move(shape), wanted);
}

const dropless_tensor* LayerCall::tensor_of(const Buffer& buffer, std::size_t rank) {
  if (buffer.shape().size() == rank) return buffer.tensor();
  dropless_tensor column = *buffer.tensor();
  column.rank = static_cast<std::int32_t>(rank);
  column.shape[rank] = column.strides[rank] = 0;
  return &columns_.emplace_back(column);
}

const dropless_tensor* LayerCall::parameter(const char* name, dropless_dtype dtype, Shape shape,
                                            const std::vector<double>& values) {
  if (values.empty()) return nullptr;
  const std::size_t rank = shape.size();
  Buffer& buffer = input(name, dtype, std::move(shape), values);
  memory_[name] = &buffer;
  return tensor_of(buffer, rank);
}

LayerCall::LayerCall(CaseRun& run, const LayerData& data, LayoutOf layouts)
    : settings(data.settings), run_(run), data_(data), layouts_(std::move(layouts)) {
  const Index e = data.experts(), l = data.held_experts();
  const Index h = data.hidden, i = data.intermediate;
  const Index s = data.shared_intermediate, rows = data.gate_up_rows(i);
  const dropless_dtype d = data.dtype;
  auto& p = parameters_ = make_args<dropless_layer_parameters>();
  p.router_weight = parameter("router_weight", data.router_dtype, {e, h}, data.router_weight);
  p.router_bias = parameter("router_bias", DROPLESS_FP32, {e}, data.router_bias);
  p.expert_bias = parameter("expert_bias", DROPLESS_FP32, {e}, data.expert_bias);
  p.expert_scale = parameter("expert_scale", DROPLESS_FP32, {e}, data.expert_scale);
  p.gate_up = parameter("gate_up", d, {l, rows, h}, data.gate_up);
  p.gate_up_bias = parameter("gate_up_bias", d, {l, rows}, data.gate_up_bias);
  p.down = parameter("down", d, {l, h, i}, data.down);
  p.down_bias = parameter("down_bias", d, {l, h}, data.down_bias);
  p.shared_gate_up = parameter("shared_gate_up", d, {data.gate_up_rows(s), h}, data.shared_gate_up);
  p.shared_down = parameter("shared_down", d, {h, s}, data.shared_down);
  p.shared_gate = parameter("shared_gate", d, {1, h}, data.shared_gate);

  const Index t = data.tokens, k = data.route.top_k;
  args_ = make_args<dropless_layer_args>();
  args_.settings = &settings;
  args_.parameters = &parameters_;
  args_.exchange = data.exchange;
  x = &input("x", d, {t, h}, data.x);
  args_.x = x->tensor();
  if (!data.mask.empty()) {
    args_.token_mask = tensor_of(input("token_mask", DROPLESS_U8, {t}, data.mask), 1);
  }
  if (!data.given_ids.empty() || data.ids_are_given) {
    args_.given_ids = input("given_ids", DROPLESS_I32, {t, k}, data.given_ids).tensor();
  }
  y = &output("y", d, {t, h}, Poison::all_ones);
  ids = &output("ids", DROPLESS_I32, {t, k}, Poison::plausible);
  counts = &output("tokens_per_expert", DROPLESS_I64, {e}, Poison::all_ones);
  args_.y = y->tensor(), args_.ids = ids->tensor();
  args_.tokens_per_expert = tensor_of(*counts, 1);
}

dropless_call LayerCall::call_on_queue(const dropless_implementation& implementation) {
  auto call = make_args<dropless_call>();
  if (implementation.memory_space != DROPLESS_HOST) {
    call.stream = conformance::memory_of(implementation.memory_space)->stream();
  }
  return call;
}

void LayerCall::hand_over(std::string_view operation, dropless_status status,
                          const dropless_call& call) {
  if (status == DROPLESS_OK) return;
  run_.judge().holds("GENERAL-7", std::string(operation) + " behind other work", false, "OK",
                     "status " + std::to_string(status) + ": " + call.message);
  throw CaseEnded{};
}

void LayerCall::forward(bool keep) {
  args_.keep = keep ? 1 : 0;
  perform("layer_forward", run_.implementation().layer_forward, args_);
  holds_saved_ = keep;
}

void LayerCall::backward(std::span<const double> d_y, bool use_saved) {
  using P = dropless_layer_parameters;
  const Index e = data_.experts(), l = data_.held_experts();
  const Index h = data_.hidden, i = data_.intermediate;
  const Index s = data_.shared_intermediate, rows = data_.gate_up_rows(i);
  if (gradients.empty()) {
    d_x = &output("d_x", data_.dtype, {data_.tokens, h}, Poison::all_ones);
    wanted_ = make_args<P>();
    const auto add = [&](const char* name, const dropless_tensor* P::*member, Shape shape,
                         Index per_expert) {
      if (parameters_.*member == nullptr) return;
      const std::size_t rank = shape.size();
      Buffer& buffer = output(name, DROPLESS_FP32, std::move(shape), Poison::all_ones);
      gradients.push_back({name, &buffer, per_expert});
      wanted_.*member = tensor_of(buffer, rank);
    };
    add("d_router_weight", &P::router_weight, {e, h}, 0);
    add("d_router_bias", &P::router_bias, {e}, 0);
    add("d_expert_scale", &P::expert_scale, {e}, 1);
    add("d_gate_up", &P::gate_up, {l, rows, h}, rows * h);
    add("d_gate_up_bias", &P::gate_up_bias, {l, rows}, rows);
    add("d_down", &P::down, {l, h, i}, h * i);
    add("d_down_bias", &P::down_bias, {l, h}, h);
    add("d_shared_gate_up", &P::shared_gate_up, {data_.gate_up_rows(s), h}, 0);
    add("d_shared_down", &P::shared_down, {h, s}, 0);
    add("d_shared_gate", &P::shared_gate, {1, h}, 0);
  }

  auto args = make_args<dropless_layer_backward_args>();
  auto forward_args = args_;
  if (!use_saved) forward_args.saved = nullptr;
  args.forward = &forward_args;
  if (d_y_ == nullptr || !std::ranges::equal(d_y, d_y_values_)) {
    d_y_values_.assign(d_y.begin(), d_y.end());
    d_y_ = &input("d_y", data_.dtype, {data_.tokens, h}, d_y_values_);
  }
  args.d_y = d_y_->tensor();
  args.d_x = d_x->tensor();
  args.gradients = &wanted_;
  if (!d_logits.empty()) {
    args.d_logits = input("d_logits", DROPLESS_FP32, {data_.tokens, e}, d_logits).tensor();
  }
  perform("layer_backward", run_.implementation().layer_backward, args);
  if (use_saved) {
    args_.saved = nullptr;
    holds_saved_ = false;
  }
}

void LayerCall::refused_forward(std::string_view why, std::string_view clause,
                                const std::function<void(Forward&, Parameters&)>& to) {
  Parameters parameters = parameters_;
  Forward args = args_;
  args.parameters = &parameters;
  to(args, parameters);
  run_.refused(clause, why, "layer_forward", run_.implementation().layer_forward, args);
}

void LayerCall::release() {
  if (!holds_saved_) return;
  run_.perform("layer_release", run_.implementation().layer_release, args_);
  args_.saved = nullptr;
  holds_saved_ = false;
}

}  // namespace dropless::conformance
