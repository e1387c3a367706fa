// SPDX-License-Identifier: Apache-2.0
// Routing one token with one warp: scores, group limit, selection. Any settings (ROUTING-1 to 8).
#pragma once

#include "optimized/cuda/route_settings.h"
#include "optimized/cuda/scores.cuh"

namespace dropless::cuda {

struct Route {
  RouteSettings settings;
  Tensor logits, bias, token_mask, given_ids, expert_scale;
  Tensor ids, weights, scores, counts;
  bool aligned;  // logits may be read in vectors
  // Neighbouring lanes, a power of two, that hold a whole group in registers where its score comes
  // from at most two of the compared values; otherwise 0.
  int group_lanes;
  const int* refusal;
};

// Memory of one warp in shared memory.
struct Scratch {
  float* compared;             // [E], with a group limit only: what group scores are made of
  std::uint32_t* keys;         // [E], generic width only
  int* ids;                    // [batch, K]
  std::uint32_t* group_keys;   // [G]
  std::uint32_t* kept_groups;  // [G]
};

constexpr int narrow = 8;       // experts of a lane that fit into registers
constexpr int most_warps = 32;  // one block a multiprocessor: few of them add to the counts

__host__ __device__ inline int words_of_warp(const RouteSettings& s, bool generic, int batch) {
  const int groups = s.groups > 1 ? 2 * s.groups + s.experts : 0;
  return batch * s.top_k + (generic ? s.experts : 0) + groups;
}

__device__ inline Scratch scratch_of(const RouteSettings& s, bool generic, int batch,
                                     std::uint32_t* memory) {
  Scratch scratch;
  scratch.ids = reinterpret_cast<int*>(memory);
  scratch.keys = memory + batch * s.top_k;
  scratch.group_keys = scratch.keys + (generic ? s.experts : 0);
  scratch.kept_groups = scratch.group_keys + s.groups;
  scratch.compared = reinterpret_cast<float*>(scratch.kept_groups + s.groups);
  return scratch;
}

// An integer that orders like the value, -0 like +0; 0 is below every value. Not for NaN.
__device__ __forceinline__ std::uint32_t key_of(float value) {
  const std::uint32_t bits = __float_as_uint(value + 0.0F);
  return bits ^ (static_cast<std::int32_t>(bits) < 0 ? 0xFFFFFFFFu : 0x80000000u);
}
// The value of a key; of both zeros +0.
__device__ __forceinline__ float value_of(std::uint32_t key) {
  return __uint_as_float(key ^ ((key & 0x80000000u) != 0 ? 0x80000000u : 0xFFFFFFFFu));
}
// NaN counts as -Inf.
__device__ __forceinline__ float not_nan(float value) {
  return value == value ? value : -INFINITY;
}

// What a lane holds: neighbouring experts in registers (V), or every 32nd expert in shared memory
// (V = 0). A key of 0 is not there, or has been taken.
template <int V>
struct Lane {
  float logit[V], bias[V];
  std::uint32_t key[V];
  unsigned taken = 0;

  __device__ static int expert(int lane, int i) { return lane * V + i; }
  // What is the same for all tokens.
  __device__ void begin(const Route& r, int lane, const Scratch&) {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const int e = expert(lane, i);
      bias[i] = r.bias.given && e < r.settings.experts ? not_nan(r.bias.as<float>(e)) : 0.0F;
      key[i] = 0;
    }
  }
  __device__ void load(const Route& r, Index t, int lane) {
    Eight row;
    load_eight(r.logits, t, lane * V, r.settings.experts - lane * V, r.aligned, row);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      logit[i] = expert(lane, i) < r.settings.experts ? row.value[i] : -INFINITY;
    }
    taken = 0;
  }
  __device__ float at(const Route&, Index, int, int i) const {
    return logit[i];
  }
  __device__ float bias_of(const Route&, int, int i) const {
    return bias[i];
  }
  __device__ void set(int, int i, std::uint32_t value) {
    key[i] = value;
  }
  template <bool again>
  __device__ std::uint32_t get(int, int i) const {
    return again && (taken >> i & 1u) != 0 ? 0 : key[i];
  }
  __device__ void take(int, int i) {
    taken |= 1u << i;
  }
};
template <>
struct Lane<0> {
  std::uint32_t* keys;

  __device__ static int expert(int lane, int i) { return lane + i * warp_size; }
  __device__ void begin(const Route&, int, const Scratch& scratch) { keys = scratch.keys; }
  __device__ void load(const Route&, Index, int) {}
  __device__ float at(const Route& r, Index t, int lane, int i) const {
    return load_float(r.logits, t, expert(lane, i));
  }
  __device__ float bias_of(const Route& r, int lane, int i) const {
    return r.bias.given ? not_nan(r.bias.as<float>(expert(lane, i))) : 0.0F;
  }
  __device__ void set(int lane, int i, std::uint32_t value) { keys[expert(lane, i)] = value; }
  template <bool again>
  __device__ std::uint32_t get(int lane, int i) const {
    return keys[expert(lane, i)];
  }
  __device__ void take(int lane, int i) { keys[expert(lane, i)] = 0; }
};

// body(i, expert) for the experts of this lane; in registers also for those that do not exist,
// whose logit is -Inf and whose key is 0, so that nothing branches.
template <int V, class Body>
__device__ __forceinline__ void for_experts(int experts, int lane, const Body& body) {
  if constexpr (V > 0) {
#pragma unroll
    for (int i = 0; i < V; ++i) body(i, Lane<V>::expert(lane, i));
  } else {
    for (int i = 0; Lane<V>::expert(lane, i) < experts; ++i) body(i, Lane<V>::expert(lane, i));
  }
}

// Sum of the `width` largest compared values of a group, in a fixed order. ROUTING-4.
__device__ inline float group_score(const RouteSettings& s, const float* compared, int group) {
  const int size = s.group_size(), width = s.group_width;
  const float* members = compared + group * size;
  if (width <= 2) {
    float best = -INFINITY, second = -INFINITY;
    int member = group % size;  // lanes begin at different members: other banks
    for (int i = 0; i < size; ++i) {
      const float value = members[member];
      second = fmaxf(second, fminf(best, value));
      best = fmaxf(best, value);
      member = member + 1 < size ? member + 1 : 0;
    }
    return width == 1 ? best : best + second;
  }
  float sum = 0, last = INFINITY;
  int last_member = -1;
  for (int taken = 0; taken < width; ++taken) {
    float best = -INFINITY;
    int best_member = size;
    for (int i = 0; i < size; ++i) {  // the largest one behind (last, last_member)
      const float value = members[i];
      const bool behind = value < last || (value == last && i > last_member);
      if (behind && (best_member == size || value > best)) best = value, best_member = i;
    }
    sum += best;
    last = best, last_member = best_member;
  }
  return sum;
}

// Marks the kept groups; equal scores fall to the lowest index.
__device__ inline void keep_groups(const RouteSettings& s, const Scratch& scratch, int lane) {
  __syncwarp();
  for (int g = lane; g < s.groups; g += warp_size) {
    scratch.group_keys[g] = key_of(not_nan(group_score(s, scratch.compared, g)));
    scratch.kept_groups[g] = 0;
  }
  __syncwarp();
  for (int kept = 0; kept < s.kept_groups; ++kept) {
    std::uint32_t best = 0, where = 0xFFFFFFFFu;
    for (int g = lane; g < s.groups; g += warp_size) {
      const std::uint32_t key = scratch.group_keys[g];
      if (key > best) best = key, where = static_cast<std::uint32_t>(g);
    }
    const std::uint32_t most = __reduce_max_sync(whole_warp, best);
    const std::uint32_t first = __reduce_min_sync(whole_warp, best == most ? where : 0xFFFFFFFFu);
    if (where == first && best == most) {
      scratch.group_keys[first] = 0;
      scratch.kept_groups[first] = 1;
    }
    __syncwarp();
  }
}

// Clears the keys of the groups that are not kept, where group_lanes lanes hold a group.
template <int V>
__device__ __forceinline__ void keep_groups_of_lanes(const Route& r, Lane<V>& row, int lane) {
  const RouteSettings& s = r.settings;
  std::uint32_t best = 0, second = 0;
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const std::uint32_t key = row.template get<false>(lane, i);
    second = max(second, min(best, key));
    best = max(best, key);
  }
  for (int step = 1; step < r.group_lanes; step *= 2) {
    const std::uint32_t other = __shfl_xor_sync(whole_warp, best, step);
    const std::uint32_t other_second = __shfl_xor_sync(whole_warp, second, step);
    second = max(max(second, other_second), min(best, other));
    best = max(best, other);
  }
  float score = value_of(best);
  if (s.group_width == 2) score += value_of(second);
  // No value has the key 0: that of a group is kept, or does not exist.
  std::uint32_t left = lane * V < s.experts ? key_of(not_nan(score)) : 0;
  bool kept = false;
  for (int j = 0; j < s.kept_groups; ++j) {
    const std::uint32_t most = __reduce_max_sync(whole_warp, left);
    const int first = __ffs(static_cast<int>(__ballot_sync(whole_warp, left == most))) - 1;
    if ((lane ^ first) < r.group_lanes) left = 0, kept = true;
  }
#pragma unroll
  for (int i = 0; i < V; ++i) {
    if (!kept) row.set(lane, i, 0);
  }
}

// The two largest keys of a lane, of equal ones the first; a lane rarely wins more than twice, so
// that it rarely has to look again.
struct TopTwo {
  std::uint32_t best, second;
  int where, second_where;
  bool fresh;  // second has not moved up yet
};

// again: some have been taken.
template <int V, bool again>
__device__ __forceinline__ TopTwo top_two(const RouteSettings& s, const Lane<V>& row, int lane) {
  TopTwo top = {0, 0, 0, 0, true};
  for_experts<V>(s.experts, lane, [&](int i, int) {
    const std::uint32_t key = row.template get<again>(lane, i);
    if (key > top.best) {
      top.second = top.best, top.second_where = top.where;
      top.best = key, top.where = i;
    } else if (key > top.second) {
      top.second = key, top.second_where = i;
    }
  });
  return top;
}

// ids[K] in descending order of the keys, equal ones in ascending order of the index.
template <int V>
__device__ __forceinline__ void select(const RouteSettings& s, Lane<V>& row, int lane,
                                       const Scratch& scratch) {
  TopTwo top = top_two<V, false>(s, row, lane);
  for (int j = 0; j < s.top_k; ++j) {
    const std::uint32_t most = __reduce_max_sync(whole_warp, top.best);
    bool mine;
    if constexpr (V > 0) {  // lower lanes have lower indices
      const unsigned those = __ballot_sync(whole_warp, top.best == most);
      mine = lane == __ffs(static_cast<int>(those)) - 1;
    } else {
      const std::uint32_t index = top.best == most
                                      ? static_cast<std::uint32_t>(Lane<V>::expert(lane, top.where))
                                      : 0xFFFFFFFFu;
      mine = __reduce_min_sync(whole_warp, index) == index && top.best == most;
    }
    if (!mine) continue;
    scratch.ids[j] = Lane<V>::expert(lane, top.where);
    row.take(lane, top.where);
    if (top.fresh) {
      top.best = top.second, top.where = top.second_where;
      top.fresh = false;
    } else {
      top = top_two<V, true>(s, row, lane);
    }
  }
  __syncwarp();
}

// What makes a row's scores beside its logits.
struct RowScores {
  float most = 0, factor = 1;
  bool nan_row = false;

  [[nodiscard]] __device__ __forceinline__ float score(const RouteSettings& s, float l) const {
    if (s.score_function == DROPLESS_SCORE_SOFTMAX) return expf(l - most) * factor;
    return pointwise_score(s.score_function, l);
  }
};

template <int V>
__device__ __forceinline__ RowScores read_row(const Route& r, const Lane<V>& row, Index t,
                                              int lane) {
  const RouteSettings& s = r.settings;
  RowScores scores;
  if (s.score_function != DROPLESS_SCORE_SOFTMAX) {
    bool nan = false;
    for_experts<V>(s.experts, lane, [&](int i, int) {
      const float l = row.at(r, t, lane, i);
      nan |= l != l;
    });
    scores.nan_row = __any_sync(whole_warp, nan) != 0;
    return scores;
  }
  RowKinds kinds;
  for_experts<V>(s.experts, lane, [&](int i, int) { kinds.see(row.at(r, t, lane, i)); });
  kinds.join();
  scores.nan_row = kinds.is_nan_row(s.score_function);
  scores.most = kinds.most;
  float sum = 0;
  for_experts<V>(s.experts, lane,
                 [&](int i, int) { sum += expf(row.at(r, t, lane, i) - scores.most); });
  scores.factor = __frcp_rn(warp_sum(sum));
  return scores;
}

// The keys of one score function.
template <int V, class Score>
__device__ __forceinline__ void compare_by(const Route& r, Lane<V>& row, Index t, int lane,
                                           const Scratch& scratch, bool by_logits,
                                           const Score& score_of) {
  const RouteSettings& s = r.settings;
  const auto compare = [&](int i, int e, bool plain) {
    const float l = row.at(r, t, lane, i), score = score_of(l);
    const float value = l == -INFINITY ? -INFINITY : score + row.bias_of(r, lane, i);
    row.set(lane, i, key_of(by_logits ? l : value));
    if (plain || e >= s.experts) return;
    if (r.scores.given) r.scores.as<float>(t, e) = score;
    if (s.groups > 1 && r.group_lanes == 0) scratch.compared[e] = value;
  };
  if ((s.groups == 1 || r.group_lanes > 0) && !r.scores.given) {
    for_experts<V>(s.experts, lane, [&](int i, int e) { compare(i, e, true); });
  } else {
    for_experts<V>(s.experts, lane, [&](int i, int e) { compare(i, e, false); });
  }
}

// Keys of the compared values (ROUTING-2 and 7), and the scores where they are asked for. Softmax
// without a bias is ordered by its logits, which no underflow can make equal; group scores are made
// of scores all the same.
template <int V>
__device__ __forceinline__ void compare_row(const Route& r, Lane<V>& row, Index t, int lane,
                                            const RowScores& scores, const Scratch& scratch) {
  const RouteSettings& s = r.settings;
  switch (s.score_function) {
    case DROPLESS_SCORE_SIGMOID:
      return compare_by<V>(r, row, t, lane, scratch, false,
                           [](float l) { return sigmoid_score(l); });
    case DROPLESS_SCORE_SQRT_SOFTPLUS:
      return compare_by<V>(r, row, t, lane, scratch, false,
                           [](float l) { return sqrt_softplus_score(l); });
    default:
      return compare_by<V>(r, row, t, lane, scratch, !r.bias.given,
                           [&](float l) { return scores.score(s, l); });
  }
}

template <int V>
__device__ __forceinline__ RowScores choose(const Route& r, Lane<V>& row, Index t, int lane,
                                            const Scratch& scratch) {
  const RouteSettings& s = r.settings;
  const bool masked = r.token_mask.given && r.token_mask.as<std::uint8_t>(t) == 0;
  row.load(r, t, lane);
  RowScores scores = read_row<V>(r, row, t, lane);
  const bool chosen = masked || r.given_ids.given || scores.nan_row;
  if (!chosen || r.scores.given) compare_row<V>(r, row, t, lane, scores, scratch);
  if (chosen) {
    for (int j = lane; j < s.top_k; j += warp_size) {
      scratch.ids[j] = masked              ? -1
                       : r.given_ids.given ? static_cast<int>(r.given_ids.integer(t, j))
                                           : j;  // any choice (ROUTING-8)
    }
    __syncwarp();
  } else {
    if (r.group_lanes > 0) {
      if constexpr (V > 0) keep_groups_of_lanes<V>(r, row, lane);
    } else if (s.groups > 1) {
      keep_groups(s, scratch, lane);
      for_experts<V>(s.experts, lane, [&](int i, int e) {
        const bool kept = e < s.experts && scratch.kept_groups[e / s.group_size()] != 0;
        if (!kept) row.set(lane, i, 0);
      });
    }
    select<V>(s, row, lane, scratch);
  }
  return scores;
}

}  // namespace dropless::cuda
