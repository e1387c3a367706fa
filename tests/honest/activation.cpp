// SPDX-License-Identifier: Apache-2.0
// The activation in fp32: ACTIVATION-1 to 5 as a kernel writes them.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "tests/honest/arithmetic.h"

namespace dropless::honest {
namespace {

using faults::view;

struct Point {
  float h, d_gate, d_up;  // unweighted value, and its derivatives
  float factor = 1;       // of d_gate, applied last: 2 x alone may overflow (ACTIVATION-3)
};

float sigmoid(float x) {
  return 1 / (1 + std::exp(-x));
}

Point swiglu(float g, float u, bool quotient) {
  const float s = sigmoid(g), silu = quotient ? g / (1 + std::exp(-g)) : g * s;
  return {silu * u, s * (1 + g * (1 - s)) * u, silu};
}

Point clamped(float g, float u, const dropless_activation_settings& settings) {
  const auto limit = static_cast<float>(settings.limit), alpha = static_cast<float>(settings.alpha);
  // alpha * q may overflow, and infinity times a sigmoid of zero is NaN (ACTIVATION-3).
  const float q = std::min(g, limit), z = std::max(alpha * q, -1e4f), s = sigmoid(z);
  const float v = std::clamp(u, -limit, limit) + static_cast<float>(settings.offset);
  return {q * s * v, g > limit ? 0 : s * (1 + z * (1 - s)) * v, std::abs(u) > limit ? 0 : q * s};
}

Point geglu(float g, float u) {
  const auto c = static_cast<float>(std::sqrt(2 / std::numbers::pi));
  const float inner = std::clamp(g, -100.0f, 100.0f);  // tanh is +-1 long before
  const float t = std::tanh(c * (inner + 0.044715f * inner * inner * inner));
  const float slope =
      0.5f * (1 + t) + 0.5f * inner * (1 - t * t) * (c * (1 + 3 * 0.044715f * inner * inner));
  const float gelu = 0.5f * g * (1 + t);
  return {gelu * u, slope * u, gelu};
}

Point relu2(float x) {
  const float positive = std::max(x, 0.0f);
  return {positive * positive, positive, 0, 2};
}

struct Shape {
  dropless_activation_settings settings;
  Index width;
  bool quotient;

  [[nodiscard]] bool gated() const { return settings.kind != DROPLESS_RELU2; }
  [[nodiscard]] Index gate_column(Index i) const {
    return gated() && settings.gate_up_layout == DROPLESS_GATE_UP_INTERLEAVED ? 2 * i : i;
  }
  [[nodiscard]] Index up_column(Index i) const {
    return settings.gate_up_layout == DROPLESS_GATE_UP_INTERLEAVED ? 2 * i + 1 : width + i;
  }
  [[nodiscard]] Point at(float g, float u) const {
    switch (settings.kind) {
      case DROPLESS_SWIGLU:
        return swiglu(g, u, quotient);
      case DROPLESS_SWIGLU_CLAMPED:
        return clamped(g, u, settings);
      case DROPLESS_GEGLU_TANH:
        return geglu(g, u);
      default:
        return relu2(g);
    }
  }
};

// visit(row, element, gate, up, point) for the elements of real rows whose inputs are finite; what
// comes of NaN and infinities stays the reference's.
template <class Args, class Visit>
void each_point(const Args& a, const Shape& shape, Visit visit) {
  const TensorView x = view(a.x);
  for (const faults::Zone& zone : faults::zones_of(a.offsets, a.counts, x.shape(0))) {
    for (Index r = zone.first; r < zone.real_end; ++r) {
      for (Index i = 0; i < shape.width; ++i) {
        const auto g = static_cast<float>(x.load(r, shape.gate_column(i)));
        const float u = shape.gated() ? static_cast<float>(x.load(r, shape.up_column(i))) : 0;
        if (std::isfinite(g) && std::isfinite(u)) visit(r, i, shape.at(g, u));
      }
    }
  }
}

void forward(const dropless_activation_args& a, bool quotient) {
  const TensorView h = view(a.h);
  const Shape shape{completed(a.settings), h.shape(1), quotient};
  each_point(a, shape, [&](Index r, Index i, const Point& point) {
    const float weight =
        a.row_weights == nullptr ? 1 : static_cast<float>(view(a.row_weights).load(r));
    h.store(point.h * weight, r, i);
  });
}

void backward(const dropless_activation_backward_args& a, bool quotient) {
  const TensorView dh = view(a.dh), d_x = view(a.d_x);
  const Shape shape{completed(a.settings), dh.shape(1), quotient};
  std::vector<Floats> weight_terms(static_cast<std::size_t>(dh.shape(0)));
  each_point(a, shape, [&](Index r, Index i, const Point& point) {
    const auto d = static_cast<float>(dh.load(r, i));
    const float weight =
        a.row_weights == nullptr ? 1 : static_cast<float>(view(a.row_weights).load(r));
    weight_terms[static_cast<std::size_t>(r)].push_back(d * point.h);
    d_x.store(point.d_gate * (d * weight) * point.factor, r, shape.gate_column(i));
    if (shape.gated()) d_x.store(point.d_up * (d * weight), r, shape.up_column(i));
  });
  if (a.d_row_weights == nullptr) return;
  for (Index r = 0; r < dh.shape(0); ++r) {
    const Floats& terms = weight_terms[static_cast<std::size_t>(r)];
    if (static_cast<Index>(terms.size()) != shape.width || terms.empty()) continue;
    view(a.d_row_weights).store(sum_of(terms, Order::backwards), r);
  }
}

}  // namespace

void activate_in_fp32(Planted& variant, bool quotient) {
  variant.after<&Table::activation_forward>([quotient](auto& a) { forward(a, quotient); });
  variant.after<&Table::activation_backward>([quotient](auto& a) { backward(a, quotient); });
}

}  // namespace dropless::honest
