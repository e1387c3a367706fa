// SPDX-License-Identifier: Apache-2.0
// Grouped products for everything: any strides, dtypes and sizes, any GPU from sm_80.
//
// bf16 operands are multiplied by mma.sync in steps of 16 along the contraction, in ascending order
// from the first row or column: the very sums of the sm_90a kernel, so that gaps in memory, which
// decide between the two, change no bit (GROUPED_GEMM-8).
#include "optimized/cuda/grouped_gemm_codes.cuh"
#include "optimized/cuda/grouped_gemm_store.cuh"

namespace dropless::cuda {
namespace {

constexpr int tile = 64;

struct Tile {
  Index group = -1;  // -1: nothing to do
  Index row = 0, column = 0;
};

// Which tile block `index` computes. Rows: zones are cut into strips of 64 rows; a warp counts the
// strips of 32 zones at a time.
__device__ Tile locate(const GroupedProduct& p, Index index) {
  __syncthreads();  // everyone has read what was found before
  __shared__ Tile found;
  if (threadIdx.x < 32) {
    const Index tiles_n = (p.n + tile - 1) / tile;
    Index strip = index / tiles_n;
    Tile mine{-1, 0, index % tiles_n * tile};
    if (p.ragged_k()) {
      const Index tiles_m = (p.m + tile - 1) / tile;
      mine.group = strip / tiles_m, mine.row = strip % tiles_m * tile;
    } else {
      const int lane = static_cast<int>(threadIdx.x);
      for (Index base = 0; base < p.zones.groups && mine.group < 0; base += 32) {
        const Index g = base + lane;
        const Index strips = g < p.zones.groups ? (p.rows(g) + tile - 1) / tile : 0;
        Index sum = strips;
        for (int step = 1; step < 32; step *= 2) {
          const Index before = __shfl_up_sync(~0U, sum, step);
          if (lane >= step) sum += before;
        }
        const unsigned beyond = __ballot_sync(~0U, strip < sum);
        if (beyond == 0) {
          strip -= __shfl_sync(~0U, sum, 31);
          continue;
        }
        const int owner = __ffs(static_cast<int>(beyond)) - 1;
        const Index start = __shfl_sync(~0U, sum - strips, owner);
        mine.group = base + owner, mine.row = (strip - start) * tile;
      }
    }
    if (threadIdx.x == 0) {
      if (*p.refusal != 0 || (mine.group >= 0 && !p.selects(mine.group))) mine.group = -1;
      found = mine;
    }
  }
  __syncthreads();
  return found;
}

// One element as fp32: exact, or what MXFP8-5 says of large codes at large scales.
__device__ float load_operand(const GemmOperand& x, Index start, Index g, Index outer, Index k) {
  const Index at = start + outer * x.outer_stride + k * x.k_stride;
  if (x.dtype == DROPLESS_FP32) return static_cast<const float*>(x.data)[at];
  if (x.dtype == DROPLESS_BF16) {
    return __bfloat162float(static_cast<const __nv_bfloat16*>(x.data)[at]);
  }
  const std::uint8_t code = static_cast<const std::uint8_t*>(x.data)[at];
  return code_value(code, x.dtype) * scale_value(x.scales.at(g, outer, k / DROPLESS_BLOCK_SIZE));
}

__device__ void convert(float value, float& out) {
  out = value;
}
__device__ void convert(float value, __nv_bfloat16& out) {
  out = __float2bfloat16_rn(value);
}

// A tile [64][depth] of an operand into shared memory; zero outside the matrix, which is not read.
// Neighbouring threads read neighbours in memory.
template <int depth, int threads, class Element, int pitch>
__device__ void load_tile(const GemmOperand& x, Index start, Index g, Index outer, Index outers,
                          Index k, Index ks, Element (&to)[tile][pitch]) {
  const bool along_k = x.k_stride == 1;
  for (int i = static_cast<int>(threadIdx.x); i < tile * depth; i += threads) {
    const int o = along_k ? i / depth : i % tile, l = along_k ? i % depth : i / tile;
    const bool inside = outer + o < outers && k + l < ks;
    convert(inside ? load_operand(x, start, g, outer + o, k + l) : 0.0F, to[o][l]);
  }
}

__device__ __noinline__ void store_sum(const GroupedProduct& p, Index g, Index row, Index column,
                                       float sum) {
  if (row >= p.rows(g) || column >= p.n) return;
  const bool ragged_k = p.ragged_k();
  const Index start = ragged_k ? g * p.out.group_stride : p.zones.first(g) * p.out.row_stride;
  Index at = start + row * p.out.row_stride + column * p.out.column_stride;
  if (p.fault.is(Fault::offset_in_32_bits)) {
    const Index element = p.out.dtype == DROPLESS_FP32 ? 4 : 2;
    at = static_cast<Index>(static_cast<std::uint32_t>(at * element)) / element;
  }
  const bool padding = !ragged_k && row >= p.real(g);  // GROUPED_GEMM-2
  store_element(p.out.data, p.out.dtype, at, padding ? 0.0 : GemmFinish{&p, g}(sum, row, column));
}

// d += a b for one 16 x 8 x 16 step; b is [n][k].
__device__ void multiply_step(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ unsigned pair_at(const __nv_bfloat16* address) {
  return *reinterpret_cast<const unsigned*>(address);
}

// Four warps, each 32 x 32 of the tile.
__device__ __forceinline__ void multiply_tile_bf16(const GroupedProduct& p, const Tile& at) {
  constexpr int depth = 32, pitch = depth + 8;
  __shared__ alignas(16) __nv_bfloat16 a[tile][pitch];
  __shared__ alignas(16) __nv_bfloat16 b[tile][pitch];
  const Index g = at.group;
  const Index ks = p.depth(g), rows = p.ragged_k() ? p.m : p.real(g);
  if (p.ragged_k() && ks == 0 && p.keeps_empty()) return;
  const Index start_a = p.a.start(p.zones, g), start_b = p.b.start(p.zones, g);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int row = warp / 2 * 32 + lane / 4, column = warp % 2 * 32 + lane / 4;
  float sums[2][4][4] = {};
  for (Index k = 0; k < ks && at.row < rows; k += depth) {
    __syncthreads();
    load_tile<depth, 128>(p.a, start_a, g, at.row, rows, k, ks, a);
    load_tile<depth, 128>(p.b, start_b, g, at.column, p.n, k, ks, b);
    __syncthreads();
#pragma unroll
    for (int step = 0; step < depth; step += 16) {
      const int l = step + lane % 4 * 2;
      unsigned as[2][4], bs[4][2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const __nv_bfloat16* from = &a[row + i * 16][l];
        as[i][0] = pair_at(from), as[i][1] = pair_at(from + 8 * pitch);
        as[i][2] = pair_at(from + 8), as[i][3] = pair_at(from + 8 * pitch + 8);
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        bs[j][0] = pair_at(&b[column + j * 8][l]), bs[j][1] = pair_at(&b[column + j * 8][l + 8]);
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) multiply_step(sums[i][j], as[i], bs[j]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        store_sum(p, g, at.row + row + i * 16 + e / 2 * 8,
                  at.column + warp % 2 * 32 + j * 8 + lane % 4 * 2 + e % 2, sums[i][j][e]);
      }
    }
  }
}

// 16 x 16 threads, each 4 x 4 of the tile; fp32 FMAs in ascending order.
__device__ __forceinline__ void multiply_tile_fp32(const GroupedProduct& p, const Tile& at) {
  constexpr int depth = 16, pitch = depth + 1;
  __shared__ float a[tile][pitch];
  __shared__ float b[tile][pitch];
  const Index g = at.group;
  const Index ks = p.depth(g), rows = p.ragged_k() ? p.m : p.real(g);
  if (p.ragged_k() && ks == 0 && p.keeps_empty()) return;
  const Index start_a = p.a.start(p.zones, g), start_b = p.b.start(p.zones, g);
  const int row = static_cast<int>(threadIdx.x) / 16, column = static_cast<int>(threadIdx.x) % 16;
  float sums[4][4] = {};
  for (Index k = 0; k < ks && at.row < rows; k += depth) {
    __syncthreads();
    load_tile<depth, 256>(p.a, start_a, g, at.row, rows, k, ks, a);
    load_tile<depth, 256>(p.b, start_b, g, at.column, p.n, k, ks, b);
    __syncthreads();
#pragma unroll
    for (int l = 0; l < depth; ++l) {
      float bs[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) bs[j] = b[column + j * 16][l];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float factor = a[row + i * 16][l];
#pragma unroll
        for (int j = 0; j < 4; ++j) sums[i][j] = fmaf(factor, bs[j], sums[i][j]);
      }
    }
  }
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 4; ++j) {
      store_sum(p, g, at.row + row + i * 16, at.column + column + j * 16, sums[i][j]);
    }
  }
}

// Blocks go through the tiles; a launch that may turn out not to be needed has few of them.
template <int threads, void (*multiply_tile)(const GroupedProduct&, const Tile&)>
__global__ void __launch_bounds__(threads)
    multiply_tiles(const __grid_constant__ GroupedProduct p, unsigned tiles) {
  if (p.needed != nullptr && *p.needed == 0) return;
  for (unsigned index = blockIdx.x; index < tiles; index += gridDim.x) {
    const Tile at = locate(p, index);
    if (at.group >= 0) multiply_tile(p, at);
  }
}

}  // namespace

void grouped_gemm_simple(const GroupedProduct& product, cudaStream_t stream) {
  const Index tiles_n = (product.n + tile - 1) / tile;
  const Index strips = product.ragged_k() ? product.zones.groups * ((product.m + tile - 1) / tile)
                                          : product.zones.rows / tile + product.zones.groups;
  const Index blocks = strips * tiles_n;
  if (blocks == 0) return;
  refuse_if(blocks > 0x7FFFFFFF, "grouped GEMM: more tiles than a grid can hold");
  const auto tiles = static_cast<unsigned>(blocks);
  const unsigned grid = product.needed == nullptr ? tiles : std::min(tiles, 1024U);
  if (product.a.dtype == DROPLESS_BF16 && product.b.dtype == DROPLESS_BF16) {
    multiply_tiles<128, multiply_tile_bf16><<<grid, 128, 0, stream>>>(product, tiles);
  } else {
    multiply_tiles<256, multiply_tile_fp32><<<grid, 256, 0, stream>>>(product, tiles);
  }
  check_launch("grouped GEMM");
}

}  // namespace dropless::cuda
