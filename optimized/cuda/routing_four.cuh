// SPDX-License-Identifier: Apache-2.0
// Routing four tokens of 256 experts at once with one warp: eight lanes share a token, each has a
// part of 32 neighbouring experts (with a group limit: a group). Same ids as choose().
//
// K rounds of a warp-wide maximum are most of what a token costs a warp of its own. Here a lower
// bound of the K-th largest value comes first; the few values that reach it (11 of 256 on random
// data) are gathered in ascending order of their experts, and each counts those that go before it.
#pragma once

#include "optimized/cuda/routing_row.cuh"

namespace dropless::cuda {

constexpr int four = 4;
constexpr int four_parts = 8;           // of a token
constexpr int four_lanes = four_parts;  // that share a token
constexpr int part_size = 32;           // experts
constexpr int four_experts = four_parts * part_size;
constexpr int part_stride = part_size + 4;  // vectors of eight parts lie in different banks
constexpr int token_stride = four_parts * part_stride;
constexpr int most_candidates = 32;  // of a token

// Memory of one warp, in shared memory.
struct FourScratch {
  float values[four * token_stride];  // compared values
  float candidates[four][most_candidates];
  int experts[four][most_candidates];  // of the candidates
  int ids[four * four_lanes];          // [four, K]
};

// Four neighbouring logits, aligned.
__device__ __forceinline__ float4 load_quad(const Tensor& t, Index row, int column) {
  const std::byte* at = t.data + (row * t.strides[0] + column) * t.element;
  if (t.dtype == DROPLESS_FP32) return __ldg(reinterpret_cast<const float4*>(at));
  const uint2 packed = __ldg(reinterpret_cast<const uint2*>(at));
  return make_float4(__uint_as_float(packed.x << 16), __uint_as_float(packed.x & 0xFFFF0000u),
                     __uint_as_float(packed.y << 16), __uint_as_float(packed.y & 0xFFFF0000u));
}

// For loads that coalesce, a lane reads experts 4 * lane + 128 * half + (0 .. 3) of all four
// tokens; where their compared values go.
__device__ __forceinline__ float4& place_of_quad(FourScratch& scratch, int token, int half,
                                                 int lane) {
  return *reinterpret_cast<float4*>(scratch.values + token * token_stride +
                                    (4 * half + lane / 8) * part_stride + lane % 8 * 4);
}

// Compared values of four tokens. Whether all logits are finite.
template <class Score>
__device__ __forceinline__ bool compare_four(const Route& r, Index t, int lane, const Score& score,
                                             const float* bias, FourScratch& scratch) {
  float4 logits[four][2];
#pragma unroll
  for (int i = 0; i < four; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      logits[i][half] = load_quad(r.logits, t + i, 4 * lane + 128 * half);
    }
  }
  const float4 b[2] = {reinterpret_cast<const float4*>(bias)[lane],
                       reinterpret_cast<const float4*>(bias)[lane + 32]};
  float special = 0;  // 0 * Inf and 0 * NaN make it NaN
#pragma unroll
  for (int i = 0; i < four; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float4 l = logits[i][half];
      special = fmaf(l.x, 0.0F, fmaf(l.y, 0.0F, fmaf(l.z, 0.0F, fmaf(l.w, 0.0F, special))));
      place_of_quad(scratch, i, half, lane) =
          make_float4(score(l.x) + b[half].x, score(l.y) + b[half].y, score(l.z) + b[half].z,
                      score(l.w) + b[half].w);
    }
  }
  return __all_sync(whole_warp, special == 0.0F) != 0;
}

// A logit of -Inf is compared as -Inf, whatever its bias (ROUTING-7). False where one is NaN or
// +Inf.
__device__ __forceinline__ bool mask_four(const Route& r, Index t, int lane, FourScratch& scratch) {
  bool others = true;
#pragma unroll 1
  for (int i = 0; i < 2 * four; ++i) {
    const float4 l = load_quad(r.logits, t + i / 2, 4 * lane + 128 * (i % 2));
    others &= l.x < INFINITY && l.y < INFINITY && l.z < INFINITY && l.w < INFINITY;
    float4& values = place_of_quad(scratch, i / 2, i % 2, lane);
    if (l.x == -INFINITY) values.x = -INFINITY;
    if (l.y == -INFINITY) values.y = -INFINITY;
    if (l.z == -INFINITY) values.z = -INFINITY;
    if (l.w == -INFINITY) values.w = -INFINITY;
  }
  return __all_sync(whole_warp, others) != 0;
}

// The unbiased scores, where they are asked for.
template <class Score>
__device__ __forceinline__ void store_scores_of_four(const Route& r, Index t, int lane,
                                                     const Score& score) {
#pragma unroll 1
  for (int i = 0; i < 2 * four; ++i) {
    const int column = 4 * lane + 128 * (i % 2);
    const float4 l = load_quad(r.logits, t + i / 2, column);
    r.scores.as<float>(t + i / 2, column) = score(l.x);
    r.scores.as<float>(t + i / 2, column + 1) = score(l.y);
    r.scores.as<float>(t + i / 2, column + 2) = score(l.z);
    r.scores.as<float>(t + i / 2, column + 3) = score(l.w);
  }
}

// Sorts the values of eight lanes in ascending order of the lane: a bitonic network.
__device__ __forceinline__ float sort_eight_lanes(float value, int lane) {
#pragma unroll
  for (int size = 2; size <= four_lanes; size *= 2) {
#pragma unroll
    for (int step = size / 2; step > 0; step /= 2) {
      const float other = __shfl_xor_sync(whole_warp, value, step);
      const bool takes_less = ((lane & size) == 0) == ((lane & step) == 0);
      value = takes_less ? fminf(value, other) : fmaxf(value, other);
    }
  }
  return value;
}
__device__ __forceinline__ float min_of_eight_lanes(float value) {
#pragma unroll
  for (int step = 1; step < four_lanes; step *= 2) {
    value = fminf(value, __shfl_xor_sync(whole_warp, value, step));
  }
  return value;
}

// The eighth largest of the 16 maxima of half parts, which at least eight values reach.
// part: the number of the lane among the eight.
__device__ __forceinline__ float bound_of_parts(const float (&v)[part_size], int part) {
  float first = v[0], second = v[part_size / 2];
#pragma unroll
  for (int i = 1; i < part_size / 2; ++i) {
    first = fmaxf(first, v[i]), second = fmaxf(second, v[part_size / 2 + i]);
  }
  // One ascends and one descends: the larger ones of their pairs are the larger half of all 16.
  first = sort_eight_lanes(first, part);
  second = -sort_eight_lanes(-second, part);
  return min_of_eight_lanes(fmaxf(first, second));
}

// With a group limit (ROUTING-4): the least of the two largest values of every kept group, which
// these at least K values reach. kept: the group of this lane.
__device__ __forceinline__ float bound_of_groups(const float (&v)[part_size], int part, int groups,
                                                 bool& kept) {
  float best = fmaxf(v[0], v[1]), second = fminf(v[0], v[1]);
#pragma unroll
  for (int i = 2; i < part_size; i += 2) {
    const float more = fmaxf(v[i], v[i + 1]), less = fminf(v[i], v[i + 1]);
    second = fmaxf(fmaxf(second, less), fminf(best, more));
    best = fmaxf(best, more);
  }
  const float score = best + second;
  int before = 0;  // groups that go before this one
#pragma unroll
  for (int step = 1; step < four_lanes; ++step) {
    const float other = __shfl_xor_sync(whole_warp, score, step);
    before += other > score || (other == score && (part ^ step) < part) ? 1 : 0;
  }
  kept = before < groups;
  return min_of_eight_lanes(kept ? second : INFINITY);
}

// The sum over the lanes of a token up to this one.
__device__ __forceinline__ int sum_up_to_lane(int value, int part) {
#pragma unroll
  for (int step = 1; step < four_lanes; step *= 2) {
    const int other = __shfl_up_sync(whole_warp, value, step, four_lanes);
    if (part >= step) value += other;
  }
  return value;
}
__device__ __forceinline__ int max_of_warp(int value) {  // of values that are not negative
  return static_cast<int>(__reduce_max_sync(whole_warp, static_cast<unsigned>(value)));
}

// Gathers the values that reach the bound, in ascending order of their experts; -Inf behind the
// last one. The number of candidates of the token that has most; where it is too large nothing has
// been gathered.
__device__ __forceinline__ int gather_candidates(const RouteSettings& s, FourScratch& scratch,
                                                 int token, int part) {
  const float* const values = scratch.values + token * token_stride + part * part_stride;
  float* const candidates = scratch.candidates[token];
  float v[part_size];
#pragma unroll
  for (int i = 0; i < part_size; i += 4) {
    const float4 quad = *reinterpret_cast<const float4*>(values + i);
    v[i] = quad.x, v[i + 1] = quad.y, v[i + 2] = quad.z, v[i + 3] = quad.w;
  }
  bool kept = true;
  const float bound =
      s.groups > 1 ? bound_of_groups(v, part, s.kept_groups, kept) : bound_of_parts(v, part);
  // -Inf is no bound: everything reaches it.
  if (__any_sync(whole_warp, bound == -INFINITY)) return most_candidates + 1;
  unsigned below = 0;  // bit 31 - i: the sign of v[i] - bound, which are not both infinite
#pragma unroll
  for (int i = 0; i < part_size; ++i) {
    below = __funnelshift_l(__float_as_uint(v[i] - bound), below, 1);
  }
  unsigned reach = kept ? ~below : 0;

  int own = __popc(reach), end = sum_up_to_lane(own, part);  // of the candidates of this lane
  int most = max_of_warp(end);
  if (most > most_candidates) {  // many equal ones: the K of the lowest experts suffice
    unsigned above = 0;
#pragma unroll
    for (int i = 0; i < part_size; ++i) {
      above = __funnelshift_l(__float_as_uint(bound - v[i]), above, 1);
    }
    unsigned equal = reach & ~above;
    const int equals = __popc(equal), before = sum_up_to_lane(equals, part) - equals;
    for (int surplus = min(before + equals - s.top_k, equals); surplus > 0; --surplus) {
      equal &= equal - 1;
    }
    reach = (reach & above) | equal;
    own = __popc(reach), end = sum_up_to_lane(own, part);
    most = max_of_warp(end);
    if (most > most_candidates) return most;
  }

  reinterpret_cast<float4*>(candidates)[part] =
      make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
  __syncwarp();
  for (int at = end - own; reach != 0; ++at) {
    const int i = __clz(static_cast<int>(reach));
    reach ^= 0x80000000u >> i;
    candidates[at] = values[i];
    scratch.experts[token][at] = part * part_size + i;
  }
  __syncwarp();
  return most;
}

// The ids of the candidates that fewer than K others go before: larger ones, and equal ones of
// lower experts.
__device__ __forceinline__ void order_candidates(int top_k, FourScratch& scratch, int token,
                                                 int part, int most) {
  const float* const candidates = scratch.candidates[token];
  for (int begin = 0; begin < most; begin += 2 * four_lanes) {
    const int mine[2] = {begin + part, begin + part + four_lanes};
    const float value[2] = {candidates[mine[0]], candidates[mine[1]]};
    int before[2] = {0, 0};
    for (int j = 0; j < most; j += 4) {
      const float4 quad = *reinterpret_cast<const float4*>(candidates + j);
      const float other[4] = {quad.x, quad.y, quad.z, quad.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int m = 0; m < 2; ++m) {  // without short circuits, which would be branches
          const int larger = other[i] > value[m], equal = other[i] == value[m];
          before[m] += larger | (equal & static_cast<int>(j + i < mine[m]));
        }
      }
    }
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      if (before[m] < top_k) {
        scratch.ids[token * top_k + before[m]] = scratch.experts[token][mine[m]];
      }
    }
  }
  __syncwarp();
}

// The ids of four tokens into scratch.ids, and their scores, as choose() would. False where this is
// left to choose(): logits that are NaN or +Inf, fewer than K that are not masked, or too many that
// reach the bound. The bias is finite.
template <class Score>
__device__ __forceinline__ bool choose_four(const Route& r, Index t, int lane, const Score& score,
                                            const float* bias, FourScratch& scratch) {
  const RouteSettings& s = r.settings;
  const int token = lane / four_lanes, part = lane % four_lanes;
  if (!compare_four(r, t, lane, score, bias, scratch) && !mask_four(r, t, lane, scratch)) {
    return false;
  }
  __syncwarp();
  const int most = gather_candidates(s, scratch, token, part);
  if (most > most_candidates) return false;
  order_candidates(s.top_k, scratch, token, part, most);
  if (r.scores.given) store_scores_of_four(r, t, lane, score);
  if (r.token_mask.given) {
    const bool masked = r.token_mask.as<std::uint8_t>(t + token) == 0;
    if (masked && part < s.top_k) scratch.ids[token * s.top_k + part] = -1;
    __syncwarp();
  }
  return true;
}

}  // namespace dropless::cuda
