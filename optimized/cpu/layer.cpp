// SPDX-License-Identifier: Apache-2.0
// The MoE layer, forward: routing, permutation, gate-up, activation, down, combine, shared expert.
// LAYER-1 and 2. Rounded to the type of x are the outputs of the products and of the activation,
// and weighted input rows; y is rounded once.
#include <cmath>

#include "optimized/cpu/exponential.h"
#include "optimized/cpu/layer_exchange.h"
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
  const RoutedTokens tokens = routed_tokens(p, trace);
  const Index experts = tokens.counts.size(), hidden = p.sizes.hidden;
  Index rows = 0;
  for (Index e = 0; e < experts; ++e) rows += tokens.counts.data<std::int64_t>()[e];
  trace.routed.offsets = Buffer(DROPLESS_I64, {experts + 1});
  trace.row_map = Buffer(DROPLESS_I64, {tokens.ids->shape[0], tokens.ids->shape[1]});
  trace.source = Buffer(DROPLESS_I64, {rows});
  const Buffer demand(DROPLESS_I64, {1});
  dropless_permute_plan_args plan = {};
  plan.num_experts = experts;
  plan.row_capacity = -1;
  plan.ids = tokens.ids;
  plan.tokens_per_expert = tokens.counts.get();
  plan.offsets = trace.routed.offsets.get();
  plan.row_map = trace.row_map.get();
  plan.source = trace.source.get();
  plan.demand = demand.get();
  permute_plan(call, plan);

  trace.rows = Buffer(tokens.x.dtype, {rows, hidden});
  trace.row_weights = Buffer(DROPLESS_FP32, {rows});
  dropless_permute_args args = {};
  args.offsets = plan.offsets;
  args.row_map = plan.row_map;
  args.source = plan.source;
  args.x = &tokens.x;
  args.weights = tokens.weights;
  args.rows = trace.rows.get();
  args.row_weights = trace.row_weights.get();
  if (tokens.scales != nullptr) {
    trace.row_scales = Buffer(DROPLESS_E8M0, {rows, tokens.scales->shape[1]});
    args.scales = tokens.scales;
    args.row_scales = trace.row_scales.get();
  }
  permute_forward(call, args);
  if (p.places(DROPLESS_WEIGHTS_INPUT)) {
    scale_rows(call.threads(), view(trace.rows), trace.row_weights.data<float>(), view(trace.rows));
  }
}

void run_experts(Call& call, const LayerProblem& p, const Linear& gate_up, const Linear& down,
                 const dropless_operand& rows, const dropless_tensor* row_weights,
                 ExpertTrace& trace) {
  const Index count = rows.values->shape[0];
  trace.gate_up = Buffer(p.x.dtype, {count, gate_up.w.shape[1]});
  if (rows.scales == nullptr) {
    gate_up.forward(call, *rows.values, *trace.gate_up);
  } else {
    gate_up.forward(call, rows, *trace.gate_up);
  }
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

dropless_operand operand(const dropless_tensor& values, const dropless_tensor* scales) {
  dropless_operand result = {};
  result.struct_size = sizeof result;
  result.struct_version = DROPLESS_STRUCT_VERSION;
  result.values = &values;
  result.scales = scales;
  return result;
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

RoutedTokens routed_tokens(const LayerProblem& p, const LayerTrace& trace) {
  if (!trace.arrived) {
    return {describe(p.x), nullptr, trace.ids.get(), trace.weights.get(), trace.counts};
  }
  const Arrived& a = *trace.arrived;
  return {*a.x, a.scales.get()->rank > 0 ? a.scales.get() : nullptr, a.ids.get(), a.weights.get(),
          a.counts};
}

LayerTrace run_layer(Call& call, const LayerProblem& p, bool backward_follows) {
  LayerTrace trace;
  trace.shared.offsets = Buffer(DROPLESS_I64, {2});
  trace.shared.offsets.data<std::int64_t>()[0] = 0;
  trace.shared.offsets.data<std::int64_t>()[1] = p.sizes.tokens;
  route(call, p, trace);
  if (p.exchange != nullptr) {
    trace.arrived = dispatch_tokens(call, p, trace, codes_travel(p, backward_follows));
  }
  permute(call, p, trace);
  if (trace.arrived && !p.places(DROPLESS_WEIGHTS_INPUT)) trace.arrived->forget_rows();
  const dropless_tensor* zones = trace.routed.offsets.get();
  const bool codes = trace.row_scales.get()->rank > 0;
  run_experts(call, p, p.gate_up(zones), p.down(zones),
              operand(*trace.rows, codes ? trace.row_scales.get() : nullptr),
              p.places(DROPLESS_WEIGHTS_EARLY) ? trace.row_weights.get() : nullptr, trace.routed);
  if (p.has_shared()) {
    const dropless_tensor* all = trace.shared.offsets.get();
    const dropless_tensor x = describe(p.x);
    run_experts(call, p, p.shared_gate_up(all), p.shared_down(all), operand(x, nullptr), nullptr,
                trace.shared);
    trace.shared_gate = gate_values(call.threads(), p);
  }
  return trace;
}

void write_output(Call& call, const LayerProblem& p, const LayerTrace& trace, const Tensor& y) {
  const dropless_tensor output = describe(y);
  const Buffer routed(p.has_shared() ? DROPLESS_FP32 : p.x.dtype,
                      {p.has_shared() ? p.sizes.tokens : 0, p.sizes.hidden});
  const dropless_tensor* const sums = p.has_shared() ? routed.get() : &output;
  if (p.exchange != nullptr) {
    combine_tokens(call, p, trace, *sums);
  } else {
    dropless_unpermute_args args = {};
    args.row_map = trace.row_map.get();
    args.rows = trace.routed.out.get();
    args.weights = p.places(DROPLESS_WEIGHTS_LATE) ? trace.weights.get() : nullptr;
    args.y = sums;
    unpermute_forward(call, args);
  }
  if (p.has_shared()) {
    const float* gate = trace.shared_gate.empty() ? nullptr : trace.shared_gate.data();
    add_parts(call.threads(), {{view(routed)}, {view(trace.shared.out), gate}}, y);
  }
}

void layer_forward(Call& call, dropless_layer_args& args) {
  exchange::Handle* const ranks = ranks_of(args.exchange);
  LayerProblem p = {};
  Tensor y, ids, counts;
  bool backward_follows = false;
  agree_on_ranks(ranks, [&] {
    p = read_layer(args);
    const LayerSizes& n = p.sizes;
    y = tensor(args.y, "y", {p.x.dtype}, {n.tokens, n.hidden});
    ids = tensor(args.ids, "ids", integers, {n.tokens, n.top_k});
    counts = tensor(args.tokens_per_expert, "tokens_per_expert", {DROPLESS_I64}, {n.experts});
    backward_follows = args.keep != 0 && p.settings.recompute == 0;
    return layer_terms(p, LayerPass::forward, codes_travel(p, backward_follows), p.x.dtype);
  });

  const LayerSizes& n = p.sizes;
  auto state = std::make_unique<LayerState>();
  state->tokens = n.tokens;
  state->hidden = n.hidden;
  run_on_ranks(ranks, [&] {
    Call inner(ranks == nullptr ? call.threads() : ranks->threads(call.threads()));
    LayerTrace trace = run_layer(inner, p, backward_follows);
    write_output(inner, p, trace, y);
    for (Index t = 0; t < n.tokens; ++t) {
      for (Index j = 0; j < n.top_k; ++j) {
        ids.store_integer(trace.ids.data<std::int64_t>()[t * n.top_k + j], t, j);
      }
    }
    for (Index e = 0; e < n.experts; ++e) {
      counts.as<std::int64_t>(e) = trace.counts.data<std::int64_t>()[e];
    }
    if (backward_follows) state->trace = std::move(trace);
  });
  args.saved = nullptr;
  if (args.keep != 0) {
    state->ranks = ranks;
    state->plans = ranks == nullptr ? 0 : ranks->plans();
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
