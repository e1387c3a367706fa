// SPDX-License-Identifier: Apache-2.0
// The calls of the layer cases.
#include <algorithm>

#include "conformance/cases/layer/setup.h"
#include "conformance/judge/memory.h"

namespace dropless::conformance {

Buffer& LayerCall::parameter(const char* name, dropless_dtype dtype, Shape shape,
                             const std::vector<double>& values) {
  Buffer& buffer = run_.buffers().input(name, dtype, std::move(shape), values);
  memory_[name] = &buffer;
  return buffer;
}

LayerCall::LayerCall(CaseRun& run, const LayerData& data)
    : settings(data.settings), run_(run), data_(data) {
  const Index e = data.experts(), l = data.held_experts();
  const Index h = data.hidden, i = data.intermediate;
  const Index s = data.shared_intermediate, rows = data.gate_up_rows(i);
  const dropless_dtype d = data.dtype;
  parameters_ = make_args<dropless_layer_parameters>();
  const auto given = [&](const char* name, dropless_dtype dtype, Shape shape,
                         const std::vector<double>& values) -> const dropless_tensor* {
    return values.empty() ? nullptr : parameter(name, dtype, std::move(shape), values).tensor();
  };
  parameters_.router_weight = given("router_weight", data.router_dtype, {e, h}, data.router_weight);
  parameters_.router_bias = given("router_bias", DROPLESS_FP32, {e}, data.router_bias);
  parameters_.expert_bias = given("expert_bias", DROPLESS_FP32, {e}, data.expert_bias);
  parameters_.expert_scale = given("expert_scale", DROPLESS_FP32, {e}, data.expert_scale);
  parameters_.gate_up = given("gate_up", d, {l, rows, h}, data.gate_up);
  parameters_.gate_up_bias = given("gate_up_bias", d, {l, rows}, data.gate_up_bias);
  parameters_.down = given("down", d, {l, h, i}, data.down);
  parameters_.down_bias = given("down_bias", d, {l, h}, data.down_bias);
  parameters_.shared_gate_up =
      given("shared_gate_up", d, {data.gate_up_rows(s), h}, data.shared_gate_up);
  parameters_.shared_down = given("shared_down", d, {h, s}, data.shared_down);
  parameters_.shared_gate = given("shared_gate", d, {1, h}, data.shared_gate);

  Buffers& buffers = run.buffers();
  const Index t = data.tokens, k = data.route.top_k;
  args_ = make_args<dropless_layer_args>();
  args_.settings = &settings;
  args_.parameters = &parameters_;
  args_.exchange = data.exchange;
  x = &buffers.input("x", d, {t, h}, data.x);
  args_.x = x->tensor();
  if (!data.mask.empty()) {
    args_.token_mask =
        buffers.input("token_mask", DROPLESS_U8, {t}, std::span<const std::uint8_t>(data.mask))
            .tensor();
  }
  if (!data.given_ids.empty() || data.ids_are_given) {
    args_.given_ids = buffers.input("given_ids", DROPLESS_I32, {t, k}, data.given_ids).tensor();
  }
  y = &buffers.output("y", d, {t, h});
  ids = &buffers.output("ids", DROPLESS_I32, {t, k}, {.poison = Poison::plausible});
  counts = &buffers.output("tokens_per_expert", DROPLESS_I64, {e});
  args_.y = y->tensor(), args_.ids = ids->tensor(), args_.tokens_per_expert = counts->tensor();
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
  const Index e = data_.experts(), l = data_.held_experts();
  const Index h = data_.hidden, i = data_.intermediate;
  const Index s = data_.shared_intermediate, rows = data_.gate_up_rows(i);
  Buffers& buffers = run_.buffers();
  if (gradients.empty()) {
    d_x = &buffers.output("d_x", data_.dtype, {data_.tokens, h});
    const auto add = [&](const char* name, const dropless_tensor* of, Shape shape, Index per) {
      if (of == nullptr) return;
      gradients.push_back({name, &buffers.output(name, DROPLESS_FP32, std::move(shape)), per});
    };
    add("d_router_weight", parameters_.router_weight, {e, h}, 0);
    add("d_router_bias", parameters_.router_bias, {e}, 0);
    add("d_expert_scale", parameters_.expert_scale, {e}, 1);
    add("d_gate_up", parameters_.gate_up, {l, rows, h}, rows * h);
    add("d_gate_up_bias", parameters_.gate_up_bias, {l, rows}, rows);
    add("d_down", parameters_.down, {l, h, i}, h * i);
    add("d_down_bias", parameters_.down_bias, {l, h}, h);
    add("d_shared_gate_up", parameters_.shared_gate_up, {data_.gate_up_rows(s), h}, 0);
    add("d_shared_down", parameters_.shared_down, {h, s}, 0);
    add("d_shared_gate", parameters_.shared_gate, {1, h}, 0);
  }
  auto wanted = make_args<dropless_layer_parameters>();
  const auto find = [&](std::string_view name) -> const dropless_tensor* {
    for (const Gradient& g : gradients) {
      if (g.name == name) return g.buffer->tensor();
    }
    return nullptr;
  };
  wanted.router_weight = find("d_router_weight"), wanted.router_bias = find("d_router_bias");
  wanted.expert_scale = find("d_expert_scale");
  wanted.gate_up = find("d_gate_up"), wanted.gate_up_bias = find("d_gate_up_bias");
  wanted.down = find("d_down"), wanted.down_bias = find("d_down_bias");
  wanted.shared_gate_up = find("d_shared_gate_up"), wanted.shared_down = find("d_shared_down");
  wanted.shared_gate = find("d_shared_gate");

  auto args = make_args<dropless_layer_backward_args>();
  auto forward_args = args_;
  if (!use_saved) forward_args.saved = nullptr;
  args.forward = &forward_args;
  if (d_y_ == nullptr || !std::ranges::equal(d_y, d_y_values_)) {
    d_y_ = &buffers.input("d_y", data_.dtype, {data_.tokens, h}, d_y);
    d_y_values_.assign(d_y.begin(), d_y.end());
  }
  args.d_y = d_y_->tensor();
  args.d_x = d_x->tensor();
  args.gradients = &wanted;
  if (!d_logits.empty()) {
    args.d_logits = buffers.input("d_logits", DROPLESS_FP32, {data_.tokens, e}, d_logits).tensor();
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
