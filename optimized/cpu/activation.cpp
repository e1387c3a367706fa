// SPDX-License-Identifier: Apache-2.0
// Activation between the two expert products, forward and backward, in double with one rounding.
// ACTIVATION-1 to 5.
#include "optimized/cpu/activation_points.h"
#include "optimized/cpu/operations.h"
#include "optimized/cpu/values.h"

namespace dropless::cpu {
namespace {

constexpr Index piece = 256;  // columns at a time

ActivationSettings read_settings(const dropless_activation_settings* given) {
  const dropless_activation_settings raw = read_struct(given, "settings");
  refuse_if(raw.kind < DROPLESS_SWIGLU || raw.kind > DROPLESS_RELU2, "kind: unknown");
  refuse_if(raw.gate_up_layout != DROPLESS_GATE_UP_CONCATENATED &&
                raw.gate_up_layout != DROPLESS_GATE_UP_INTERLEAVED,
            "gate_up_layout: unknown");
  return {raw.kind, raw.limit, raw.alpha, raw.offset,
          raw.gate_up_layout == DROPLESS_GATE_UP_INTERLEAVED};
}

// The zones of x, or one full zone without offsets.
Zones activation_zones(const dropless_tensor* offsets, const dropless_tensor* counts, Index rows) {
  refuse_if(offsets == nullptr && counts != nullptr, "counts: without offsets");
  return read_zones(offsets, counts, rows);
}

// Gate and up of columns [column, column + n) of one row (ACTIVATION-2).
struct Columns {
  Index gate, up, stride;
};
Columns columns_of(const ActivationSettings& s, Index width, Index column) {
  if (s.interleaved && s.gated()) return {2 * column, 2 * column + 1, 2};
  return {column, width + column, 1};
}

DROPLESS_INLINE void load_gate_up(const ActivationSettings& s, const Tensor& x, Index row,
                                  Index width, Index column, Index n, float* gate, float* up) {
  const Columns at = columns_of(s, width, column);
  const Index stride = at.stride * x.inner_stride();
  load_run(x.at(row, at.gate), x.dtype, stride, n, gate);
  if (s.gated()) load_run(x.at(row, at.up), x.dtype, stride, n, up);
}

void zero_columns(const Tensor& t, Index row) {
  const float zero = 0;
  for (Index j = 0; j < t.shape[1]; ++j) store_run(&zero, 1, t.at(row, j), t.dtype, 1);
}

// body(row) for the real rows, padding(row) for the others below offsets[E].
template <class Real, class Pad>
void for_rows(int threads, const Zones& zones, Index row_bytes, const Real& real, const Pad& pad) {
  for (Index g = 0; g < zones.groups(); ++g) {
    const Index first = zones.first(g);
    parallel_ranges(threads, zones.real(g) - first, rows_per_task(row_bytes),
                    [&](Index begin, Index end) { real(first + begin, first + end); });
    for (Index row = zones.real(g); row < zones.end(g); ++row) pad(row);
  }
}

}  // namespace

void activation_forward(Call& call, const dropless_activation_args& args) {
  const ActivationSettings s = read_settings(args.settings);
  const Tensor h = tensor(args.h, "h", floats, {any, any});
  const Index rows = h.shape[0], width = h.shape[1];
  const Tensor x = tensor(args.x, "x", floats, {rows, s.gated() ? 2 * width : width});
  const Tensor weights = optional_tensor(args.row_weights, "row_weights", {DROPLESS_FP32}, {rows});
  const Zones zones = activation_zones(args.offsets, args.counts, rows);

  const auto real = [&](Index begin, Index end) {
    with_simd([&]() DROPLESS_INLINE_LAMBDA {
      float gate[piece], up[piece] = {}, out[piece];
      for (Index row = begin; row < end; ++row) {
        const double weight = weights ? static_cast<double>(weights.as<float>(row)) : 1.0;
        for (Index column = 0; column < width; column += piece) {
          const Index n = std::min(piece, width - column);
          load_gate_up(s, x, row, width, column, n, gate, up);
          activate_run(s, gate, up, weight, n, out);
          store_run(out, n, h.at(row, column), h.dtype, h.inner_stride());
        }
      }
    });
  };
  for_rows(call.threads(), zones, width * 16, real, [&](Index row) { zero_columns(h, row); });
  call.ran_simd();
}

void activation_backward(Call& call, const dropless_activation_backward_args& args) {
  const ActivationSettings s = read_settings(args.settings);
  const Tensor dh = tensor(args.dh, "dh", floats, {any, any});
  const Index rows = dh.shape[0], width = dh.shape[1];
  const Index x_width = s.gated() ? 2 * width : width;
  const Tensor x = tensor(args.x, "x", floats, {rows, x_width});
  const Tensor weights = optional_tensor(args.row_weights, "row_weights", {DROPLESS_FP32}, {rows});
  const Tensor d_x = tensor(args.d_x, "d_x", floats, {rows, x_width});
  const Tensor d_weights =
      weights ? optional_tensor(args.d_row_weights, "d_row_weights", {DROPLESS_FP32}, {rows})
              : Tensor{};
  const Zones zones = activation_zones(args.offsets, args.counts, rows);

  const auto real = [&](Index begin, Index end) {
    with_simd([&]() DROPLESS_INLINE_LAMBDA {
      float gate[piece], up[piece] = {}, gradient[piece], d_gate[piece], d_up[piece];
      double products[piece];
      for (Index row = begin; row < end; ++row) {
        const double weight = weights ? static_cast<double>(weights.as<float>(row)) : 1.0;
        double dot = 0;
        for (Index column = 0; column < width; column += piece) {
          const Index n = std::min(piece, width - column);
          load_gate_up(s, x, row, width, column, n, gate, up);
          load_run(dh.at(row, column), dh.dtype, dh.inner_stride(), n, gradient);
          differentiate_run(s, gate, up, gradient, weight, n, d_gate, d_up, products);
          for (Index i = 0; d_weights && i < n; ++i) dot += products[i];
          const Columns at = columns_of(s, width, column);
          const Index stride = at.stride * d_x.inner_stride();
          store_run(d_gate, n, d_x.at(row, at.gate), d_x.dtype, stride);
          if (s.gated()) store_run(d_up, n, d_x.at(row, at.up), d_x.dtype, stride);
        }
        if (d_weights) d_weights.as<float>(row) = static_cast<float>(dot);
      }
    });
  };
  for_rows(call.threads(), zones, width * 24, real, [&](Index row) {
    zero_columns(d_x, row);
    if (d_weights) d_weights.as<float>(row) = 0;
  });
  call.ran_simd();
}

}  // namespace dropless::cpu
