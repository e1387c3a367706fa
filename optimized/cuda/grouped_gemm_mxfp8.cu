// SPDX-License-Identifier: Apache-2.0
// MXFP8 codes to bf16, once through memory.
#include "optimized/cuda/device_refusal.h"
#include "optimized/cuda/grouped_gemm_codes.cuh"
#include "optimized/cuda/grouped_gemm_mxfp8.h"

namespace dropless::cuda {
namespace {

constexpr Index block_size = DROPLESS_BLOCK_SIZE;

DROPLESS_HOST_DEVICE Index divide_up(Index a, Index b) {
  return (a + b - 1) / b;
}

// One warp goes through the groups, 32 at a time.
__global__ void place_scales(GroupedProduct p, GemmOperand x, Index outer, Index given,
                             int* refusal) {
  const int lane = static_cast<int>(threadIdx.x);
  const GemmScales& scales = x.scales;
  Index before = 0;
  for (Index base = 0; base < p.zones.groups; base += 32) {
    const Index g = base + lane;
    Index size = 0, blocks = 0;
    if (g < p.zones.groups) {
      const Index zone = p.zones.end(g) - p.zones.first(g);
      const bool along_rows = x.ragged == GemmRagged::contraction;
      blocks = divide_up(along_rows ? zone : p.k, block_size);
      const Index outers = x.ragged == GemmRagged::outer ? zone : outer;
      size = scales.packed ? 512 * divide_up(outers, 128) * divide_up(blocks, 4)
             : along_rows  ? blocks
                           : 0;
    }
    Index sum = size;
    for (int step = 1; step < 32; step *= 2) {
      const Index other = __shfl_up_sync(~0U, sum, step);
      if (lane >= step) sum += other;
    }
    if (g < p.zones.groups) {
      Index start = before + sum - size;
      if (!scales.packed && x.ragged == GemmRagged::contraction) start *= scales.block_stride;
      if (!scales.packed && x.ragged == GemmRagged::outer) {
        start = p.zones.first(g) * scales.outer_stride;
      }
      if (!scales.packed && x.ragged == GemmRagged::none) start = g * scales.group_stride;
      scales.starts[g] = start, scales.blocks[g] = blocks;
    }
    before += __shfl_sync(~0U, sum, 31);
  }
  if (lane == 0 && before > given) refuse_on_device(refusal, DeviceReason::scales_too_short);
}

// The group whose zone holds the row; groups when none does.
__device__ Index group_of(const Zones& zones, Index row) {
  if (row >= zones.first(zones.groups)) return zones.groups;
  Index low = 0, high = zones.groups;  // the answer lies in [low, high)
  while (high - low > 1) {
    const Index middle = (low + high) / 2;
    (zones.first(middle) <= row ? low : high) = middle;
  }
  return low;
}

struct Upcast {
  GemmOperand x;
  Index lines, width, pitch;  // of one matrix; lines of the buffer where rows are ragged
  bool along_k;               // neighbours in a line are neighbours in k
  bool vectors;               // 8 codes may be read at once
  __nv_bfloat16* out;
  int* flags;
};

// Two neighbouring codes times one scale.
template <__nv_fp8_interpretation_t format>
__device__ __forceinline__ unsigned widen_pair(unsigned codes, float scale) {
  const __half2_raw halves =
      __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(codes), format);
  const float2 values = __half22float2(__half2(halves));
  const __nv_bfloat162 pair = __floats2bfloat162_rn(values.x * scale, values.y * scale);
  return *reinterpret_cast<const unsigned*>(&pair);
}

// Where the scale bytes of a line are whose blocks run along it.
struct LineScales {
  const std::uint8_t* first;
  Index step, tile;  // to the next block (packed: of a tile), to the next four blocks

  __device__ LineScales(const GemmScales& s, Index g, Index outer) {
    if (s.packed) {
      const Index inside = outer % 32 * 16 + outer % 128 / 32 * 4;  // MXFP8-7
      const Index start = s.starts[g] + outer / 128 * ((s.blocks[g] + 3) / 4) * 512 + inside;
      first = s.data + start * s.element_stride;
      step = s.element_stride, tile = 512 * s.element_stride;
    } else {
      first = s.data + s.starts[g] + outer * s.outer_stride;
      step = s.block_stride, tile = 4 * s.block_stride;
    }
  }
  [[nodiscard]] __device__ __forceinline__ std::uint8_t at(int block) const {
    return first[block / 4 * tile + block % 4 * step];
  }
};

constexpr int widen_threads = 256;
constexpr int pieces = 8;  // of 8 codes in flight in a thread

// A real line whose blocks run along it, by one warp. True when bf16 holds all its values.
// Neighbouring lanes store neighbouring 16 bytes: 32 bytes a lane in two stores would write every
// sector of L2 twice.
template <__nv_fp8_interpretation_t format>
__device__ __forceinline__ bool widen_line(const Upcast& u, const LineScales& scales,
                                           const std::uint8_t* codes, __nv_bfloat16* out) {
  constexpr int step = 8 * 32;
  bool exact = true;
  const int width = static_cast<int>(u.width);
#pragma unroll 1
  for (int base = 8 * (static_cast<int>(threadIdx.x) % 32); base < width; base += pieces * step) {
    uint2 packed[pieces];
    std::uint8_t bytes[pieces];
#pragma unroll
    for (int j = 0; j < pieces; ++j) {
      const int i = base + j * step;
      if (i >= width) continue;
      packed[j] = __ldg(reinterpret_cast<const uint2*>(codes + i));
      bytes[j] = scales.at(i / static_cast<int>(block_size));
    }
#pragma unroll
    for (int j = 0; j < pieces; ++j) {
      const int i = base + j * step;
      if (i >= width) continue;
      const float scale = scale_value(bytes[j]);
      // The intrinsic: the compiler makes four stores of an assignment.
      __stcg(reinterpret_cast<uint4*>(out + i),
             make_uint4(widen_pair<format>(packed[j].x & 0xFFFF, scale),
                        widen_pair<format>(packed[j].x >> 16, scale),
                        widen_pair<format>(packed[j].y & 0xFFFF, scale),
                        widen_pair<format>(packed[j].y >> 16, scale)));
      if (always_exact_in_bf16(bytes[j], u.x.dtype)) continue;
#pragma unroll 1
      for (int k = 0; k < 8; ++k) {
        const float value = code_value(codes[i + k], u.x.dtype) * scale;
        exact &= value != value || __bfloat162float(__float2bfloat16_rn(value)) == value;
      }
    }
  }
  return exact;
}

// Where every line is read 8 codes at a time that have one scale; a warp takes `share` lines in a
// row, so that it looks for their group once: a block per line waited for its zones, its scales and
// its codes one after the other, which short lines do not hide. Floor: 32768 x 7168: 235 MB + 7 MB
// read, 470 MB written, 166 us at 4.3 TB/s.
template <__nv_fp8_interpretation_t format>
__global__ void __launch_bounds__(widen_threads)
    widen_lines(const __grid_constant__ GroupedProduct p, const __grid_constant__ Upcast u,
                Index all_lines, Index share) {
  if (*p.refusal != 0) return;
  const bool weights = u.x.ragged == GemmRagged::none;
  const auto* codes = static_cast<const std::uint8_t*>(u.x.data);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  Index line = (static_cast<Index>(blockIdx.x) * widen_threads + threadIdx.x) / 32 * share;
  const Index last = min(line + share, all_lines);
  Index g = 0, first = 0, end = 0, real_end = 0;
  for (; line < last; ++line) {
    if (line >= end) {
      g = weights ? line / u.lines : group_of(p.zones, line);
      if (g >= p.zones.groups) return;
      first = weights ? g * u.lines : p.zones.first(g);
      end = weights ? first + u.lines : p.zones.end(g);
      real_end = weights ? end : p.zones.real_end(g);
    }
    __nv_bfloat16* to = u.out + line * u.pitch;
    if (line >= real_end) {
      for (Index i = 8 * lane; i < u.pitch; i += 8 * 32) {
        __stcg(reinterpret_cast<uint4*>(to + i), make_uint4(0, 0, 0, 0));
      }
      continue;
    }
    const Index from = weights ? g * u.x.group_stride + (line - first) * u.x.outer_stride
                               : line * u.x.outer_stride;
    if (!widen_line<format>(u, LineScales(u.x.scales, g, line - first), codes + from, to)) {
      u.flags[g] = 1, u.flags[p.zones.groups] = 1;
    }
  }
}

// A block takes lines one after the other; a thread 8 neighbours of a line at a time.
__global__ void __launch_bounds__(256) widen(GroupedProduct p, Upcast u, Index all_lines) {
  if (*p.refusal != 0) return;
  const bool weights = u.x.ragged == GemmRagged::none;
  const Index line_stride = u.along_k ? u.x.outer_stride : u.x.k_stride;
  const Index inner_stride = u.along_k ? u.x.k_stride : u.x.outer_stride;
  const auto* codes = static_cast<const std::uint8_t*>(u.x.data);
  for (Index line = blockIdx.x; line < all_lines; line += gridDim.x) {
    const Index g = weights ? line / u.lines : group_of(p.zones, line);
    if (g >= p.zones.groups) continue;
    const Index local = weights ? line % u.lines : line - p.zones.first(g);
    const bool real = weights || line < p.zones.real_end(g);
    const Index from = weights ? g * u.x.group_stride + local * line_stride : line * line_stride;
    bool inexact = false;
    for (Index i = 8 * static_cast<Index>(threadIdx.x); i < u.pitch; i += 8 * 256) {
      uint2 packed = make_uint2(0, 0);
      if (real && u.vectors && i + 8 <= u.width) {
        packed = *reinterpret_cast<const uint2*>(codes + from + i);
      } else if (real) {
        for (int j = 0; j < 8 && i + j < u.width; ++j) {
          const unsigned code = codes[from + (i + j) * inner_stride];
          (j < 4 ? packed.x : packed.y) |= code << (j % 4 * 8);
        }
      }
      std::uint8_t byte = 127;
      if (real && u.along_k) byte = u.x.scales.at(g, local, i / block_size);
      __nv_bfloat16 values[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        if (real && !u.along_k && i + j < u.width) {
          byte = u.x.scales.at(g, i + j, local / block_size);
        }
        const auto code = static_cast<std::uint8_t>((j < 4 ? packed.x : packed.y) >> (j % 4 * 8));
        const float value = code_value(code, u.x.dtype) * scale_value(byte);
        values[j] = __float2bfloat16_rn(real && i + j < u.width ? value : 0.0F);
        if (!always_exact_in_bf16(byte, u.x.dtype) && real && i + j < u.width) {
          inexact |= value == value && __bfloat162float(values[j]) != value;
        }
      }
      *reinterpret_cast<uint4*>(u.out + line * u.pitch + i) = *reinterpret_cast<uint4*>(values);
    }
    if (inexact) u.flags[g] = 1, u.flags[p.zones.groups] = 1;
  }
}

}  // namespace

void plan_scales(Call& call, const GroupedProduct& product, GemmOperand& operand, Index outer,
                 Index given) {
  operand.scales.starts = call.scratch<Index>(product.zones.groups);
  operand.scales.blocks = call.scratch<Index>(product.zones.groups);
  place_scales<<<1, 32, 0, call.stream()>>>(product, operand, outer, given, call.refusal_word());
  check_launch("place_scales");
}

GemmOperand upcast(Call& call, const GroupedProduct& product, const GemmOperand& operand,
                   Index outer, int* flags) {
  const bool weights = operand.ragged == GemmRagged::none;
  Upcast u;
  u.x = operand;
  u.along_k = operand.ragged == GemmRagged::outer || (weights && operand.k_stride == 1);
  const Index other = u.along_k ? outer : product.k;
  u.lines = weights ? other : product.zones.rows;
  u.width = u.along_k ? product.k : outer;
  u.pitch = (u.width + 7) / 8 * 8;
  const Index line_stride = u.along_k ? operand.outer_stride : operand.k_stride;
  const Index inner_stride = u.along_k ? operand.k_stride : operand.outer_stride;
  u.vectors = inner_stride == 1 && line_stride % 8 == 0 && operand.group_stride % 8 == 0 &&
              reinterpret_cast<std::uintptr_t>(operand.data) % 8 == 0;
  // Pitch and width are the same then.
  const bool lines = u.vectors && u.along_k && u.width % 8 == 0 && u.width < (1 << 30);
  u.flags = flags;
  const Index all_lines = weights ? product.zones.groups * u.lines : u.lines;
  u.out = call.scratch<__nv_bfloat16>(all_lines * u.pitch);
  if (all_lines > 0 && u.width > 0) {
    if (!lines) {
      const auto blocks = static_cast<unsigned>(std::min<Index>(all_lines, 1 << 20));
      widen<<<blocks, widen_threads, 0, call.stream()>>>(product, u, all_lines);
    } else {
      const Index warps = Index{call.device().multiprocessors} * 64;  // twice what runs at a time
      const Index share = divide_up(all_lines, warps);
      const auto blocks =
          static_cast<unsigned>(divide_up(divide_up(all_lines, share) * 32, widen_threads));
      const auto kernel =
          operand.dtype == DROPLESS_E4M3 ? widen_lines<__NV_E4M3> : widen_lines<__NV_E5M2>;
      kernel<<<blocks, widen_threads, 0, call.stream()>>>(product, u, all_lines, share);
    }
    check_launch("widen");
  }
  GemmOperand wide = operand;
  wide.data = u.out, wide.dtype = DROPLESS_BF16, wide.scales = {};
  wide.group_stride = weights ? u.lines * u.pitch : 0;
  wide.outer_stride = u.along_k ? u.pitch : 1;
  wide.k_stride = u.along_k ? 1 : u.pitch;
  return wide;
}

}  // namespace dropless::cuda
