// SPDX-License-Identifier: Apache-2.0
// Row by row arithmetic of the layer, and the small tensors that it needs.
#include <cuda_bf16.h>

#include "optimized/cuda/elements.cuh"
#include "optimized/cuda/layer_rows.h"

namespace dropless::cuda {
namespace {

constexpr int block = 256;

__device__ float load(const Tensor& t, Index row, Index column) {
  return t.dtype == DROPLESS_FP32 ? t.as<float>(row, column)
                                  : __bfloat162float(t.as<__nv_bfloat16>(row, column));
}
__device__ void store(const Tensor& t, Index row, Index column, float value) {
  if (t.dtype == DROPLESS_FP32) {
    t.as<float>(row, column) = value;
  } else {
    t.as<__nv_bfloat16>(row, column) = __float2bfloat16_rn(value);
  }
}
// The fp32 number that rounds to the type of t as `value` does. One rounding from double: by way of
// fp32 it would be two, so the sticky bits stay in the last place (round to odd).
__device__ __forceinline__ float narrowed(const Tensor& t, double value) {
  if (t.dtype == DROPLESS_FP32) return __double2float_rn(value);
  const float down = __double2float_rz(value);
  return static_cast<double>(down) == value || isinf(down)
             ? down
             : __uint_as_float(__float_as_uint(down) | 1u);
}
__device__ void store(const Tensor& t, Index row, Index column, double value) {
  store(t, row, column, narrowed(t, value));
}

int grid_for(Index elements) {
  return static_cast<int>(std::clamp<Index>((elements + block - 1) / block, 1, 1 << 16));
}

__global__ void scale_rows_kernel(Zones zones, Tensor rows, const float* scale,
                                  const int* refusal) {
  if (*refusal != 0) return;
  const Index count = zones.end(zones.groups - 1) * rows.shape[1];
  for (Index i = blockIdx.x * Index{block} + threadIdx.x; i < count;
       i += Index{block} * gridDim.x) {
    const Index r = i / rows.shape[1], h = i % rows.shape[1];
    store(rows, r, h, load(rows, r, h) * scale[r]);
  }
}

struct RowParts {
  RowPart part[4];
  int count = 0;
};

__global__ void add_parts_kernel(RowParts parts, Tensor out, const int* refusal) {
  if (*refusal != 0) return;
  const Index r = blockIdx.x, width = out.shape[1];
#pragma unroll 4
  for (Index h = threadIdx.x; h < width; h += block) {
    double sum = 0;
    for (int p = 0; p < parts.count; ++p) {
      const RowPart& part = parts.part[p];
      const double value = load(part.x, part.one_row ? 0 : r, h);
      sum += part.scale == nullptr ? value : static_cast<double>(part.scale[r]) * value;
    }
    store(out, r, h, sum);
  }
}

// The same for rows that are whole pieces of eight, in 16-byte accesses.
__global__ void __launch_bounds__(block)
    add_pieces_kernel(RowParts parts, Tensor out, const int* refusal) {
  if (*refusal != 0) return;
  const Index r = blockIdx.x, width = out.shape[1];
  for (Index h = threadIdx.x * Index{8}; h < width; h += block * Index{8}) {
    double sums[8] = {};
#pragma unroll
    for (int p = 0; p < 4; ++p) {
      if (p >= parts.count) break;
      const RowPart& part = parts.part[p];
      Eight values;
      load_eight(part.x, part.one_row ? 0 : r, h, 8, true, values);
      const double scale = part.scale == nullptr ? 1.0 : static_cast<double>(part.scale[r]);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const double value = values.value[i];
        sums[i] += part.scale == nullptr ? value : scale * value;
      }
    }
    Eight narrow;
#pragma unroll
    for (int i = 0; i < 8; ++i) narrow.value[i] = narrowed(out, sums[i]);
    store_eight(out, r, h, 8, true, narrow);
  }
}

constexpr int lanes = 32, strips = 16;

// 32 columns of a zone; every strip takes each 16th row, then the strips are added in order.
__global__ void sum_rows_kernel(Zones zones, Tensor x, const float* scale, Tensor out,
                                const int* refusal) {
  if (*refusal != 0) return;
  __shared__ double sums[strips][lanes];
  const Index group = blockIdx.y, column = blockIdx.x * Index{lanes} + threadIdx.x;
  double sum = 0;
  if (column < x.shape[1]) {
    for (Index r = zones.first(group) + threadIdx.y; r < zones.real_end(group); r += strips) {
      const double value = load(x, r, column);
      sum += scale == nullptr ? value : static_cast<double>(scale[r]) * value;
    }
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= x.shape[1]) return;
  for (int s = 1; s < strips; ++s) sum += sums[s][threadIdx.x];
  store(out, group, column, sum);
}

// One block per row; b has the same rows or a single one.
__global__ void dot_rows_kernel(Tensor a, Tensor b, bool one_row, const float* gate, float* out,
                                const int* refusal) {
  if (*refusal != 0) return;
  __shared__ double sums[block];
  const Index r = blockIdx.x;
  double sum = 0;
  for (Index h = threadIdx.x; h < a.shape[1]; h += block) {
    sum += static_cast<double>(load(a, r, h)) * load(b, one_row ? 0 : r, h);
  }
  sums[threadIdx.x] = sum;
  __syncthreads();
  for (int half = block / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x != 0) return;
  if (gate == nullptr) {
    out[r] = static_cast<float>(1 / (1 + exp(-sums[0])));
  } else {
    const double g = gate[r];
    out[r] = static_cast<float>(sums[0] * g * (1 - g));
  }
}

__global__ void copy_integers_kernel(const std::int64_t* from, Tensor to, const int* refusal) {
  if (*refusal != 0) return;
  const Index width = to.shape[1], i = blockIdx.x * Index{block} + threadIdx.x;
  if (i < to.shape[0] * width) to.store_integer(from[i], i / width, i % width);
}

__global__ void zero_vector_kernel(Tensor vector, const int* refusal) {
  if (*refusal != 0) return;
  const Index i = blockIdx.x * Index{block} + threadIdx.x;
  if (i < vector.shape[0]) vector.as<float>(i) = 0;
}

__global__ void widen_kernel(Tensor x, float* out, bool pieces) {
  const Index r = blockIdx.x, width = x.shape[1];
  if (pieces) {
#pragma unroll 4
    for (Index h = threadIdx.x * Index{8}; h < width; h += block * Index{8}) {
      Eight values;
      load_eight(x, r, h, 8, true, values);
      auto* to = reinterpret_cast<float4*>(out + r * width + h);
      const float* v = values.value;
      to[0] = make_float4(v[0], v[1], v[2], v[3]), to[1] = make_float4(v[4], v[5], v[6], v[7]);
    }
    return;
  }
#pragma unroll 4
  for (Index h = threadIdx.x; h < width; h += block) out[r * width + h] = load(x, r, h);
}

template <class Element>
__global__ void dense_kernel(Tensor w, Element* out) {
  const Index rows = w.shape[1], columns = w.shape[2];
  for (Index i = blockIdx.x * Index{block} + threadIdx.x; i < w.size();
       i += Index{block} * gridDim.x) {
    out[i] = w.as<Element>(i / columns / rows, i / columns % rows, i % columns);
  }
}

__global__ void multiples_kernel(std::int64_t* offsets, Index count, Index step) {
  const Index i = blockIdx.x * Index{block} + threadIdx.x;
  if (i < count) offsets[i] = i * step;
}

// The elements of w [E,O,I] one after the other in scratch memory.
void* copied(Call& call, const Tensor& w) {
  const int grid = grid_for(w.size());
  if (w.element == 4) {
    auto* copy = call.scratch<std::uint32_t>(w.size());
    dense_kernel<<<grid, block, 0, call.stream()>>>(w, copy);
    check_launch("dense");
    return copy;
  }
  auto* copy = call.scratch<std::uint16_t>(w.size());
  dense_kernel<<<grid, block, 0, call.stream()>>>(w, copy);
  check_launch("dense");
  return copy;
}

}  // namespace

void scale_rows(Call& call, const Zones& zones, const Tensor& rows, const float* scale) {
  if (rows.size() == 0) return;
  scale_rows_kernel<<<grid_for(rows.size()), block, 0, call.stream()>>>(zones, rows, scale,
                                                                        call.refusal_word());
  check_launch("scale_rows");
}

void add_parts(Call& call, std::initializer_list<RowPart> parts, const Tensor& out) {
  if (out.size() == 0) return;
  RowParts all;
  bool pieces = out.shape[1] % 8 == 0 && out.rows_aligned_to(16);
  for (const RowPart& part : parts) {
    all.part[all.count++] = part;
    pieces = pieces && part.x.rows_aligned_to(16);
  }
  const auto kernel = pieces ? add_pieces_kernel : add_parts_kernel;
  kernel<<<static_cast<unsigned>(out.shape[0]), block, 0, call.stream()>>>(all, out,
                                                                           call.refusal_word());
  check_launch("add_parts");
}

void sum_rows(Call& call, const Zones& zones, const Tensor& x, const float* scale,
              const Tensor& out) {
  if (out.size() == 0) return;
  const dim3 grid(static_cast<unsigned>((out.shape[1] + lanes - 1) / lanes),
                  static_cast<unsigned>(out.shape[0]));
  sum_rows_kernel<<<grid, dim3(lanes, strips), 0, call.stream()>>>(zones, x, scale, out,
                                                                   call.refusal_word());
  check_launch("sum_rows");
}

void gate_rows(Call& call, const Tensor& x, const Tensor& w, float* gate) {
  if (x.shape[0] == 0) return;
  dot_rows_kernel<<<static_cast<unsigned>(x.shape[0]), block, 0, call.stream()>>>(
      x, w, true, nullptr, gate, call.refusal_word());
  check_launch("gate_rows");
}

void gate_rows_backward(Call& call, const Tensor& a, const Tensor& b, const float* gate, float* d) {
  if (a.shape[0] == 0) return;
  dot_rows_kernel<<<static_cast<unsigned>(a.shape[0]), block, 0, call.stream()>>>(
      a, b, false, gate, d, call.refusal_word());
  check_launch("gate_rows_backward");
}

void copy_integers(Call& call, const dropless_tensor& from, const Tensor& to) {
  if (to.size() == 0) return;
  copy_integers_kernel<<<static_cast<unsigned>((to.size() + block - 1) / block), block, 0,
                         call.stream()>>>(static_cast<const std::int64_t*>(from.data), to,
                                          call.refusal_word());
  check_launch("copy_integers");
}

void zero_vector(Call& call, const Tensor& vector) {
  if (vector.size() == 0) return;
  zero_vector_kernel<<<static_cast<unsigned>((vector.size() + block - 1) / block), block, 0,
                       call.stream()>>>(vector, call.refusal_word());
  check_launch("zero_vector");
}

float* widened(Call& call, const Tensor& x) {
  if (x.dtype == DROPLESS_FP32 && x.rows_aligned_to(4) &&
      reinterpret_cast<std::uintptr_t>(x.data) % 256 == 0 &&  // what cuBLASLt expects of a start
      (x.shape[0] <= 1 || x.strides[0] == x.shape[1])) {
    return reinterpret_cast<float*>(x.data);
  }
  auto* copy = call.scratch<float>(x.size());
  if (x.size() == 0) return copy;
  const bool pieces = x.shape[1] % 8 == 0 && x.rows_aligned_to(16);
  widen_kernel<<<static_cast<unsigned>(x.shape[0]), block, 0, call.stream()>>>(x, copy, pieces);
  check_launch("widen");
  return copy;
}

void* aligned_copy(Call& call, const Tensor& x) {
  const bool is_aligned = reinterpret_cast<std::uintptr_t>(x.data) % 256 == 0;
  const bool is_dense = x.has_dense_rows() && (x.shape[0] <= 1 || x.strides[0] == x.shape[1]);
  if (x.size() == 0 || (is_aligned && is_dense)) return x.data;
  Tensor stack = x;
  for (int axis = 2; axis > 0; --axis) {
    stack.shape[axis] = x.shape[axis - 1], stack.strides[axis] = x.strides[axis - 1];
  }
  stack.rank = 3, stack.shape[0] = 1, stack.strides[0] = 0;
  return copied(call, stack);
}

void* dense(Call& call, const dropless_tensor& given) {
  const Tensor w = tensor(&given, "weights", floats, {any, any, any});
  const bool has_gaps = (w.shape[2] > 1 && w.strides[2] != 1) ||
                        (w.shape[1] > 1 && w.strides[1] != w.shape[2]) ||
                        (w.shape[0] > 1 && w.strides[0] != w.shape[1] * w.shape[2]);
  return !has_gaps || w.size() == 0 ? w.data : copied(call, w);
}

dropless_tensor multiples(Call& call, Index groups, Index step) {
  auto* offsets = call.scratch<std::int64_t>(groups + 1);
  multiples_kernel<<<static_cast<unsigned>(groups / block + 1), block, 0, call.stream()>>>(
      offsets, groups + 1, step);
  check_launch("multiples");
  return describe(offsets, DROPLESS_I64, {groups + 1});
}

}  // namespace dropless::cuda
