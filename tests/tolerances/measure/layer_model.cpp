// SPDX-License-Identifier: Apache-2.0
// A MoE layer in plain fp32.
#include "tests/tolerances/measure/layer_model.h"

#include <dropless/formats.h>

#include <cmath>

#include "reference/mxfp8.h"
#include "tests/tolerances/measure/routing_models.h"
#include "tolerances/interval.h"

namespace dropless::tolerances::models {

namespace {

std::size_t at(Index i) {
  return static_cast<std::size_t>(i);
}
Floats floats(const Doubles& x) {
  return {x.begin(), x.end()};
}
Doubles doubles(const Floats& x) {
  return {x.begin(), x.end()};
}

// Everything that the parts below share.
struct Run {
  const LayerData& data;
  const LayerMode& mode;

  [[nodiscard]] bool broken(LayerFault fault) const { return mode.fault == fault; }
  void store(Floats& x) const {
    if (!mode.stores) return;
    for (float& v : x) v = static_cast<float>(round_to(data.storage, v));
  }
  [[nodiscard]] bool mxfp8() const { return data.settings.recipe == DROPLESS_RECIPE_MXFP8; }

  // sum_k a[i,k] b[k,j] with strides, fp32.
  [[nodiscard]] float dot(const float* a, Index a_stride, const float* b, Index b_stride,
                          Index count) const {
    float sum = 0;
    for (Index i = 0; i < count; ++i) {
      const Index k = mode.backwards ? count - 1 - i : i;
      sum += a[k * a_stride] * b[k * b_stride];
    }
    return sum;
  }

  // What an expert GEMM sees of a tensor.
  [[nodiscard]] Floats operand(bool row_wise, dropless_dtype format, const Floats& x, Index columns,
                               const reference::Groups& groups) const {
    if (!mxfp8() || columns == 0) return x;
    reference::QuantizeSettings settings;
    settings.row_format = settings.column_format = format;
    const Index rows = static_cast<Index>(x.size()) / columns;
    const auto q = reference::quantize(settings, data.profile, rows, columns, doubles(x), groups);
    return floats(reference::dequantize(
        row_wise ? DROPLESS_BLOCKS_ROW_WISE : DROPLESS_BLOCKS_COLUMN_WISE, settings.scale_layout,
        format, rows, columns, row_wise ? q.row_codes : q.column_codes,
        row_wise ? q.row_scales : q.column_scales, groups));
  }
};

struct Set {
  Index num_experts, hidden, intermediate;
  const Doubles &gate_up, &gate_up_bias, &down, &down_bias;
  std::vector<Index> offsets, counts;
};

struct Linear {
  Index out, in;
  const Doubles &w, &bias;
};

Floats forward(const Run& run, const Set& set, const Linear& l, const Floats& x) {
  const reference::Groups rows{set.offsets, set.counts};
  const std::vector<Index> blocks = reference::weight_offsets(set.num_experts, l.out);
  const Floats a = run.operand(true, DROPLESS_E4M3, x, l.in, rows);
  const Floats w = run.operand(true, DROPLESS_E4M3, floats(l.w), l.in, {blocks, {}});
  Floats y(at(set.offsets.back() * l.out), 0.0f);
  for (Index e = 0; e < set.num_experts; ++e) {
    for (Index r = set.offsets[at(e)]; r < set.offsets[at(e)] + set.counts[at(e)]; ++r) {
      for (Index o = 0; o < l.out; ++o) {
        float sum = run.dot(&a[at(r * l.in)], 1, &w[at((e * l.out + o) * l.in)], 1, l.in);
        if (!l.bias.empty()) sum += static_cast<float>(l.bias[at(e * l.out + o)]);
        y[at(r * l.out + o)] = sum;
      }
    }
  }
  run.store(y);
  return y;
}

struct Backward {
  Floats d_x, d_w, d_bias;
};

Backward backward(const Run& run, const Set& set, const Linear& l, const Floats& x,
                  const Floats& dy) {
  const reference::Groups rows{set.offsets, set.counts};
  const std::vector<Index> blocks = reference::weight_offsets(set.num_experts, l.out);
  const dropless_dtype format = run.data.settings.gradient_format;
  const Floats dy_rows = run.operand(true, format, dy, l.out, rows);
  const Floats dy_columns = run.operand(false, format, dy, l.out, rows);
  const Floats x_columns = run.operand(false, DROPLESS_E4M3, x, l.in, rows);
  const Floats w = run.operand(false, DROPLESS_E4M3, floats(l.w), l.in, {blocks, {}});
  Backward result{Floats(x.size(), 0.0f), Floats(l.w.size(), 0.0f), Floats(l.bias.size(), 0.0f)};
  for (Index e = 0; e < set.num_experts; ++e) {
    const Index first = set.offsets[at(e)];
    Index count = set.counts[at(e)];
    for (Index r = first; r < first + count; ++r) {
      for (Index i = 0; i < l.in; ++i) {
        result.d_x[at(r * l.in + i)] =
            run.dot(&dy_rows[at(r * l.out)], 1, &w[at(e * l.out * l.in + i)], l.in, l.out);
      }
    }
    if (run.broken(LayerFault::wgrad_row_dropped) && count > 0) --count;
    if (count == 0) continue;
    for (Index o = 0; o < l.out; ++o) {
      for (Index i = 0; i < l.in; ++i) {
        result.d_w[at((e * l.out + o) * l.in + i)] =
            run.dot(&dy_columns[at(first * l.out + o)], l.out, &x_columns[at(first * l.in + i)],
                    l.in, count);
      }
      if (l.bias.empty()) continue;
      for (Index r = first; r < first + count; ++r) {
        result.d_bias[at(e * l.out + o)] += dy[at(r * l.out + o)];
      }
    }
  }
  run.store(result.d_x);
  return result;
}

struct Gate {
  float f, slope;  // h = f * v
  float v, v_slope;
};

Gate gate_of(const Run& run, float g, float u) {
  if (run.broken(LayerFault::gate_and_up_exchanged)) std::swap(g, u);
  const auto& a = run.data.activation;
  if (a.kind == DROPLESS_RELU2) {
    const float positive = std::max(g, 0.0f);
    return {positive * positive, 2 * positive, 1, 0};
  }
  float alpha = 1, q = g, v = u;
  bool q_held = false, v_held = false;
  if (a.kind == DROPLESS_SWIGLU_CLAMPED) {
    const auto limit = static_cast<float>(a.limit);
    alpha = static_cast<float>(a.alpha);
    q_held = g > limit, v_held = std::abs(u) > limit;
    q = std::min(g, limit);
    v = std::max(std::min(u, limit), -limit) + static_cast<float>(a.offset);
  }
  if (a.kind == DROPLESS_GEGLU_TANH) {
    const float c = 0.7978845608f, t = std::tanh(c * (g + 0.044715f * g * g * g));
    return {0.5f * g * (1 + t),
            0.5f * (1 + t) + 0.5f * g * (1 - t * t) * (c * (1 + 3 * 0.044715f * g * g)), u, 1};
  }
  const float s = 1 / (1 + std::exp(-alpha * q));
  return {q * s, q_held ? 0 : s * (1 + alpha * q * (1 - s)), v, v_held ? 0.0f : 1.0f};
}

struct Stages {
  Floats gate_up, hidden, out;
};

struct Columns {
  Index gate, up;
};
Columns columns(const Run& run, Index width, Index i) {
  if (run.data.activation.kind == DROPLESS_RELU2) return {i, -1};
  return run.data.activation.gate_up_layout == DROPLESS_GATE_UP_INTERLEAVED
             ? Columns{2 * i, 2 * i + 1}
             : Columns{i, width + i};
}
Index gate_up_width(const Run& run, Index width) {
  return run.data.activation.kind == DROPLESS_RELU2 ? width : 2 * width;
}

Gate gate_at(const Run& run, const Floats& gate_up, Index row, Index width, Index i) {
  const Columns c = columns(run, width, i);
  const Index begin = row * gate_up_width(run, width);
  return gate_of(run, gate_up[at(begin + c.gate)], c.up < 0 ? 0 : gate_up[at(begin + c.up)]);
}

Stages experts_forward(const Run& run, const Set& set, const Floats& rows, const Floats& early) {
  const Index width = set.intermediate;
  Stages s;
  s.gate_up = forward(run, set,
                      {gate_up_width(run, width), set.hidden, set.gate_up, set.gate_up_bias}, rows);
  s.hidden.assign(at(set.offsets.back() * width), 0.0f);
  for (std::size_t i = 0; i < s.hidden.size(); ++i) {
    const Index row = static_cast<Index>(i) / width;
    const Gate g = gate_at(run, s.gate_up, row, width, static_cast<Index>(i) % width);
    s.hidden[i] = g.f * g.v;
    if (!early.empty()) s.hidden[i] *= early[at(row)];
  }
  run.store(s.hidden);
  s.out = forward(run, set, {set.hidden, width, set.down, set.down_bias}, s.hidden);
  if (run.broken(LayerFault::rounded_twice)) {
    for (float& v : s.out) v = static_cast<float>(round_to(DROPLESS_E4M3, v));
  }
  return s;
}

struct SetBackward {
  Floats d_rows, d_early, gate_up, gate_up_bias, down, down_bias;
};

SetBackward experts_backward(const Run& run, const Set& set, const Floats& rows,
                             const Floats& early, const Stages& s, const Floats& d_out) {
  const Index width = set.intermediate, wide = gate_up_width(run, width);
  Backward down = backward(run, set, {set.hidden, width, set.down, set.down_bias}, s.hidden, d_out);
  Floats d_gate_up(s.gate_up.size(), 0.0f);
  SetBackward result;
  result.d_early.assign(early.size(), 0.0f);
  for (std::size_t i = 0; i < s.hidden.size(); ++i) {
    const Index row = static_cast<Index>(i) / width;
    const Columns c = columns(run, width, static_cast<Index>(i) % width);
    const Gate g = gate_at(run, s.gate_up, row, width, static_cast<Index>(i) % width);
    const float w = early.empty() ? 1 : early[at(row)];
    const float dh = down.d_x[i];
    const float f = run.broken(LayerFault::derivative_of_gate_only) ? g.slope : g.f;
    d_gate_up[at(row * wide + c.gate)] = dh * w * g.v * g.slope;
    if (c.up >= 0) d_gate_up[at(row * wide + c.up)] = dh * w * f * g.v_slope;
    if (!early.empty()) result.d_early[at(row)] += dh * (g.f * g.v);
  }
  run.store(d_gate_up);
  Backward up =
      backward(run, set, {wide, set.hidden, set.gate_up, set.gate_up_bias}, rows, d_gate_up);
  result.d_rows = std::move(up.d_x);
  result.gate_up = std::move(up.d_w);
  result.gate_up_bias = std::move(up.d_bias);
  result.down = std::move(down.d_w);
  result.down_bias = std::move(down.d_bias);
  return result;
}

// The router of all tokens, by the model of one token.
struct Router {
  Floats logits, weights;  // [T,E], [T,K]
};

Token token_of(const Run& run, const reference::LayerTrace& trace, const Floats& logits, Index t) {
  const Index experts = run.data.route.num_experts, k = run.data.route.top_k;
  Token token;
  for (Index e = 0; e < experts; ++e) token.logits.push_back(logits[at(t * experts + e)]);
  for (Index j = 0; j < k; ++j) token.ids.push_back(at(trace.routing.ids[at(t * k + j)]));
  return token;
}

Router router(const Run& run, const reference::LayerTrace& trace) {
  const LayerData& d = run.data;
  const Index experts = d.route.num_experts;
  const Floats x = floats(d.x), w = floats(d.router_weight);
  Router r;
  for (Index t = 0; t < d.tokens; ++t) {
    for (Index e = 0; e < experts; ++e) {
      float l = run.dot(&x[at(t * d.hidden)], 1, &w[at(e * d.hidden)], 1, d.hidden);
      if (!d.router_bias.empty()) l += static_cast<float>(d.router_bias[at(e)]);
      r.logits.push_back(static_cast<float>(round_to(d.settings.logits_dtype, l)));
    }
  }
  for (Index t = 0; t < d.tokens; ++t) {
    const Token token = token_of(run, trace, r.logits, t);
    const Weights weights = fp32_weights(d.route, d.profile, token, accurate());
    for (std::size_t j = 0; j < token.ids.size(); ++j) {
      float weight = static_cast<float>(weights.weights[j]);
      if (!d.expert_scale.empty()) weight *= static_cast<float>(d.expert_scale[token.ids[j]]);
      r.weights.push_back(run.broken(LayerFault::weights_forgotten) ? 1 : weight);
    }
  }
  return r;
}

float bf16(float x) {
  return Bf16::from_float(x).to_float();
}

}  // namespace

LayerResult fp32_layer(const LayerData& d, const reference::LayerTrace& trace,
                       const LayerMode& mode) {
  const Run run{d, mode};
  const Index hidden = d.hidden, k = d.route.top_k, experts = d.route.num_experts;
  const Index rows = trace.offsets.back();
  const Floats x = floats(d.x), d_y = floats(d.d_y);
  const Router r = router(run, trace);
  const bool late = d.settings.weight_placement == DROPLESS_WEIGHTS_LATE;
  const bool early = d.settings.weight_placement == DROPLESS_WEIGHTS_EARLY;
  const bool input = d.settings.weight_placement == DROPLESS_WEIGHTS_INPUT;

  Floats in(at(rows * hidden), 0.0f), row_weights(at(rows), 0.0f);
  for (Index row = 0; row < rows; ++row) {
    const Index pair = trace.source[at(row)];
    if (pair < 0) continue;
    row_weights[at(row)] = r.weights[at(pair)];
    for (Index h = 0; h < hidden; ++h) {
      in[at(row * hidden + h)] = x[at(pair / k * hidden + h)] * (input ? row_weights[at(row)] : 1);
    }
  }
  if (input) run.store(in);
  const Set set{experts, hidden,      d.intermediate, d.gate_up,   d.gate_up_bias,
                d.down,  d.down_bias, trace.offsets,  trace.counts};
  const Floats early_weights = early ? row_weights : Floats();
  const Stages routed = experts_forward(run, set, in, early_weights);

  LayerResult result;
  result.y.assign(x.size(), 0.0f);
  Index first_real = 0;
  while (first_real < rows && trace.source[at(first_real)] < 0) ++first_real;
  for (Index i = 0; i < rows; ++i) {
    const Index row = mode.backwards ? rows - 1 - i : i;
    const Index pair = trace.source[at(row)];
    if (pair < 0 || (run.broken(LayerFault::row_dropped) && row == first_real)) continue;
    for (Index h = 0; h < hidden; ++h) {
      float& y = result.y[at(pair / k * hidden + h)];
      y += (late ? row_weights[at(row)] : 1) * routed.out[at(row * hidden + h)];
      if (run.broken(LayerFault::bf16_combine)) y = bf16(y);
    }
  }

  Floats d_weights(r.weights.size(), 0.0f), d_rows(at(rows * hidden), 0.0f);
  for (Index row = 0; row < rows; ++row) {
    const Index pair = trace.source[at(row)];
    if (pair < 0) continue;
    const float* dy = &d_y[at(pair / k * hidden)];
    for (Index h = 0; h < hidden; ++h) {
      d_rows[at(row * hidden + h)] = (late ? row_weights[at(row)] : 1) * dy[h];
    }
    if (late) d_weights[at(pair)] = run.dot(dy, 1, &routed.out[at(row * hidden)], 1, hidden);
  }
  run.store(d_rows);
  SetBackward b = experts_backward(run, set, in, early_weights, routed, d_rows);
  result.d_x.assign(x.size(), 0.0f);
  for (Index row = 0; row < rows; ++row) {
    const Index pair = trace.source[at(row)];
    if (pair < 0) continue;
    if (early) d_weights[at(pair)] = b.d_early[at(row)];
    if (input) {
      d_weights[at(pair)] =
          run.dot(&b.d_rows[at(row * hidden)], 1, &x[at(pair / k * hidden)], 1, hidden);
    }
    for (Index h = 0; h < hidden; ++h) {
      result.d_x[at(pair / k * hidden + h)] +=
          b.d_rows[at(row * hidden + h)] * (input ? row_weights[at(row)] : 1);
    }
  }
  result.gate_up = std::move(b.gate_up), result.gate_up_bias = std::move(b.gate_up_bias);
  result.down = std::move(b.down), result.down_bias = std::move(b.down_bias);

  Floats d_logits;
  result.expert_scale.assign(d.expert_scale.size(), 0.0f);
  for (Index t = 0; t < d.tokens; ++t) {
    Token token = token_of(run, trace, r.logits, t);
    const Weights weights = fp32_weights(d.route, d.profile, token, accurate());
    for (std::size_t j = 0; j < token.ids.size(); ++j) {
      const std::size_t e = token.ids[j];
      float d_w = d_weights[at(t * k) + j];
      if (!d.expert_scale.empty()) {
        result.expert_scale[e] += d_w * static_cast<float>(weights.weights[j]);
        d_w *= static_cast<float>(d.expert_scale[e]);
      }
      token.d_weights.push_back(d_w);
    }
    for (const double v : fp32_gradient(d.route, token, accurate())) {
      d_logits.push_back(run.broken(LayerFault::router_gradient_forgotten) ? 0
                                                                           : static_cast<float>(v));
    }
  }
  const Floats router_weight = floats(d.router_weight);
  for (Index t = 0; t < d.tokens; ++t) {
    for (Index h = 0; h < hidden; ++h) {
      result.d_x[at(t * hidden + h)] +=
          run.dot(&d_logits[at(t * experts)], 1, &router_weight[at(h)], hidden, experts);
    }
  }
  for (Index e = 0; e < experts; ++e) {
    for (Index h = 0; h < hidden; ++h) {
      result.router_weight.push_back(
          d.tokens == 0 ? 0 : run.dot(&d_logits[at(e)], experts, &x[at(h)], hidden, d.tokens));
    }
    if (d.router_bias.empty()) continue;
    float sum = 0;
    for (Index t = 0; t < d.tokens; ++t) sum += d_logits[at(t * experts + e)];
    result.router_bias.push_back(sum);
  }
  if (d.shared_intermediate == 0) return result;

  const Doubles none;
  const Set shared_set{1,
                       hidden,
                       d.shared_intermediate,
                       d.shared_gate_up,
                       none,
                       d.shared_down,
                       none,
                       {0, d.tokens},
                       {d.tokens}};
  const Stages shared = experts_forward(run, shared_set, x, {});
  const Floats gate_weight = floats(d.shared_gate);
  Floats d_out(x.size()), d_z;
  const auto factor = static_cast<float>(d.route.scaling_factor);
  for (Index t = 0; t < d.tokens; ++t) {
    const float z = run.dot(&x[at(t * hidden)], 1, gate_weight.data(), 1, hidden);
    const float gate = run.broken(LayerFault::shared_gate_forgotten) ? 1 : 1 / (1 + std::exp(-z));
    const float scale = run.broken(LayerFault::scaling_on_shared) ? factor : 1;
    for (Index h = 0; h < hidden; ++h) {
      result.y[at(t * hidden + h)] += scale * gate * shared.out[at(t * hidden + h)];
      d_out[at(t * hidden + h)] = gate * d_y[at(t * hidden + h)];
    }
    const float d_gate = run.dot(&d_y[at(t * hidden)], 1, &shared.out[at(t * hidden)], 1, hidden);
    d_z.push_back(d_gate * gate * (1 - gate));
  }
  run.store(d_out);
  SetBackward sb = experts_backward(run, shared_set, x, {}, shared, d_out);
  for (std::size_t i = 0; i < result.d_x.size(); ++i) {
    result.d_x[i] += sb.d_rows[i] + d_z[i / at(hidden)] * gate_weight[i % at(hidden)];
  }
  result.shared_gate_up = std::move(sb.gate_up), result.shared_down = std::move(sb.down);
  for (Index h = 0; h < hidden; ++h) {
    result.shared_gate.push_back(run.dot(d_z.data(), 1, &x[at(h)], hidden, d.tokens));
  }
  return result;
}

}  // namespace dropless::tolerances::models
