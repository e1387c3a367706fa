// SPDX-License-Identifier: Apache-2.0
// Rows of the layer between ranks: EXCHANGE-1 to 7, 13. Gradients cross in fp32, rows and sums in
// the type of x or in fp32, so that nothing is rounded that one rank would not round, unless the
// handle's profile declares it.
#include "optimized/cpu/layer_exchange.h"

#include "optimized/cpu/exchange/operations.h"
#include "optimized/cpu/operations.h"
#include "optimized/cpu/scales.h"

namespace dropless::cpu {
namespace {

const exchange::Choices& choices(const LayerProblem& p) {
  return p.ranks->group.choices;
}

// [N,1] as [N].
dropless_tensor column(const Buffer& buffer) {
  return describe(buffer.data<std::byte>(), buffer.get()->dtype, {buffer.get()->shape[0]});
}

struct Zoned {
  Buffer counts, offsets;  // [L], [L+1]
  Index rows;
};

Zoned plan_tokens(Call& call, const LayerProblem& p, const LayerTrace& trace) {
  const Index local = p.sizes.local_experts;
  Zoned zoned{Buffer(DROPLESS_I64, {local}), Buffer(DROPLESS_I64, {local + 1}), 0};
  const Buffer sources(DROPLESS_I64, {p.ranks->ranks()}), total(DROPLESS_I64, {1});
  const Buffer demand(DROPLESS_I64, {1});
  dropless_exchange_plan_args args = {};
  args.exchange = p.exchange;
  args.ids = trace.ids.get();
  args.tokens_per_local_expert = zoned.counts.get();
  args.offsets = zoned.offsets.get();
  args.rows_per_source = sources.get();
  args.total_rows = total.get();
  args.demand = demand.get();
  args.last_step = 1;  // a layer call has no step: it looks for overflow every time (EXCHANGE-11)
  exchange::plan(call, args);
  zoned.rows = total.data<std::int64_t>()[0];
  return zoned;
}

struct Codes {
  Buffer values, scales;
};

Codes quantize_tokens(Call& call, const LayerProblem& p, const LayerTrace& trace) {
  const LayerSizes& n = p.sizes;
  Codes codes{Buffer(DROPLESS_E4M3, {n.tokens, n.hidden}),
              Buffer(DROPLESS_E8M0, {n.tokens, ceil_div(n.hidden, DROPLESS_BLOCK_SIZE)})};
  const dropless_tensor x = describe(p.x);
  dropless_quantize_args args = {};
  args.x = &x;
  args.offsets = trace.shared.offsets.get();
  args.row_codes = codes.values.get();
  args.row_scales = codes.scales.get();
  quantize(call, args);
  return codes;
}

// Expert-major rows as tokens with one expert; padding has none.
void name_experts(const Zoned& zoned, const Buffer& ids) {
  const auto* counts = zoned.counts.data<std::int64_t>();
  const auto* offsets = zoned.offsets.data<std::int64_t>();
  auto* out = ids.data<std::int32_t>();
  std::fill_n(out, zoned.rows, -1);
  for (Index e = 0; e < zoned.counts.size(); ++e) {
    std::fill_n(out + offsets[e], counts[e], static_cast<std::int32_t>(e));
  }
}

// What this rank's experts made of each row that arrived: the sum over its experts, weighted where
// that is left to this rank.
Buffer sum_experts(Call& call, const LayerProblem& p, const LayerTrace& trace) {
  const exchange::Choices& c = choices(p);
  const bool weighs = p.places(DROPLESS_WEIGHTS_LATE) && !exchange_weighs(p);
  const bool one_row_as_it_is = c.expert_major && !weighs;
  const bool rounds = !c.expert_major && c.rounding == DROPLESS_COMBINE_ROUNDS_PER_RANK;
  const Arrived& a = *trace.arrived;
  Buffer sums(one_row_as_it_is || rounds ? p.x.dtype : DROPLESS_FP32,
              {a.x.get()->shape[0], p.sizes.hidden});
  dropless_unpermute_args args = {};
  args.row_map = trace.row_map.get();
  args.rows = trace.routed.out.get();
  args.weights = weighs ? a.weights.get() : nullptr;
  args.y = sums.get();
  unpermute_forward(call, args);
  return sums;
}

// The weights of a weighted combine: 1 where they are placed elsewhere.
Buffer combine_weights(const LayerProblem& p, const Arrived& arrived) {
  const Index rows = arrived.x.get()->shape[0];
  Buffer weights(DROPLESS_FP32, {rows, 1});
  if (exchange_weighs(p)) {
    std::copy_n(arrived.weights.data<float>(), rows, weights.data<float>());
  } else {
    std::fill_n(weights.data<float>(), rows, 1.0F);
  }
  return weights;
}

}  // namespace

exchange::Handle* ranks_of(dropless_exchange* exchange) {
  return exchange == nullptr ? nullptr : &exchange::handle_of(exchange);
}

std::vector<exchange::Term> layer_terms(const LayerProblem& p, LayerPass pass, bool codes,
                                        dropless_dtype rows) {
  return {{"forward or backward, recomputed or not", static_cast<std::int64_t>(pass)},
          {"hidden", p.sizes.hidden},
          {"the type of x", p.x.dtype},
          {"the type of y or d_y", rows},
          {"weight_placement", p.settings.weight_placement},
          {"recipe", p.settings.recipe},
          {"keep or recompute", codes ? 1 : 0}};
}

bool exchange_weighs(const LayerProblem& p) {
  return p.exchange != nullptr && choices(p).weighted && p.places(DROPLESS_WEIGHTS_LATE);
}

bool codes_travel(const LayerProblem& p, bool backward_follows) {
  return p.exchange != nullptr && p.mxfp8() && !backward_follows &&
         !p.places(DROPLESS_WEIGHTS_INPUT) &&
         ceil_div(p.sizes.hidden, DROPLESS_BLOCK_SIZE) <= p.ranks->group.scale_bytes;
}

Arrived dispatch_tokens(Call& call, const LayerProblem& p, const LayerTrace& trace, bool codes) {
  Zoned zoned = plan_tokens(call, p, trace);
  const bool expert_major = choices(p).expert_major;
  const Index rows = zoned.rows, top_k = expert_major ? 1 : p.sizes.top_k;
  Arrived a;
  a.x = Buffer(codes ? DROPLESS_E4M3 : p.x.dtype, {rows, p.sizes.hidden});
  a.ids = Buffer(DROPLESS_I32, {rows, top_k});
  a.weights = Buffer(DROPLESS_FP32, {rows, top_k});
  const Codes source = codes ? quantize_tokens(call, p, trace) : Codes{};
  const dropless_tensor x = describe(p.x), row_weights = column(a.weights);
  dropless_exchange_dispatch_args args = {};
  args.exchange = p.exchange;
  args.x = codes ? source.values.get() : &x;
  args.weights = trace.weights.get();
  args.rows = a.x.get();
  args.row_weights = expert_major ? &row_weights : a.weights.get();
  args.row_ids = expert_major ? nullptr : a.ids.get();
  if (codes) {
    a.scales = Buffer(DROPLESS_E8M0, {rows, source.scales.get()->shape[1]});
    args.scales = source.scales.get();
    args.row_scales = a.scales.get();
  }
  exchange::dispatch(call, args);
  if (expert_major) name_experts(zoned, a.ids);
  a.counts = std::move(zoned.counts);
  return a;
}

void combine_tokens(Call& call, const LayerProblem& p, const LayerTrace& trace,
                    const dropless_tensor& y) {
  const Buffer sums = sum_experts(call, p, trace);
  const bool weighted = choices(p).weighted;
  const Buffer weights = weighted ? combine_weights(p, *trace.arrived) : Buffer();
  const dropless_tensor row_weights = column(weights);
  dropless_exchange_combine_args args = {};
  args.exchange = p.exchange;
  args.rows = sums.get();
  args.row_weights = weighted ? &row_weights : nullptr;
  args.y = &y;
  exchange::combine(call, args);
}

ArrivedGradient combine_tokens_backward(Call& call, const LayerProblem& p, const LayerTrace& trace,
                                        const dropless_tensor& d_y) {
  const Index rows = trace.arrived->x.get()->shape[0];
  const bool weighted = choices(p).weighted, weighs = exchange_weighs(p);
  ArrivedGradient gradient;
  // Weighted gradients of outputs are stored like those of one rank.
  gradient.rows = Buffer(weighs ? p.x.dtype : d_y.dtype, {rows, p.sizes.hidden});
  dropless_exchange_combine_backward_args args = {};
  args.exchange = p.exchange;
  args.d_y = &d_y;
  args.d_rows = gradient.rows.get();
  const Buffer sums = weighted ? sum_experts(call, p, trace) : Buffer();
  const Buffer weights = weighted ? combine_weights(p, *trace.arrived) : Buffer();
  if (weighted) {
    gradient.weights = Buffer(DROPLESS_FP32, {rows, 1});
    args.rows = sums.get();
  }
  const dropless_tensor row_weights = column(weights), d_row_weights = column(gradient.weights);
  args.row_weights = weighted ? &row_weights : nullptr;
  args.d_row_weights = weighted ? &d_row_weights : nullptr;
  exchange::combine_backward(call, args);
  return gradient;
}

void dispatch_tokens_backward(Call& call, const LayerProblem& p, const Buffer& d_rows,
                              const Buffer& d_row_weights, const Buffer& d_x,
                              const Buffer& d_weights) {
  const dropless_tensor of_rows = column(d_row_weights);
  dropless_exchange_dispatch_backward_args args = {};
  args.exchange = p.exchange;
  args.d_rows = d_rows.get();
  args.d_row_weights = choices(p).expert_major ? &of_rows : d_row_weights.get();
  args.d_x = d_x.get();
  args.d_weights = d_weights.get();
  exchange::dispatch_backward(call, args);
}

}  // namespace dropless::cpu
