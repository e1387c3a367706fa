// SPDX-License-Identifier: Apache-2.0
// The MoE layer, forward: routing, permutation, gate-up, activation, down, combine, shared expert.
// LAYER-1 and 2. Nothing waits for the device, group sizes stay there. Rounded to the type of x are
// the outputs of the products and of the activation, and weighted input rows; y is rounded once.
#include "optimized/cuda/layer_rows.h"
#include "optimized/cuda/layer_state.h"
#include "optimized/cuda/operations.h"

namespace dropless::cuda {
namespace {

class LayerForward {
 public:
  LayerForward(Call& call, const LayerProblem& problem, Workspace& memory)
      : call_(call), p_(problem), memory_(memory), pairs_(p_.tokens * p_.top_k) {}

  LayerTrace run() {
    trace_.shared.offsets = multiples(memory_.take(2 * sizeof(std::int64_t), call_.stream()));
    route();
    // What follows was made here: ids and offsets need no further look.
    const bool trusted = call_.trusted();
    call_.set_trusted(true);
    permute();
    const bool early = p_.places(DROPLESS_WEIGHTS_EARLY);
    experts(p_.gate_up(trace_.routed.offsets), p_.down(trace_.routed.offsets), trace_.rows,
            p_.intermediate, early ? &trace_.row_weights : nullptr, trace_.routed);
    if (p_.has_shared()) shared_expert();
    call_.set_trusted(trusted);
    return trace_;
  }

 private:
  dropless_tensor made(dropless_dtype dtype, std::initializer_list<Index> shape) {
    return make(call_, memory_, dtype, shape);
  }

  // The one zone of all tokens.
  dropless_tensor multiples(void* memory) {
    const dropless_tensor scratch = cuda::multiples(call_, 1, p_.tokens);
    check(cudaMemcpyAsync(memory, scratch.data, 2 * sizeof(std::int64_t), cudaMemcpyDeviceToDevice,
                          call_.stream()),
          "copying offsets");
    return describe(memory, DROPLESS_I64, {2});
  }

  void route() {
    trace_.logits = made(p_.settings.logits_dtype, {p_.tokens, p_.experts});
    p_.router(trace_.shared.offsets).forward(call_, p_.x, trace_.logits);
    trace_.ids = made(DROPLESS_I64, {p_.tokens, p_.top_k});
    trace_.weights = made(DROPLESS_FP32, {p_.tokens, p_.top_k});
    trace_.counts = made(DROPLESS_I64, {p_.experts});
    dropless_route_args args = {};
    args.settings = &p_.route;
    args.logits = &trace_.logits;
    args.expert_bias = p_.parameters.expert_bias;
    args.expert_scale = p_.parameters.expert_scale;
    args.token_mask = p_.token_mask, args.given_ids = p_.given_ids;
    args.ids = &trace_.ids, args.weights = &trace_.weights;
    args.tokens_per_expert = &trace_.counts;
    route_forward(call_, args);
  }

  void permute() {
    trace_.routed.offsets = made(DROPLESS_I64, {p_.experts + 1});
    trace_.row_map = made(DROPLESS_I64, {p_.tokens, p_.top_k});
    trace_.source = made(DROPLESS_I64, {pairs_});
    const dropless_tensor kept =
        describe(call_.scratch<std::int64_t>(p_.experts), DROPLESS_I64, {p_.experts});
    const dropless_tensor demand = describe(call_.scratch<std::int64_t>(1), DROPLESS_I64, {1});
    dropless_permute_plan_args plan = {};
    plan.num_experts = p_.experts;
    plan.row_capacity = -1;
    plan.ids = &trace_.ids;
    plan.tokens_per_expert = &kept;
    plan.offsets = &trace_.routed.offsets;
    plan.row_map = &trace_.row_map, plan.source = &trace_.source;
    plan.demand = &demand;
    permute_plan(call_, plan);

    trace_.rows = made(p_.x.dtype, {pairs_, p_.hidden});
    trace_.row_weights = made(DROPLESS_FP32, {pairs_});
    dropless_permute_args args = {};
    args.offsets = plan.offsets, args.row_map = plan.row_map, args.source = plan.source;
    args.x = &p_.x, args.weights = &trace_.weights;
    args.rows = &trace_.rows, args.row_weights = &trace_.row_weights;
    permute_forward(call_, args);
    if (p_.places(DROPLESS_WEIGHTS_INPUT)) {
      const Zones zones = read_zones(call_, plan.offsets, nullptr, pairs_);
      scale_rows(call_, zones, view(trace_.rows), static_cast<float*>(trace_.row_weights.data));
    }
  }

  void experts(const Linear& gate_up, const Linear& down, const dropless_tensor& rows, Index width,
               const dropless_tensor* row_weights, ExpertTrace& trace) {
    const Index count = rows.shape[0];
    trace.gate_up = made(p_.x.dtype, {count, p_.gate_up_width(width)});
    gate_up.forward(call_, rows, trace.gate_up);
    trace.hidden = made(p_.x.dtype, {count, width});
    dropless_activation_args args = {};
    args.settings = &p_.activation;
    args.x = &trace.gate_up;
    args.row_weights = row_weights;
    args.offsets = &trace.offsets;
    args.h = &trace.hidden;
    trace.out = made(p_.x.dtype, {count, p_.hidden});
    if (!down.wants_quantized_rows(call_)) {
      activation_forward(call_, args);
      return down.forward(call_, trace.hidden, trace.out);
    }
    const ScratchScope scope(call_);
    const Index blocks = (width + DROPLESS_BLOCK_SIZE - 1) / DROPLESS_BLOCK_SIZE;
    const QuantizedRows codes = {make(call_, call_.workspace(), DROPLESS_E4M3, {count, width}),
                                 make(call_, call_.workspace(), DROPLESS_E8M0, {count, blocks})};
    activation_quantized(call_, args, codes);
    down.forward(call_, trace.hidden, trace.out, &codes);
  }

  void shared_expert() {
    const dropless_tensor& all = trace_.shared.offsets;
    experts(p_.shared_gate_up(all), p_.shared_down(all), p_.x, p_.shared, nullptr, trace_.shared);
    if (p_.parameters.shared_gate == nullptr) return;
    trace_.shared_gate = made(DROPLESS_FP32, {p_.tokens});
    gate_rows(call_, view(p_.x), view(*p_.parameters.shared_gate), trace_.gate());
  }

  Call& call_;
  const LayerProblem& p_;
  Workspace& memory_;
  Index pairs_;
  LayerTrace trace_ = {};
};

}  // namespace

LayerTrace run_layer(Call& call, const LayerProblem& problem, Workspace& memory) {
  return LayerForward(call, problem, memory).run();
}

void write_output(Call& call, const LayerProblem& p, const LayerTrace& trace,
                  const dropless_tensor& y) {
  const bool shared = p.has_shared();
  const dropless_tensor routed =
      shared ? make(call, call.workspace(), DROPLESS_FP32, {p.tokens, p.hidden}) : y;
  dropless_unpermute_args args = {};
  args.row_map = &trace.row_map, args.rows = &trace.routed.out;
  args.weights = p.places(DROPLESS_WEIGHTS_LATE) ? &trace.weights : nullptr;
  args.y = &routed;
  unpermute_forward(call, args);
  if (shared) {
    add_parts(call, {{view(routed)}, {view(trace.shared.out), trace.gate()}}, view(y));
  }
}

void layer_forward(Call& call, dropless_layer_args& args) {
  const LayerProblem p = read_layer(args);
  static_cast<void>(tensor(args.y, "y", {p.x.dtype}, {p.tokens, p.hidden}));
  const Tensor ids = tensor(args.ids, "ids", integers, {p.tokens, p.top_k});
  Tensor counts = tensor(args.tokens_per_expert, "tokens_per_expert", {DROPLESS_I64}, {p.experts});
  counts.shape[1] = 1;

  KeptState state;
  if (args.keep != 0) {
    state = take_state(call);
    state->tokens = p.tokens, state->hidden = p.hidden;
    state->has_trace = p.settings.recompute == 0;
  }
  const bool kept = state && state->has_trace, on_host = kept && p.settings.offload != 0;
  const LayerTrace trace = run_layer(call, p, kept && !on_host ? state->memory : call.workspace());
  const bool trusted = call.trusted();
  call.set_trusted(true);
  write_output(call, p, trace, *args.y);
  call.set_trusted(trusted);
  copy_integers(call, trace.ids, ids);
  copy_integers(call, trace.counts, counts);
  if (kept) state->trace = trace;
  if (on_host) keep_on_host(call, *state, trace);
  args.saved = state.release();
  call.ran("layer");
}

void layer_backward(Call& call, const dropless_layer_backward_args& args) {
  const dropless_layer_args forward = read_struct(args.forward, "forward");
  const LayerProblem p = read_layer(forward);
  static_cast<void>(tensor(args.d_y, "d_y", floats, {p.tokens, p.hidden}));
  static_cast<void>(tensor(args.d_x, "d_x", floats, {p.tokens, p.hidden}));
  optional_tensor(args.d_logits, "d_logits", {DROPLESS_FP32}, {p.tokens, p.experts});
  const dropless_layer_parameters gradients = read_gradients(p, args.gradients);
  auto* const kept = static_cast<LayerState*>(forward.saved);
  refuse_if(kept != nullptr && (kept->tokens != p.tokens || kept->hidden != p.hidden),
            "saved: kept by a forward call of another size");
  const bool has_trace = kept != nullptr && kept->has_trace;
  const LayerTrace trace = !has_trace         ? run_layer(call, p, call.workspace())
                           : kept->is_on_host ? bring_back(call, *kept)
                                              : kept->trace;
  const bool trusted = call.trusted();
  call.set_trusted(true);
  run_backward(call, p, trace, gradients, *args.d_y, args.d_logits, *args.d_x);
  call.set_trusted(trusted);
  KeptState{kept}.reset();
  call.ran("layer");
}

void layer_release(Call& call, dropless_layer_args& args) {
  KeptState{static_cast<LayerState*>(args.saved)}.reset();
  args.saved = nullptr;
  call.ran("layer");
}

}  // namespace dropless::cuda
