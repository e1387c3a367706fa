// SPDX-License-Identifier: Apache-2.0
// The MoE layer, forward: routing, permutation, gate-up, activation, down, combine, shared expert.
// LAYER-1 and 2. Rounded to the type of x are the outputs of the products and of the activation,
// and weighted input rows; y is rounded once.
#include <cmath>

#include "optimized/cpu/exponential.h"
#include "optimized/cpu/layer_rows.h"
#include "optimized/cpu/layer_state.h"
#include "optimized/cpu/operations.h"

namespace dropless::cpu {
namespace {

Tensor view(const Buffer& buffer) {
  const dropless_tensor& t = *buffer;
  return t.rank == 1 ? tensor(&t, "buffer", any_dtype, {t.shape[0]})
                     : tensor(&t, "buffer", any_dtype, {t.shape[0], t.shape[1]});
}

const dropless_tensor* or_null(const Tensor& given, const dropless_tensor& described) {
  return given ? &described : nullptr;
}

void route(Call& call, const LayerProblem& p, LayerTrace& trace) {
  const LayerSizes& n = p.sizes;
  trace.logits = Buffer(p.settings.logits_dtype, {n.tokens, n.experts});
  p.router(trace.shared.offsets.get()).forward(call, describe(p.x), *trace.logits);
  trace.ids = Buffer(DROPLESS_I64, {n.tokens, n.top_k});
  trace.weights = Buffer(DROPLESS_FP32, {n.tokens, n.top_k});
  trace.counts = Buffer(DROPLESS_I64, {n.experts});
  const dropless_tensor bias = describe(p.parameters.expert_bias);
  const dropless_tensor scale = describe(p.parameters.expert_scale);
  const dropless_tensor mask = describe(p.token_mask), given = describe(p.given_ids);
  dropless_route_args args = {};
  args.settings = &p.route;
  args.logits = trace.logits.get();
  args.expert_bias = or_null(p.parameters.expert_bias, bias);
  args.expert_scale = or_null(p.parameters.expert_scale, scale);
  args.token_mask = or_null(p.token_mask, mask);
  args.given_ids = or_null(p.given_ids, given);
  args.ids = trace.ids.get();
  args.weights = trace.weights.get();
  args.tokens_per_expert = trace.counts.get();
  route_forward(call, args);
}

void permute(Call& call, const LayerProblem& p, LayerTrace& trace) {
  const LayerSizes& n = p.sizes;
  Index rows = 0;
  for (Index e = 0; e < n.experts; ++e) rows += trace.counts.data<std::int64_t>()[e];
  trace.routed.offsets = Buffer(DROPLESS_I64, {n.experts + 1});
  trace.row_map = Buffer(DROPLESS_I64, {n.tokens, n.top_k});
  trace.source = Buffer(DROPLESS_I64, {rows});
  const Buffer demand(DROPLESS_I64, {1});
  dropless_permute_plan_args plan = {};
  plan.num_experts = n.experts;
  plan.row_capacity = -1;
  plan.ids = trace.ids.get();
  plan.tokens_per_expert = trace.counts.get();
  plan.offsets = trace.routed.offsets.get();
  plan.row_map = trace.row_map.get();
  plan.source = trace.source.get();
  plan.demand = demand.get();
  permute_plan(call, plan);

  trace.rows = Buffer(p.x.dtype, {rows, n.hidden});
  trace.row_weights = Buffer(DROPLESS_FP32, {rows});
  const dropless_tensor x = describe(p.x);
  dropless_permute_args args = {};
  args.offsets = plan.offsets;
  args.row_map = plan.row_map;
  args.source = plan.source;
  args.x = &x;
  args.weights = trace.weights.get();
  args.rows = trace.rows.get();
  args.row_weights = trace.row_weights.get();
  permute_forward(call, args);
  if (p.places(DROPLESS_WEIGHTS_INPUT)) {
    scale_rows(call.threads(), view(trace.rows), trace.row_weights.data<float>(), view(trace.rows));
  }
}

void run_experts(Call& call, const LayerProblem& p, const Linear& gate_up, const Linear& down,
                 const dropless_tensor& rows, const dropless_tensor* row_weights,
                 ExpertTrace& trace) {
  const Index count = rows.shape[0];
  trace.gate_up = Buffer(p.x.dtype, {count, gate_up.w.shape[1]});
  gate_up.forward(call, rows, *trace.gate_up);
  trace.hidden = Buffer(p.x.dtype, {count, down.w.shape[2]});
  dropless_activation_args args = {};
  args.settings = &p.activation;
  args.x = trace.gate_up.get();
  args.row_weights = row_weights;
  args.h = trace.hidden.get();
  activation_forward(call, args);
  trace.out = Buffer(p.x.dtype, {count, p.sizes.hidden});
  down.forward(call, *trace.hidden, *trace.out);
}

std::vector<float> gate_values(int threads, const LayerProblem& p) {
  std::vector<float> gates;
  if (!p.parameters.shared_gate) return gates;
  for (const double dot : dot_rows(threads, p.x, p.parameters.shared_gate, true)) {
    gates.push_back(static_cast<float>(logistic(dot).value));
  }
  return gates;
}

}  // namespace

LayerTrace run_layer(Call& call, const LayerProblem& p) {
  LayerTrace trace;
  trace.shared.offsets = Buffer(DROPLESS_I64, {2});
  trace.shared.offsets.data<std::int64_t>()[0] = 0;
  trace.shared.offsets.data<std::int64_t>()[1] = p.sizes.tokens;
  route(call, p, trace);
  permute(call, p, trace);
  const dropless_tensor* zones = trace.routed.offsets.get();
  run_experts(call, p, p.gate_up(zones), p.down(zones), *trace.rows,
              p.places(DROPLESS_WEIGHTS_EARLY) ? trace.row_weights.get() : nullptr, trace.routed);
  if (p.has_shared()) {
    const dropless_tensor* all = trace.shared.offsets.get();
    run_experts(call, p, p.shared_gate_up(all), p.shared_down(all), describe(p.x), nullptr,
                trace.shared);
    trace.shared_gate = gate_values(call.threads(), p);
  }
  return trace;
}

void write_output(Call& call, const LayerProblem& p, const LayerTrace& trace, const Tensor& y) {
  const dropless_tensor output = describe(y);
  const Buffer routed(p.has_shared() ? DROPLESS_FP32 : p.x.dtype,
                      {p.has_shared() ? p.sizes.tokens : 0, p.sizes.hidden});
  dropless_unpermute_args args = {};
  args.row_map = trace.row_map.get();
  args.rows = trace.routed.out.get();
  args.weights = p.places(DROPLESS_WEIGHTS_LATE) ? trace.weights.get() : nullptr;
  args.y = p.has_shared() ? routed.get() : &output;
  unpermute_forward(call, args);
  if (p.has_shared()) {
    const float* gate = trace.shared_gate.empty() ? nullptr : trace.shared_gate.data();
    add_parts(call.threads(), {{view(routed)}, {view(trace.shared.out), gate}}, y);
  }
}

void layer_forward(Call& call, dropless_layer_args& args) {
  const LayerProblem p = read_layer(args);
  const LayerSizes& n = p.sizes;
  const Tensor y = tensor(args.y, "y", {p.x.dtype}, {n.tokens, n.hidden});
  const Tensor ids = tensor(args.ids, "ids", integers, {n.tokens, n.top_k});
  const Tensor counts =
      tensor(args.tokens_per_expert, "tokens_per_expert", {DROPLESS_I64}, {n.experts});

  auto state = std::make_unique<LayerState>();
  state->tokens = n.tokens;
  state->hidden = n.hidden;
  Call inner(call.threads());
  LayerTrace trace = run_layer(inner, p);
  write_output(inner, p, trace, y);
  for (Index t = 0; t < n.tokens; ++t) {
    for (Index j = 0; j < n.top_k; ++j) {
      ids.store_integer(trace.ids.data<std::int64_t>()[t * n.top_k + j], t, j);
    }
  }
  for (Index e = 0; e < n.experts; ++e) {
    counts.as<std::int64_t>(e) = trace.counts.data<std::int64_t>()[e];
  }
  args.saved = nullptr;
  if (args.keep != 0) {
    if (p.settings.recompute == 0) state->trace = std::move(trace);
    args.saved = state.release();
  }
  call.ran_simd();
}

void layer_release(Call& call, dropless_layer_args& args) {
  delete static_cast<LayerState*>(args.saved);
  args.saved = nullptr;
  call.ran("cpu");
}

}  // namespace dropless::cpu
