// SPDX-License-Identifier: Apache-2.0
// The MoE layer, backward: every stage of the forward pass in reverse, from its own tensors.
// LAYER-1 and 2. Gradients of x stay in fp32 until they are added up.
#include "optimized/cuda/layer_rows.h"
#include "optimized/cuda/layer_state.h"
#include "optimized/cuda/operations.h"

namespace dropless::cuda {
namespace {

// Gradients of one set of experts; null where they are not wanted. Shared ones are stacks of one.
struct ExpertGradients {
  const dropless_tensor *gate_up, *gate_up_bias, *down, *down_bias;
};

class LayerBackward {
 public:
  LayerBackward(Call& call, const LayerProblem& problem, const LayerTrace& trace,
                const dropless_layer_parameters& gradients, const dropless_tensor& d_y)
      : call_(call),
        p_(problem),
        trace_(trace),
        g_(gradients),
        d_y_(d_y),
        pairs_(p_.tokens * p_.top_k) {}

  void run(const dropless_tensor* d_logits, const dropless_tensor& d_x) {
    d_weights_ = made(DROPLESS_FP32, {p_.tokens, p_.top_k});
    const dropless_tensor routed = routed_experts();
    const dropless_tensor router = route(d_logits);
    if (!p_.has_shared()) {
      add_parts(call_, {{view(routed)}, {view(router)}}, view(d_x));
    } else {
      const dropless_tensor shared = shared_expert();
      if (p_.parameters.shared_gate == nullptr) {
        add_parts(call_, {{view(routed)}, {view(router)}, {view(shared)}}, view(d_x));
      } else {
        const RowPart gate{view(*p_.parameters.shared_gate), d_gate_, true};
        add_parts(call_, {{view(routed)}, {view(router)}, {view(shared)}, gate}, view(d_x));
      }
    }
    // The expert bias acts on the selection alone.
    if (g_.expert_bias != nullptr) zero_vector(call_, view(*g_.expert_bias));
  }

 private:
  dropless_tensor made(dropless_dtype dtype, std::initializer_list<Index> shape) {
    return make(call_, call_.workspace(), dtype, shape);
  }

  // d_rows [N,H] of one set of experts from d_out; with row weights also their gradient [N].
  dropless_tensor experts(const Linear& gate_up, const Linear& down, const ExpertTrace& trace,
                          const dropless_tensor& rows, const dropless_tensor& d_out,
                          dropless_dtype d_rows_dtype, const dropless_tensor* row_weights,
                          const dropless_tensor* d_row_weights, const ExpertGradients& wanted) {
    const Index count = rows.shape[0];
    const dropless_tensor d_rows = made(d_rows_dtype, {count, p_.hidden});
    const ScratchScope scope(call_);
    const dropless_tensor d_hidden = made(p_.x.dtype, {count, trace.hidden.shape[1]});
    down.backward_input(call_, d_out, d_hidden);
    const dropless_tensor d_gate_up = made(p_.x.dtype, {count, trace.gate_up.shape[1]});
    dropless_activation_backward_args args = {};
    args.settings = &p_.activation;
    args.x = &trace.gate_up;
    args.row_weights = row_weights;
    args.offsets = &trace.offsets;
    args.dh = &d_hidden, args.d_x = &d_gate_up;
    args.d_row_weights = d_row_weights;
    activation_backward(call_, args);
    gate_up.backward_input(call_, d_gate_up, d_rows);
    down.backward_weight(call_, d_out, trace.hidden, wanted.down);
    gate_up.backward_weight(call_, d_gate_up, rows, wanted.gate_up);
    down.backward_bias(call_, d_out, wanted.down_bias);
    gate_up.backward_bias(call_, d_gate_up, wanted.gate_up_bias);
    return d_rows;
  }

  // Gradient of the tokens through the routed experts [T,H]; fills d_weights_.
  dropless_tensor routed_experts() {
    const bool early = p_.places(DROPLESS_WEIGHTS_EARLY), input = p_.places(DROPLESS_WEIGHTS_INPUT);
    const dropless_tensor d_tokens = made(DROPLESS_FP32, {p_.tokens, p_.hidden});
    const ScratchScope scope(call_);
    const dropless_tensor d_out = made(p_.x.dtype, {pairs_, p_.hidden});
    dropless_unpermute_backward_args combine = unpermute_args();
    combine.d_y = &d_y_, combine.d_rows = &d_out;
    if (p_.places(DROPLESS_WEIGHTS_LATE)) {
      combine.rows = &trace_.routed.out;
      combine.weights = &trace_.weights, combine.d_weights = &d_weights_;
    }
    unpermute_backward(call_, combine);

    const dropless_tensor d_row_weights = made(DROPLESS_FP32, {pairs_});
    const dropless_tensor& zones = trace_.routed.offsets;
    // Weighted input rows are a stored tensor, plain ones are x itself: their gradient is a sum.
    const dropless_tensor d_rows = experts(
        p_.gate_up(zones), p_.down(zones), trace_.routed, trace_.rows, d_out,
        input ? p_.x.dtype : DROPLESS_FP32, early ? &trace_.row_weights : nullptr,
        early ? &d_row_weights : nullptr, {g_.gate_up, g_.gate_up_bias, g_.down, g_.down_bias});
    if (input) {
      weighted_input(d_rows, d_tokens);
    } else {
      dropless_permute_backward_args back = {};
      back.row_map = &trace_.row_map;
      back.d_rows = &d_rows, back.d_x = &d_tokens;
      if (early) back.d_row_weights = &d_row_weights, back.d_weights = &d_weights_;
      permute_backward(call_, back);
    }
    return d_tokens;
  }

  // rows = w x: d_x sums w d_rows, which is an unpermute; d_w = dot(d_rows, x), which is the weight
  // gradient of an unpermute with the two in each other's place.
  void weighted_input(const dropless_tensor& d_rows, const dropless_tensor& d_tokens) {
    dropless_unpermute_args sum = {};
    sum.row_map = &trace_.row_map, sum.rows = &d_rows;
    sum.weights = &trace_.weights, sum.y = &d_tokens;
    unpermute_forward(call_, sum);
    const dropless_tensor unused = made(p_.x.dtype, {pairs_, p_.hidden});
    dropless_unpermute_backward_args dot = unpermute_args();
    dot.rows = &d_rows, dot.weights = &trace_.weights;
    dot.d_y = &p_.x, dot.d_rows = &unused, dot.d_weights = &d_weights_;
    unpermute_backward(call_, dot);
  }

  [[nodiscard]] dropless_unpermute_backward_args unpermute_args() const {
    dropless_unpermute_backward_args args = {};
    args.offsets = &trace_.routed.offsets;
    args.row_map = &trace_.row_map, args.source = &trace_.source;
    return args;
  }

  // Gradient of x through the router [T,H].
  dropless_tensor route(const dropless_tensor* added) {
    const dropless_tensor d_x = made(DROPLESS_FP32, {p_.tokens, p_.hidden});
    const ScratchScope scope(call_);
    const dropless_tensor d_logits = made(DROPLESS_FP32, {p_.tokens, p_.experts});
    dropless_route_backward_args args = {};
    args.settings = &p_.route;
    args.logits = &trace_.logits;
    args.token_mask = p_.token_mask;
    args.expert_scale = p_.parameters.expert_scale;
    args.ids = &trace_.ids;
    args.d_weights = &d_weights_, args.d_logits = &d_logits;
    args.d_expert_scale = g_.expert_scale;
    route_backward(call_, args);
    if (added != nullptr) {
      add_parts(call_, {{view(d_logits)}, {view(*added)}}, view(d_logits));
    }
    const Linear router = p_.router(trace_.shared.offsets);
    router.backward_input(call_, d_logits, d_x);
    if (g_.router_weight != nullptr) {
      const dropless_tensor d_weight = stacked(*g_.router_weight);
      router.backward_weight(call_, d_logits, p_.x, &d_weight);
    }
    if (g_.router_bias != nullptr) {
      const dropless_tensor d_bias = stacked(*g_.router_bias);
      router.backward_bias(call_, d_logits, &d_bias);
    }
    return d_x;
  }

  // Gradient of x through the shared expert's products [T,H]; fills d_gate_, the gradient of the
  // gate's argument [T].
  dropless_tensor shared_expert() {
    const dropless_tensor d_out = made(p_.x.dtype, {p_.tokens, p_.hidden});
    add_parts(call_, {{view(d_y_), trace_.gate()}}, view(d_out));
    if (p_.parameters.shared_gate != nullptr) {
      d_gate_ = call_.scratch<float>(p_.tokens);
      gate_rows_backward(call_, view(d_y_), view(trace_.shared.out), trace_.gate(), d_gate_);
      if (g_.shared_gate != nullptr) {
        Zones all;
        all.rows = p_.tokens;
        sum_rows(call_, all, view(p_.x), d_gate_, view(*g_.shared_gate));
      }
    }
    dropless_tensor d_gate_up = {}, d_down = {};
    if (g_.shared_gate_up != nullptr) d_gate_up = stacked(*g_.shared_gate_up);
    if (g_.shared_down != nullptr) d_down = stacked(*g_.shared_down);
    const dropless_tensor& all = trace_.shared.offsets;
    return experts(p_.shared_gate_up(all), p_.shared_down(all), trace_.shared, p_.x, d_out,
                   DROPLESS_FP32, nullptr, nullptr,
                   {g_.shared_gate_up != nullptr ? &d_gate_up : nullptr, nullptr,
                    g_.shared_down != nullptr ? &d_down : nullptr, nullptr});
  }

  Call& call_;
  const LayerProblem& p_;
  const LayerTrace& trace_;
  const dropless_layer_parameters& g_;
  const dropless_tensor& d_y_;
  Index pairs_;
  dropless_tensor d_weights_ = {};
  float* d_gate_ = nullptr;
};

}  // namespace

void run_backward(Call& call, const LayerProblem& problem, const LayerTrace& trace,
                  const dropless_layer_parameters& gradients, const dropless_tensor& d_y,
                  const dropless_tensor* d_logits, const dropless_tensor& d_x) {
  LayerBackward(call, problem, trace, gradients, d_y).run(d_logits, d_x);
}

}  // namespace dropless::cuda
