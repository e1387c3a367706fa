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
  bool wide;                  // 16, and all of them have one scale
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

// A real line whose blocks run along it, 16 codes at a time. True when bf16 holds all its values.
template <__nv_fp8_interpretation_t format>
__device__ __forceinline__ bool widen_line(const Upcast& u, Index g, Index local,
                                           const std::uint8_t* codes, __nv_bfloat16* out) {
  bool exact = true;
  const int width = static_cast<int>(u.width);
#pragma unroll 2
  for (int i = 16 * static_cast<int>(threadIdx.x); i < width; i += 16 * 256) {
    const uint4 packed = *reinterpret_cast<const uint4*>(codes + i);
    const std::uint8_t byte = u.x.scales.at(g, local, static_cast<unsigned>(i) / 32U);
    const float scale = scale_value(byte);
    const unsigned in[4] = {packed.x, packed.y, packed.z, packed.w};
    unsigned words[8];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      words[2 * j] = widen_pair<format>(in[j] & 0xFFFF, scale);
      words[2 * j + 1] = widen_pair<format>(in[j] >> 16, scale);
    }
    auto* to = reinterpret_cast<uint4*>(out + i);
    to[0] = make_uint4(words[0], words[1], words[2], words[3]);
    to[1] = make_uint4(words[4], words[5], words[6], words[7]);
    if (always_exact_in_bf16(byte, u.x.dtype)) continue;
#pragma unroll 1
    for (int j = 0; j < 16; ++j) {
      const float value = code_value(codes[i + j], u.x.dtype) * scale;
      exact &= value != value || __bfloat162float(__float2bfloat16_rn(value)) == value;
    }
  }
  return exact;
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
    if (u.wide && real) {
      __nv_bfloat16* to = u.out + line * u.pitch;
      inexact = u.x.dtype == DROPLESS_E4M3 ? !widen_line<__NV_E4M3>(u, g, local, codes + from, to)
                                           : !widen_line<__NV_E5M2>(u, g, local, codes + from, to);
      if (inexact) u.flags[g] = 1, u.flags[p.zones.groups] = 1;
      continue;
    }
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
  u.wide = u.vectors && u.along_k && u.width % 16 == 0 && line_stride % 16 == 0 &&
           operand.group_stride % 16 == 0 &&
           reinterpret_cast<std::uintptr_t>(operand.data) % 16 == 0;
  u.flags = flags;
  const Index all_lines = weights ? product.zones.groups * u.lines : u.lines;
  u.out = call.scratch<__nv_bfloat16>(all_lines * u.pitch);
  if (all_lines > 0 && u.width > 0) {
    const auto blocks = static_cast<unsigned>(std::min<Index>(all_lines, 1 << 20));
    widen<<<blocks, 256, 0, call.stream()>>>(product, u, all_lines);
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
