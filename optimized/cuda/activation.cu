// SPDX-License-Identifier: Apache-2.0
// Activation between the two expert products, forward and backward, early weights, padding rows.
// ACTIVATION-1 to 6.
// The forward pass may quantise its output on the way (MXFP8-1 to 4).
//
// A block per row, eight columns a thread. Floors at 4.3 TB/s for 32768 rows, I = 2048, bf16:
// forward 268 MB read + 134 MB written, 94 us; backward 403 MB read + 268 MB written, 156 us.
#include "optimized/cuda/activation_points.cuh"
#include "optimized/cuda/device_refusal.h"
#include "optimized/cuda/mxfp8_elements.cuh"
#include "optimized/cuda/operations.h"
#include "optimized/cuda/zones.h"

namespace dropless::cuda {
namespace {

constexpr int most_threads = 256;
constexpr int columns_per_thread = 8;

struct Activation {
  ActivationSettings settings;
  Tensor x, weights, h;  // h: the output, or dh of the backward pass
  Tensor d_x, d_weights;
  Tensor codes, scales;  // of the quantised output: [N,I], [N, ceil(I / 32)]
  Zones zones;
  Index width;  // I
  bool aligned;
  const int* refusal;
};

enum class RowKind { real, padding, beyond };

// All threads of the block ask at once: which zone holds the row is seen by counting the zones that
// begin at or before it.
__device__ __forceinline__ RowKind kind_of_row(const Zones& zones, Index row) {
  if (zones.offsets == nullptr && zones.counts == nullptr) return RowKind::real;
  if (row >= zones.first(zones.groups)) return RowKind::beyond;
  if (zones.counts == nullptr) return RowKind::real;
  Index begun = 0;
  for (Index start = 0; start < zones.groups; start += blockDim.x) {
    const Index g = start + threadIdx.x;
    begun += __syncthreads_count(g < zones.groups && zones.first(g) <= row ? 1 : 0);
  }
  // Offsets that are refused may begin behind the row.
  return begun > 0 && row < zones.real_end(begun - 1) ? RowKind::real : RowKind::padding;
}

// Eight gates and eight up projections (ACTIVATION-2).
__device__ __forceinline__ void load_gate_up(const Activation& a, Index row, Index column,
                                             Eight& gate, Eight& up) {
  const Index left = a.width - column;
  if (!a.settings.gated()) {
    load_eight(a.x, row, column, left, a.aligned, gate);
    up = {};
  } else if (!a.settings.interleaved) {
    load_eight(a.x, row, column, left, a.aligned, gate);
    load_eight(a.x, row, a.width + column, left, a.aligned, up);
  } else {
    Eight first, second;
    load_eight(a.x, row, 2 * column, 2 * left, a.aligned, first);
    load_eight(a.x, row, 2 * column + 8, 2 * left - 8, a.aligned, second);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      gate.value[i] = first.value[2 * i], up.value[i] = first.value[2 * i + 1];
      gate.value[i + 4] = second.value[2 * i], up.value[i + 4] = second.value[2 * i + 1];
    }
  }
}

__device__ __forceinline__ void store_gate_up(const Activation& a, const Tensor& to, Index row,
                                              Index column, const Eight& gate, const Eight& up) {
  const Index left = a.width - column;
  if (!a.settings.gated()) {
    store_eight(to, row, column, left, a.aligned, gate);
  } else if (!a.settings.interleaved) {
    store_eight(to, row, column, left, a.aligned, gate);
    store_eight(to, row, a.width + column, left, a.aligned, up);
  } else {
    Eight first, second;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      first.value[2 * i] = gate.value[i], first.value[2 * i + 1] = up.value[i];
      second.value[2 * i] = gate.value[i + 4], second.value[2 * i + 1] = up.value[i + 4];
    }
    store_eight(to, row, 2 * column, 2 * left, a.aligned, first);
    store_eight(to, row, 2 * column + 8, 2 * left - 8, a.aligned, second);
  }
}

// Codes and scale of a block of 32 columns that four neighbouring lanes hold, row-wise, of the
// values as they are stored (MXFP8-2 to 4). All four lanes of a block call it.
__device__ __forceinline__ void quantize_eight(const Activation& a, Index row, Index column,
                                               const Eight& h) {
  constexpr int lanes = DROPLESS_BLOCK_SIZE / columns_per_thread;
  const unsigned block = ((1u << lanes) - 1) << (threadIdx.x % warp_size / lanes * lanes);
  const Index left = a.width - column;
  float v[columns_per_thread], amax = 0;
#pragma unroll
  for (int i = 0; i < columns_per_thread; ++i) {
    const float stored =
        a.h.dtype == DROPLESS_BF16 ? widen_bf16(round_bf16(h.value[i])) : h.value[i];
    v[i] = i < left ? stored : 0.0F;
    amax = fmaxf(amax, fabsf(v[i]));  // a NaN takes no part
  }
#pragma unroll
  for (int step = lanes / 2; step > 0; step /= 2) {
    amax = fmaxf(amax, __shfl_xor_sync(block, amax, step));
  }
  if (left <= 0) return;
  const std::uint32_t byte = scale_byte(__float_as_uint(amax), false);
  if (threadIdx.x % lanes == 0) {
    a.scales.as<std::uint8_t>(row, column / DROPLESS_BLOCK_SIZE) = static_cast<std::uint8_t>(byte);
  }
  const float inverse = inverse_scale<0>(inverse_bytes(byte));
  std::uint32_t words[2];
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const float four[4] = {v[4 * k] * inverse, v[4 * k + 1] * inverse, v[4 * k + 2] * inverse,
                           v[4 * k + 3] * inverse};
    words[k] = encode_four<false>(four);
  }
  auto* to = reinterpret_cast<std::uint8_t*>(a.codes.at(row, column));
  if (a.aligned) {
    *reinterpret_cast<uint2*>(to) = make_uint2(words[0], words[1]);
  } else {
#pragma unroll
    for (int i = 0; i < columns_per_thread; ++i) {
      if (i < left) to[i] = static_cast<std::uint8_t>(words[i / 4] >> (i % 4 * 8));
    }
  }
}

template <int kind, bool quantized>
__global__ void __launch_bounds__(most_threads) activation_kernel(Activation a) {
  const Index row = blockIdx.x;
  // Everything that decides about the row is on its way before the first of it is waited for.
  const bool refused = *a.refusal != 0;
  const float weight = a.weights.given ? a.weights.as<float>(row) : 1.0F;
  const RowKind row_kind = kind_of_row(a.zones, row);
  if (refused || row_kind == RowKind::beyond) return;  // untouched, as declared in the profile
  // Whole blocks where lanes speak to each other.
  const Index end =
      quantized ? ceil_div(a.width, DROPLESS_BLOCK_SIZE) * DROPLESS_BLOCK_SIZE : a.width;
  for (Index column = threadIdx.x * columns_per_thread; column < end;
       column += blockDim.x * columns_per_thread) {
    Eight h = {};
    if (row_kind == RowKind::real) {
      Eight gate, up;
      load_gate_up(a, row, column, gate, up);
#pragma unroll
      for (int i = 0; i < columns_per_thread; ++i) {
        h.value[i] = activate<kind>(a.settings, gate.value[i], up.value[i]) * weight;
      }
    }
    store_eight(a.h, row, column, a.width - column, a.aligned, h);
    if constexpr (quantized) quantize_eight(a, row, column, h);
  }
}

template <int kind>
__global__ void __launch_bounds__(most_threads) activation_backward_kernel(Activation a) {
  __shared__ float partial[most_threads / warp_size];
  const Index row = blockIdx.x;
  const bool refused = *a.refusal != 0;
  const float weight = a.weights.given ? a.weights.as<float>(row) : 1.0F;
  const RowKind row_kind = kind_of_row(a.zones, row);
  if (refused || row_kind == RowKind::beyond) return;
  const bool real = row_kind == RowKind::real;
  float dot = 0;
  for (Index column = threadIdx.x * columns_per_thread; column < a.width;
       column += blockDim.x * columns_per_thread) {
    Eight d_gate = {}, d_up = {};
    if (real) {
      Eight gate, up, gradient;
      load_gate_up(a, row, column, gate, up);
      load_eight(a.h, row, column, a.width - column, a.aligned, gradient);
#pragma unroll
      for (int i = 0; i < columns_per_thread; ++i) {
        const float d = gradient.value[i];
        const ActivationGradient at =
            differentiate<kind>(a.settings, gate.value[i], up.value[i], d * weight);
        d_gate.value[i] = at.d_gate;
        d_up.value[i] = at.d_up;
        // Columns beyond the row hold zeros, but their h need not be 0 (an offset).
        if (column + i < a.width) dot = fmaf(d, at.h, dot);
      }
    }
    store_gate_up(a, a.d_x, row, column, d_gate, d_up);
  }
  if (!a.d_weights.given) return;
  dot = block_sum(dot, partial);
  if (threadIdx.x == 0) a.d_weights.as<float>(row) = dot;
}

ActivationSettings read_settings(const dropless_activation_settings* given) {
  const dropless_activation_settings raw = read_struct(given, "settings");
  refuse_if(raw.kind < DROPLESS_SWIGLU || raw.kind > DROPLESS_RELU2, "kind: unknown");
  refuse_if(raw.gate_up_layout != DROPLESS_GATE_UP_CONCATENATED &&
                raw.gate_up_layout != DROPLESS_GATE_UP_INTERLEAVED,
            "gate_up_layout: unknown");
  return {raw.kind, raw.gate_up_layout == DROPLESS_GATE_UP_INTERLEAVED,
          static_cast<float>(raw.limit), static_cast<float>(raw.alpha),
          static_cast<float>(raw.offset)};
}

// Vectors of 16 bytes fit all three: rows, and the up half of x behind the gate half.
bool is_aligned(const Activation& a, const Tensor& x) {
  return x.rows_aligned_to(16) && (a.settings.interleaved || a.width % columns_per_thread == 0);
}

template <class Launch>
void by_kind(const Activation& a, const Launch& launch) {
  switch (a.settings.kind) {
    case DROPLESS_SWIGLU:
      return launch(std::integral_constant<int, DROPLESS_SWIGLU>{});
    case DROPLESS_SWIGLU_CLAMPED:
      return launch(std::integral_constant<int, DROPLESS_SWIGLU_CLAMPED>{});
    case DROPLESS_GEGLU_TANH:
      return launch(std::integral_constant<int, DROPLESS_GEGLU_TANH>{});
    default:
      return launch(std::integral_constant<int, DROPLESS_RELU2>{});
  }
}

unsigned threads_of(const Activation& a) {
  return static_cast<unsigned>(block_size(ceil_div(a.width, columns_per_thread), most_threads));
}

Activation read_forward(Call& call, const dropless_activation_args& args) {
  Activation a = {};
  a.settings = read_settings(args.settings);
  a.h = tensor(args.h, "h", floats, {any, any});
  const Index rows = a.h.shape[0];
  a.width = a.h.shape[1];
  a.x = tensor(args.x, "x", floats, {rows, a.settings.gated() ? 2 * a.width : a.width});
  a.weights = optional_tensor(args.row_weights, "row_weights", {DROPLESS_FP32}, {rows});
  refuse_if(args.offsets == nullptr && args.counts != nullptr, "counts: without offsets");
  a.zones = read_zones(call, args.offsets, args.counts, rows);
  a.aligned = is_aligned(a, a.x) && a.h.rows_aligned_to(16);
  a.refusal = call.refusal_word();
  return a;
}

template <bool quantized>
void run_forward(Call& call, const Activation& a) {
  const Index rows = a.h.shape[0];
  if (rows == 0) return;
  by_kind(a, [&](auto kind) {
    activation_kernel<kind.value, quantized>
        <<<grid_size(rows), threads_of(a), 0, call.stream()>>>(a);
  });
  check_launch("activation");
}

}  // namespace

void activation_forward(Call& call, const dropless_activation_args& args) {
  run_forward<false>(call, read_forward(call, args));
  call.ran("activation");
}

void activation_quantized(Call& call, const dropless_activation_args& args,
                          const QuantizedRows& quantized) {
  Activation a = read_forward(call, args);
  const Index rows = a.h.shape[0];
  a.codes = tensor(&quantized.codes, "codes", {DROPLESS_E4M3}, {rows, a.width});
  a.scales = tensor(&quantized.scales, "scales", {DROPLESS_E8M0},
                    {rows, ceil_div(a.width, DROPLESS_BLOCK_SIZE)});
  a.aligned = a.aligned && a.codes.rows_aligned_to(columns_per_thread);  // eight codes at a time
  run_forward<true>(call, a);
  call.ran("activation");
}

void activation_backward(Call& call, const dropless_activation_backward_args& args) {
  Activation a = {};
  a.settings = read_settings(args.settings);
  a.h = tensor(args.dh, "dh", floats, {any, any});
  const Index rows = a.h.shape[0];
  a.width = a.h.shape[1];
  const Index x_width = a.settings.gated() ? 2 * a.width : a.width;
  a.x = tensor(args.x, "x", floats, {rows, x_width});
  a.weights = optional_tensor(args.row_weights, "row_weights", {DROPLESS_FP32}, {rows});
  a.d_x = tensor(args.d_x, "d_x", floats, {rows, x_width});
  if (a.weights.given) {
    a.d_weights = optional_tensor(args.d_row_weights, "d_row_weights", {DROPLESS_FP32}, {rows});
  }
  refuse_if(args.offsets == nullptr && args.counts != nullptr, "counts: without offsets");
  a.zones = read_zones(call, args.offsets, args.counts, rows);
  a.aligned = is_aligned(a, a.x) && is_aligned(a, a.d_x) && a.h.rows_aligned_to(16);
  a.refusal = call.refusal_word();
  if (rows > 0) {
    by_kind(a, [&](auto kind) {
      activation_backward_kernel<kind.value>
          <<<grid_size(rows), threads_of(a), 0, call.stream()>>>(a);
    });
    check_launch("activation_backward");
  }
  call.ran("activation");
}

}  // namespace dropless::cuda
