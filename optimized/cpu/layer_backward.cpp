// SPDX-License-Identifier: Apache-2.0
// The MoE layer, backward: every stage of the forward pass in reverse, from its own tensors.
// LAYER-1 and 2.
#include "optimized/cpu/layer_exchange.h"
#include "optimized/cpu/layer_rows.h"
#include "optimized/cpu/layer_state.h"
#include "optimized/cpu/operations.h"

namespace dropless::cpu {
namespace {

Tensor view(const Buffer& buffer) {
  return tensor(buffer.get(), "buffer", any_dtype,
                {buffer.get()->shape[0], buffer.get()->shape[1]});
}

Buffer zeros(std::initializer_list<Index> shape) {
  Buffer buffer(DROPLESS_FP32, shape);
  std::fill_n(buffer.data<float>(), buffer.size(), 0.0F);
  return buffer;
}

class LayerBackward {
 public:
  LayerBackward(Call& call, const LayerProblem& problem, const LayerTrace& trace,
                const LayerTensors& gradients, const Tensor& d_y, const Tensor& d_logits)
      : call_(call),
        p_(problem),
        n_(p_.sizes),
        trace_(trace),
        g_(gradients),
        d_y_(d_y),
        d_logits_(d_logits) {}

  void run(const Tensor& d_x) {
    const Buffer d_weights = zeros({n_.tokens, n_.top_k});
    const Buffer routed = p_.exchange == nullptr
                              ? routed_experts(d_y_, p_.places(DROPLESS_WEIGHTS_LATE), d_weights)
                              : received_experts(d_weights);
    const Buffer router = route(d_weights);
    std::vector<Part> parts = {{view(routed)}, {view(router)}};
    Buffer shared;
    if (p_.has_shared()) {
      shared = shared_expert();
      parts.push_back({view(shared)});
      if (!d_gate_.empty()) parts.push_back({p_.parameters.shared_gate, d_gate_.data(), true});
    }
    add_parts(call_.threads(), parts, d_x);
    // The expert bias acts on the selection alone.
    if (g_.expert_bias) {
      for (Index e = 0; e < n_.experts; ++e) g_.expert_bias.as<float>(e) = 0;
    }
  }

 private:
  // d_rows [N,H] of one set of experts from d_out; with early weights also their gradient [N].
  Buffer experts(const Linear& gate_up, const Linear& down, const ExpertTrace& trace,
                 const dropless_tensor& rows, const Buffer& d_out, dropless_dtype d_rows_dtype,
                 const dropless_tensor* row_weights, const Buffer* d_row_weights) {
    const Index count = rows.shape[0];
    const Buffer d_hidden(p_.x.dtype, {count, down.w.shape[2]});
    down.backward_input(call_, *d_out, *d_hidden);
    const Buffer d_gate_up(p_.x.dtype, {count, gate_up.w.shape[1]});
    dropless_activation_backward_args args = {};
    args.settings = &p_.activation;
    args.x = trace.gate_up.get();
    args.row_weights = row_weights;
    args.dh = d_hidden.get();
    args.d_x = d_gate_up.get();
    args.d_row_weights = d_row_weights == nullptr ? nullptr : d_row_weights->get();
    activation_backward(call_, args);
    Buffer d_rows(d_rows_dtype, {count, n_.hidden});
    gate_up.backward_input(call_, *d_gate_up, *d_rows);
    weight_gradients(gate_up, down, trace, rows, d_out, d_gate_up, row_weights_of(trace));
    return d_rows;
  }

  // Which gradients these experts have.
  struct Wanted {
    const Tensor *gate_up, *gate_up_bias, *down, *down_bias;
    bool is_stacked;
  };
  Wanted row_weights_of(const ExpertTrace& trace) const {
    if (&trace == &trace_.routed) {
      return {&g_.gate_up, &g_.gate_up_bias, &g_.down, &g_.down_bias, true};
    }
    return {&g_.shared_gate_up, nullptr, &g_.shared_down, nullptr, false};
  }
  void weight_gradients(const Linear& gate_up, const Linear& down, const ExpertTrace& trace,
                        const dropless_tensor& rows, const Buffer& d_out, const Buffer& d_gate_up,
                        const Wanted& wanted) {
    const auto shaped = [&](const Tensor& t) {
      return wanted.is_stacked ? describe(t) : stacked(t);
    };
    if (*wanted.down) down.backward_weight(call_, *d_out, *trace.hidden, shaped(*wanted.down));
    if (*wanted.gate_up) {
      gate_up.backward_weight(call_, *d_gate_up, rows, shaped(*wanted.gate_up));
    }
    if (wanted.down_bias != nullptr && *wanted.down_bias) {
      down.backward_bias(call_, *d_out, describe(*wanted.down_bias));
    }
    if (wanted.gate_up_bias != nullptr && *wanted.gate_up_bias) {
      gate_up.backward_bias(call_, *d_gate_up, describe(*wanted.gate_up_bias));
    }
  }

  // The same over ranks: the rows that arrived take the place of the tokens in between.
  Buffer received_experts(const Buffer& d_weights) {
    const bool weighs = exchange_weighs(p_);
    const ArrivedGradient arrived = combine_tokens_backward(call_, p_, trace_, describe(d_y_));
    const dropless_tensor& ids = *routed_tokens(p_, trace_).ids;
    const Buffer d_row_weights = zeros({ids.shape[0], ids.shape[1]});
    const Buffer d_rows = routed_experts(
        view(arrived.rows), p_.places(DROPLESS_WEIGHTS_LATE) && !weighs, d_row_weights);
    Buffer d_x(DROPLESS_FP32, {n_.tokens, n_.hidden});
    dispatch_tokens_backward(call_, p_, d_rows, weighs ? arrived.weights : d_row_weights, d_x,
                             d_weights);
    return d_x;
  }

  // Gradient of the tokens that were permuted [T,H] through the experts, unrounded, from that of
  // their outputs; fills d_weights [T,K] unless the weights are placed elsewhere.
  Buffer routed_experts(const Tensor& d_out_of_tokens, bool late, const Buffer& d_weights) {
    const Index rows = trace_.rows.get()->shape[0];
    const bool early = p_.places(DROPLESS_WEIGHTS_EARLY), input = p_.places(DROPLESS_WEIGHTS_INPUT);
    const RoutedTokens tokens = routed_tokens(p_, trace_);
    const dropless_tensor d_y = describe(d_out_of_tokens);
    const Buffer d_out(p_.x.dtype, {rows, n_.hidden});
    dropless_unpermute_backward_args combine = unpermute_args();
    combine.d_y = &d_y;
    combine.d_rows = d_out.get();
    if (late) {
      combine.rows = trace_.routed.out.get();
      combine.weights = tokens.weights;
      combine.d_weights = d_weights.get();
    }
    unpermute_backward(call_, combine);

    const Buffer d_row_weights = zeros({rows});
    const dropless_tensor* zones = trace_.routed.offsets.get();
    // Weighted input rows are a stored tensor, plain ones are x itself: their gradient is a sum.
    const Buffer d_rows =
        experts(p_.gate_up(zones), p_.down(zones), trace_.routed, *trace_.rows, d_out,
                input ? p_.x.dtype : DROPLESS_FP32, early ? trace_.row_weights.get() : nullptr,
                early ? &d_row_weights : nullptr);
    Buffer d_x(DROPLESS_FP32, {d_y.shape[0], n_.hidden});
    if (input) {
      weighted_input(d_rows, d_x, d_weights);
      return d_x;
    }
    dropless_permute_backward_args back = {};
    back.row_map = trace_.row_map.get();
    back.d_rows = d_rows.get();
    back.d_x = d_x.get();
    if (early) {
      back.d_row_weights = d_row_weights.get();
      back.d_weights = d_weights.get();
    }
    permute_backward(call_, back);
    return d_x;
  }

  // rows = w x: d_x sums w d_rows, which is an unpermute; d_w = dot(d_rows, x), which is the weight
  // gradient of an unpermute with the two in each other's place.
  void weighted_input(const Buffer& d_rows, const Buffer& d_x, const Buffer& d_weights) {
    const RoutedTokens tokens = routed_tokens(p_, trace_);
    dropless_unpermute_args sum = {};
    sum.row_map = trace_.row_map.get();
    sum.rows = d_rows.get();
    sum.weights = tokens.weights;
    sum.y = d_x.get();
    unpermute_forward(call_, sum);
    const Buffer unused(p_.x.dtype, {d_rows.get()->shape[0], n_.hidden});
    dropless_unpermute_backward_args dot = unpermute_args();
    dot.rows = d_rows.get();
    dot.weights = tokens.weights;
    dot.d_y = &tokens.x;
    dot.d_rows = unused.get();
    dot.d_weights = d_weights.get();
    unpermute_backward(call_, dot);
  }

  dropless_unpermute_backward_args unpermute_args() const {
    dropless_unpermute_backward_args args = {};
    args.offsets = trace_.routed.offsets.get();
    args.row_map = trace_.row_map.get();
    args.source = trace_.source.get();
    return args;
  }

  // Gradient of x through the router [T,H], unrounded.
  Buffer route(const Buffer& d_weights) {
    const Buffer d_logits(DROPLESS_FP32, {n_.tokens, n_.experts});
    const dropless_tensor mask = describe(p_.token_mask);
    const dropless_tensor scale = describe(p_.parameters.expert_scale);
    const dropless_tensor d_scale = describe(g_.expert_scale);
    dropless_route_backward_args args = {};
    args.settings = &p_.route;
    args.logits = trace_.logits.get();
    args.token_mask = p_.token_mask ? &mask : nullptr;
    args.expert_scale = p_.parameters.expert_scale ? &scale : nullptr;
    args.ids = trace_.ids.get();
    args.d_weights = d_weights.get();
    args.d_logits = d_logits.get();
    args.d_expert_scale = g_.expert_scale ? &d_scale : nullptr;
    route_backward(call_, args);
    if (d_logits_) {
      add_parts(call_.threads(), {{view(d_logits)}, {d_logits_}}, view(d_logits));
    }
    const Linear router = p_.router(trace_.shared.offsets.get());
    const dropless_tensor x = describe(p_.x);
    if (g_.router_weight) {
      router.backward_weight(call_, *d_logits, x, stacked(g_.router_weight));
    }
    if (g_.router_bias) router.backward_bias(call_, *d_logits, stacked(g_.router_bias));
    Buffer d_x(DROPLESS_FP32, {n_.tokens, n_.hidden});
    router.backward_input(call_, *d_logits, *d_x);
    return d_x;
  }

  // Gradient of x through the shared expert's products [T,H]; fills d_gate_ [T], the gradient of
  // the gate's argument.
  Buffer shared_expert() {
    const bool gated = static_cast<bool>(p_.parameters.shared_gate);  // also with no tokens
    const Buffer d_out(p_.x.dtype, {n_.tokens, n_.hidden});
    add_parts(call_.threads(), {{d_y_, gated ? trace_.shared_gate.data() : nullptr}}, view(d_out));
    if (gated) {
      const auto dots = dot_rows(call_.threads(), d_y_, view(trace_.shared.out), false);
      for (std::size_t t = 0; t < dots.size(); ++t) {
        const double gate = static_cast<double>(trace_.shared_gate[t]);
        d_gate_.push_back(static_cast<float>(dots[t] * gate * (1.0 - gate)));
      }
      if (g_.shared_gate) {
        sum_scaled_rows(call_.threads(), p_.x, d_gate_.data(), g_.shared_gate);
      }
    }
    const dropless_tensor* all = trace_.shared.offsets.get();
    return experts(p_.shared_gate_up(all), p_.shared_down(all), trace_.shared, describe(p_.x),
                   d_out, DROPLESS_FP32, nullptr, nullptr);
  }

  Call& call_;
  const LayerProblem& p_;
  const LayerSizes& n_;
  const LayerTrace& trace_;
  const LayerTensors& g_;
  const Tensor &d_y_, &d_logits_;
  std::vector<float> d_gate_;
};

// A kept trace belongs to the plan of its forward pass; without one the layer plans again.
void check_state(const LayerState& state, const LayerProblem& p) {
  refuse_if(state.tokens != p.sizes.tokens || state.hidden != p.sizes.hidden,
            "saved: kept by a forward call of another size");
  refuse_if(state.ranks != p.ranks, "saved: kept by a forward call over another exchange");
  refuse_if(state.trace && p.ranks != nullptr && state.plans != p.ranks->plans(),
            "saved: the exchange was planned again since the forward call; layers in flight at the "
            "same time need a handle each, or recompute = 1");
}

}  // namespace

void layer_backward(Call& call, const dropless_layer_backward_args& args) {
  const dropless_layer_args forward = read_struct(args.forward, "forward");
  exchange::Handle* const ranks = ranks_of(forward.exchange);
  auto* const state = static_cast<LayerState*>(forward.saved);
  const bool has_trace = state != nullptr && state->trace.has_value();
  LayerProblem p = {};
  Tensor d_y, d_x, d_logits;
  LayerTensors gradients;
  agree_on_ranks(ranks, [&] {
    p = read_layer(forward);
    const LayerSizes& n = p.sizes;
    d_y = tensor(args.d_y, "d_y", floats, {n.tokens, n.hidden});
    d_x = tensor(args.d_x, "d_x", floats, {n.tokens, n.hidden});
    gradients = read_gradients(p, args.gradients);
    d_logits = optional_tensor(args.d_logits, "d_logits", {DROPLESS_FP32}, {n.tokens, n.experts});
    if (state != nullptr) check_state(*state, p);
    return layer_terms(p, has_trace ? LayerPass::backward : LayerPass::forward_and_backward, false,
                       d_y.dtype);
  });

  run_on_ranks(ranks, [&] {
    Call inner(ranks == nullptr ? call.threads() : ranks->threads(call.threads()));
    LayerTrace recomputed;
    if (!has_trace) recomputed = run_layer(inner, p, true);
    LayerBackward(inner, p, has_trace ? *state->trace : recomputed, gradients, d_y, d_logits)
        .run(d_x);
  });
  delete state;
  call.ran_simd();
}

}  // namespace dropless::cpu
