// SPDX-License-Identifier: Apache-2.0
// The layer's bound, forward and backward: the order of the stages.
#include "tolerances/layer.h"

#include <cmath>

#include "tolerances/constants.h"
#include "tolerances/layer_experts.h"
#include "tolerances/layer_routing.h"
#include "tolerances/routing.h"

namespace dropless::tolerances {

namespace {

using namespace constants;

std::size_t elements(Index rows, Index columns) {
  return static_cast<std::size_t>(rows * columns);
}

Experts routed_experts(const LayerCall& call) {
  const LayerModel& m = call.model;
  return {call,
          call.settings.route->num_experts,
          m.hidden,
          m.intermediate,
          m.gate_up,
          m.gate_up_bias,
          m.down,
          m.down_bias,
          call.rows.offsets,
          call.rows.counts};
}

// The shared expert: one group that holds every token.
struct SharedGroup {
  std::vector<Index> offsets, counts;
  explicit SharedGroup(Index tokens) : offsets{0, tokens}, counts{tokens} {}
};

Experts shared_expert(const LayerCall& call, const SharedGroup& group) {
  const LayerModel& m = call.model;
  return {call,          1,  m.hidden,      m.shared_intermediate, m.shared_gate_up, {},
          m.shared_down, {}, group.offsets, group.counts};
}

// Row r of the permuted order belongs to this pair, -1 for padding.
Index pair_of(const LayerCall& call, Index row) {
  return call.rows.source[static_cast<std::size_t>(row)];
}

Index row_count(const LayerCall& call) {
  return call.rows.offsets.back();
}

Approximate router_logits(const LayerCall& call) {
  const Index hidden = call.model.hidden, experts = call.settings.route->num_experts;
  const Approximate x(call.x), w(call.model.router_weight);
  Approximate logits(elements(call.tokens, experts));
  // Declared bf16 partials are those of the grouped products (LAYER-1a).
  dropless_profile profile = call.profile;
  profile.partials = DROPLESS_PARTIALS_FP32;
  multiply(profile, call.router_operands, {call.tokens, hidden, experts}, view(x, hidden),
           view(w, hidden).transposed(), call.model.router_bias, logits, 0);
  store(call.settings.logits_dtype, logits, Kept::in_format);
  return logits;
}

// Row weights [N] from weights [T,K].
Approximate row_weights_of(const LayerCall& call, const Approximate& weights) {
  Approximate rows(static_cast<std::size_t>(row_count(call)));
  for (Index r = 0; r < row_count(call); ++r) {
    if (pair_of(call, r) < 0) continue;
    set(rows, static_cast<std::size_t>(r), at(weights, static_cast<std::size_t>(pair_of(call, r))));
  }
  return rows;
}

// Element (r, h) of x in permuted order.
double permuted_x(const LayerCall& call, Index row, Index h) {
  const Index token = pair_of(call, row) / call.settings.route->top_k;
  return call.x[elements(token, call.model.hidden) + static_cast<std::size_t>(h)];
}

Approximate permuted_rows(const LayerCall& call, const Approximate& row_weights) {
  const Index hidden = call.model.hidden;
  const bool weighted = call.settings.weight_placement == DROPLESS_WEIGHTS_INPUT;
  Approximate rows(elements(row_count(call), hidden));
  for (Index r = 0; r < row_count(call); ++r) {
    if (pair_of(call, r) < 0) continue;
    for (Index h = 0; h < hidden; ++h) {
      Near value{permuted_x(call, r, h), 0};
      if (weighted) value = value * at(row_weights, static_cast<std::size_t>(r));
      set(rows, elements(r, hidden) + static_cast<std::size_t>(h), value);
    }
  }
  if (weighted) store(call.storage, rows);
  return rows;
}

// Rows of the permuted order that belong to each token.
std::vector<std::vector<Index>> rows_of_tokens(const LayerCall& call) {
  std::vector<std::vector<Index>> rows(static_cast<std::size_t>(call.tokens));
  for (Index r = 0; r < row_count(call); ++r) {
    if (pair_of(call, r) < 0) continue;
    rows[static_cast<std::size_t>(pair_of(call, r) / call.settings.route->top_k)].push_back(r);
  }
  return rows;
}

// Error of the sum of a token's rows. Over ranks it is a combine, with the declared roundings of
// partial sums (EXCHANGE-6c); flat rows of a system that rounds once per node are themselves sums
// of a rank in the format of the rows.
double row_sum_error(const LayerCall& call, Index rows, double gauge) {
  const double plain = sum(rows, gauge);
  if (!call.over_ranks) return plain;
  const int layout = call.profile.dispatch_layout;
  const bool flat = layout == DROPLESS_DISPATCH_FLAT || layout == DROPLESS_DISPATCH_UNORDERED_FLAT;
  double error = combine(call.profile, call.storage, rows, gauge);
  if (flat && call.profile.combine_rounding == DROPLESS_COMBINE_ROUNDS_PER_NODE) {
    error += combine(call.profile, call.storage, rows, gauge + error) - plain;
  }
  return error;
}

// LAYER-4d: where the combine adds expert-major rows as they are, a late weight multiplies the row
// before it, and the product is a tensor of the layer's type.
bool weighted_rows_are_stored(const LayerCall& call) {
  const int layout = call.profile.dispatch_layout;
  return call.over_ranks && call.settings.weight_placement == DROPLESS_WEIGHTS_LATE &&
         layout != DROPLESS_DISPATCH_FLAT && layout != DROPLESS_DISPATCH_UNORDERED_FLAT &&
         call.profile.combine_weighting == DROPLESS_COMBINE_UNWEIGHTED;
}

// x[row,h] * weight of the row.
Approximate weighted_rows(const LayerCall& call, const Approximate& x,
                          const Approximate& row_weights) {
  Approximate out(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    set(out, i, at(row_weights, i / static_cast<std::size_t>(call.model.hidden)) * at(x, i));
  }
  maybe_store(call.storage, out);
  return out;
}

// sum over a token's rows of factor(row) * x[row,h], in fp32.
template <class Factor>
Approximate sum_rows(const LayerCall& call, const Approximate& x, Factor factor) {
  const Index hidden = call.model.hidden;
  const auto rows = rows_of_tokens(call);
  Approximate out(elements(call.tokens, hidden));
  for (std::size_t t = 0; t < rows.size(); ++t) {
    for (std::size_t h = 0; h < static_cast<std::size_t>(hidden); ++h) {
      Near total;
      double gauge = 0;
      for (const Index r : rows[t]) {
        const Near term = factor(r) * at(x, elements(r, hidden) + h);
        total = total + term;
        gauge += std::abs(term.value) + term.error;
      }
      total.error += row_sum_error(call, static_cast<Index>(rows[t].size()), gauge);
      set(out, t * static_cast<std::size_t>(hidden) + h, total);
    }
  }
  settle(out);
  return out;
}

// to += from, one rounding to fp32.
void add(Approximate& to, const Approximate& from) {
  for (std::size_t i = 0; i < to.size(); ++i) {
    const Near total = at(to, i) + at(from, i);
    const double size = std::abs(to.value[i]) + std::abs(from.value[i]) + total.error;
    set(to, i, {total.value, total.error + u * size});
  }
  settle(to);
}

// sigmoid(x . wg) for every token; 1 without a gate.
Approximate shared_gates(const LayerCall& call) {
  Approximate gates(static_cast<std::size_t>(call.tokens));
  const Index hidden = call.model.hidden;
  const Approximate x(call.x), w(call.model.shared_gate);
  for (Index t = 0; t < call.tokens; ++t) {
    Near gate{1, 0};
    if (!call.model.shared_gate.empty()) {
      Approximate z(1);
      multiply(call.profile, call.router_operands, {1, hidden, 1}, view(x, hidden, t),
               view(w, hidden).transposed(), {}, z, 0);
      maybe_store(call.storage, z);  // logit and gate pass through tensors of the layer's type
      const double s = 1 / (1 + std::exp(-z.value[0]));
      Approximate kept(1);
      const double rounding =
          pointwise_score * u + fast_exponential_error(call.profile, z.value[0]);
      set(kept, 0, {s, 0.25 * z.error[0] + s * rounding});
      maybe_store(call.storage, kept);
      gate = at(kept, 0);
    }
    set(gates, static_cast<std::size_t>(t), gate);
  }
  return gates;
}

// x[t,h] * factor[t].
Approximate scaled_rows(const Approximate& x, const Approximate& factor) {
  Approximate out(x.size());
  const std::size_t columns = factor.size() == 0 ? 1 : x.size() / factor.size();
  for (std::size_t i = 0; i < x.size(); ++i) {
    Near product = at(x, i) * at(factor, i / columns);
    product.error += u * (std::abs(product.value) + product.error);
    set(out, i, product);
  }
  settle(out);
  return out;
}

}  // namespace

LayerForward layer_forward(const LayerCall& call) {
  LayerForward f;
  f.logits = router_logits(call);
  f.weights = layer_weights(call, f.logits);
  const Approximate row_weights = row_weights_of(call, f.weights);
  f.rows = permuted_rows(call, row_weights);
  const bool early = call.settings.weight_placement == DROPLESS_WEIGHTS_EARLY;
  const bool late = call.settings.weight_placement == DROPLESS_WEIGHTS_LATE;
  f.routed = experts_forward(routed_experts(call), f.rows, early ? row_weights : Approximate());
  const auto unweighted = [](Index) { return Near{1, 0}; };
  if (weighted_rows_are_stored(call)) {
    f.y = sum_rows(call, weighted_rows(call, f.routed.out, row_weights), unweighted);
  } else {
    f.y = sum_rows(call, f.routed.out, [&](Index r) {
      return late ? at(row_weights, static_cast<std::size_t>(r)) : Near{1, 0};
    });
  }
  if (call.model.shared_intermediate == 0) return f;

  const SharedGroup group(call.tokens);
  f.shared = experts_forward(shared_expert(call, group), Approximate(call.x), {});
  f.shared_gate = shared_gates(call);
  Approximate shared = scaled_rows(f.shared.out, f.shared_gate);
  // Routed and shared part are often tensors of their own before they are added.
  if (call.storage != DROPLESS_FP32) {
    maybe_store(call.storage, f.y);
    maybe_store(call.storage, shared);
  }
  add(f.y, shared);
  return f;
}

namespace {

// From d_y through combine, experts and permutation; d_weights [T,K].
struct RoutedBackward {
  ExpertsBackward experts;
  Approximate d_x, d_weights;
};

RoutedBackward routed_backward(const LayerCall& call, const LayerForward& f, Input d_y) {
  const Index hidden = call.model.hidden, k = call.settings.route->top_k;
  const int placement = call.settings.weight_placement;
  const Approximate row_weights = row_weights_of(call, f.weights);
  const Approximate upstream(d_y);
  RoutedBackward result;
  result.d_weights = Approximate(f.weights.size());

  Approximate d_rows(elements(row_count(call), hidden));
  for (Index r = 0; r < row_count(call); ++r) {
    if (pair_of(call, r) < 0) continue;
    const auto pair = static_cast<std::size_t>(pair_of(call, r));
    const Index token = pair_of(call, r) / k;
    const bool late = placement == DROPLESS_WEIGHTS_LATE;
    const Near w = late ? at(row_weights, static_cast<std::size_t>(r)) : Near{1, 0};
    for (std::size_t h = 0; h < static_cast<std::size_t>(hidden); ++h) {
      set(d_rows, elements(r, hidden) + h, w * at(upstream, elements(token, hidden) + h));
    }
    if (late) {
      set(result.d_weights, pair,
          dot(static_cast<std::size_t>(hidden), view(upstream, hidden, token),
              view(f.routed.out, hidden, r)));
    }
  }
  store(call.storage, d_rows);
  const bool early = placement == DROPLESS_WEIGHTS_EARLY;
  result.experts = experts_backward(routed_experts(call), f.rows,
                                    early ? row_weights : Approximate(), f.routed, d_rows);
  const Approximate& d_in = result.experts.d_rows;
  for (Index r = 0; r < row_count(call); ++r) {
    if (pair_of(call, r) < 0 || placement == DROPLESS_WEIGHTS_LATE) continue;
    Near d_w;
    if (early) {
      d_w = at(result.experts.d_row_weights, static_cast<std::size_t>(r));
    } else {
      Approximate x_row(static_cast<std::size_t>(hidden));
      for (Index h = 0; h < hidden; ++h) {
        x_row.value[static_cast<std::size_t>(h)] = permuted_x(call, r, h);
      }
      d_w = dot(static_cast<std::size_t>(hidden), view(d_in, hidden, r), view(x_row, hidden));
    }
    set(result.d_weights, static_cast<std::size_t>(pair_of(call, r)), d_w);
  }
  const bool input = placement == DROPLESS_WEIGHTS_INPUT;
  if (input) {
    // Rows scaled on the way back may be stored once more.
    Approximate scaled = scaled_rows(d_in, row_weights);
    if (call.storage != DROPLESS_FP32) maybe_store(call.storage, scaled);
    result.d_x = sum_rows(call, scaled, [](Index) { return Near{1, 0}; });
  } else {
    result.d_x = sum_rows(call, d_in, [](Index) { return Near{1, 0}; });
  }
  return result;
}

void router_backward(const LayerCall& call, const LayerForward& f, const Approximate& d_weights,
                     Input d_losses, LayerBackward& b) {
  const Index hidden = call.model.hidden, experts = call.settings.route->num_experts;
  LayerRoutingBackward routing = layer_routing_backward(call, f.logits, d_weights);
  Approximate& d_logits = routing.d_logits;
  if (!d_losses.empty()) add(d_logits, Approximate(d_losses));
  // The gradient of a bf16 tensor is often a bf16 tensor.
  maybe_store(call.settings.logits_dtype, d_logits);
  const Approximate w(call.model.router_weight), x(call.x);
  Approximate d_x(call.x.size());
  multiply(call.profile, call.router_operands, {call.tokens, experts, hidden},
           view(d_logits, experts), view(w, hidden), {}, d_x, 0);
  if (call.storage != DROPLESS_FP32) maybe_store(call.storage, d_x);
  add(b.d_x, d_x);
  b.router_weight = Approximate(call.model.router_weight.size());
  multiply(call.profile, call.router_operands, {experts, call.tokens, hidden},
           view(d_logits, experts).transposed(), view(x, hidden), {}, b.router_weight, 0);
  b.router_bias = Approximate(call.model.router_bias.size());
  if (b.router_bias.size() != 0) {
    add_rows(call.tokens, experts, view(d_logits, experts), b.router_bias, 0);
  }
  b.expert_scale = std::move(routing.expert_scale);
}

void shared_backward(const LayerCall& call, const LayerForward& f, Input d_y, LayerBackward& b) {
  const Index hidden = call.model.hidden;
  const SharedGroup group(call.tokens);
  const Approximate upstream(d_y), x(call.x);
  Approximate d_out = scaled_rows(upstream, f.shared_gate);
  store(call.storage, d_out);
  ExpertsBackward shared = experts_backward(shared_expert(call, group), x, {}, f.shared, d_out);
  if (call.storage != DROPLESS_FP32) maybe_store(call.storage, b.d_x);
  add(b.d_x, shared.d_rows);
  b.shared_gate_up = std::move(shared.gate_up);
  b.shared_down = std::move(shared.down);
  b.shared_gate = Approximate(call.model.shared_gate.size());
  if (b.shared_gate.size() == 0) return;

  Approximate d_z(static_cast<std::size_t>(call.tokens));
  for (Index t = 0; t < call.tokens; ++t) {
    const Near d_gate = dot(static_cast<std::size_t>(hidden), view(upstream, hidden, t),
                            view(f.shared.out, hidden, t));
    const Near gate = at(f.shared_gate, static_cast<std::size_t>(t));
    // s (1 - s) from a rounded s: its error, and three roundings.
    Near slope = gate * Near{1 - gate.value, gate.error + u};
    slope.error += 3 * u * (std::abs(slope.value) + slope.error);
    set(d_z, static_cast<std::size_t>(t), d_gate * slope);
  }
  maybe_store(call.storage, d_z);
  const Approximate w(call.model.shared_gate);
  Approximate d_x(call.x.size());
  multiply(call.profile, call.router_operands, {call.tokens, 1, hidden}, view(d_z, 1),
           view(w, hidden), {}, d_x, 0);
  if (call.storage != DROPLESS_FP32) maybe_store(call.storage, d_x);
  add(b.d_x, d_x);
  multiply(call.profile, call.router_operands, {1, call.tokens, hidden}, view(d_z, 1).transposed(),
           view(x, hidden), {}, b.shared_gate, 0);
}

}  // namespace

LayerBackward layer_backward(const LayerCall& call, const LayerForward& forward, Input d_y,
                             Input d_logits) {
  RoutedBackward routed = routed_backward(call, forward, d_y);
  LayerBackward b;
  b.d_x = std::move(routed.d_x);
  if (call.storage != DROPLESS_FP32) maybe_store(call.storage, b.d_x);
  b.gate_up = std::move(routed.experts.gate_up);
  b.gate_up_bias = std::move(routed.experts.gate_up_bias);
  b.down = std::move(routed.experts.down);
  b.down_bias = std::move(routed.experts.down_bias);
  router_backward(call, forward, routed.d_weights, d_logits, b);
  if (call.model.shared_intermediate > 0) shared_backward(call, forward, d_y, b);
  return b;
}

}  // namespace dropless::tolerances
