// SPDX-License-Identifier: Apache-2.0
// Routing: scores, group limit, selection, weights and counts in one pass over the logits. A warp
// per token. ROUTING-1 to 10, 13.
//
// Floor: every logit is read once and K ids and weights are written; T = 32768, E = 256, K = 8,
// fp32: 34 MB + 2 MB, 9 us at 4 TB/s. Selection is issue-bound beside it: K rounds of a warp-wide
// maximum over integer keys that order like the compared values.
#include "optimized/cuda/device_refusal.h"
#include "optimized/cuda/operations.h"
#include "optimized/cuda/route_settings.h"
#include "optimized/cuda/scores.cuh"

namespace dropless::cuda {
namespace {

struct Route {
  RouteSettings settings;
  Tensor logits, bias, token_mask, given_ids, expert_scale;
  Tensor ids, weights, scores, counts;
  bool aligned;  // logits may be read in vectors
  const int* refusal;
};

// Memory of one warp in shared memory.
struct Scratch {
  float* scores;               // [E]; masked_score marks experts with logit -Inf
  std::uint32_t* keys;         // [E], generic width only
  int* ids;                    // [K]
  std::uint32_t* group_keys;   // [G]
  std::uint32_t* kept_groups;  // [G]
};

constexpr float masked_score = -1.0F;  // scores are never negative
constexpr int narrow = 8;              // experts of a lane that fit into registers
constexpr int most_warps = 8;

__host__ __device__ inline int words_of_warp(const RouteSettings& s, bool generic) {
  return s.experts * (generic ? 2 : 1) + s.top_k + 2 * (s.groups > 1 ? s.groups : 0);
}

__device__ inline Scratch scratch_of(const RouteSettings& s, bool generic, std::uint32_t* memory) {
  Scratch scratch;
  scratch.scores = reinterpret_cast<float*>(memory);
  scratch.keys = memory + s.experts;
  memory += s.experts * (generic ? 2 : 1);
  scratch.ids = reinterpret_cast<int*>(memory);
  scratch.group_keys = memory + s.top_k;
  scratch.kept_groups = scratch.group_keys + s.groups;
  return scratch;
}

// An integer that orders like the value; 0 is below every value, NaN counts as -Inf, -0 as +0.
__device__ __forceinline__ std::uint32_t key_of(float value) {
  if (value != value) value = -INFINITY;
  const std::uint32_t bits = __float_as_uint(value + 0.0F);
  return bits ^ (static_cast<std::int32_t>(bits) < 0 ? 0xFFFFFFFFu : 0x80000000u);
}

// What a lane keeps of the row. width experts a lane: neighbours in registers (V), or every 32nd
// expert in shared memory (V = 0).
template <int V>
struct Lane {
  float logit[V];
  std::uint32_t key[V];
  __device__ static int width(int) { return V; }
  __device__ static int expert(int lane, int i) { return lane * V + i; }
  __device__ void load(const Route& r, Index t, int lane, const Scratch&) {
    Eight row;
    load_eight(r.logits, t, lane * V, r.settings.experts - lane * V, r.aligned, row);
#pragma unroll
    for (int i = 0; i < V; ++i) logit[i] = row.value[i];
  }
  __device__ float at(const Route&, Index, int, int i) const {
    return logit[i];
  }
  __device__ void set_key(int, int i, std::uint32_t value) {
    key[i] = value;
  }
  __device__ std::uint32_t get_key(int, int i) const {
    return key[i];
  }
};
template <>
struct Lane<0> {
  std::uint32_t* keys;
  __device__ static int width(int experts) { return (experts + warp_size - 1) / warp_size; }
  __device__ static int expert(int lane, int i) { return lane + i * warp_size; }
  __device__ void load(const Route&, Index, int, const Scratch& scratch) { keys = scratch.keys; }
  __device__ float at(const Route& r, Index t, int lane, int i) const {
    return load_float(r.logits, t, expert(lane, i));
  }
  __device__ void set_key(int lane, int i, std::uint32_t value) { keys[expert(lane, i)] = value; }
  __device__ std::uint32_t get_key(int lane, int i) const { return keys[expert(lane, i)]; }
};

// body(i, expert) for the experts of this lane.
template <int V, class Body>
__device__ __forceinline__ void for_experts(int experts, int lane, const Body& body) {
  if constexpr (V > 0) {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      if (Lane<V>::expert(lane, i) < experts) body(i, Lane<V>::expert(lane, i));
    }
  } else {
    for (int i = 0; Lane<V>::expert(lane, i) < experts; ++i) body(i, Lane<V>::expert(lane, i));
  }
}

// The compared value of ROUTING-2 and 7 from what lies in shared memory.
__device__ __forceinline__ float biased(const Route& r, float score, int expert) {
  if (score == masked_score) return -INFINITY;
  return r.bias.given ? score + r.bias.as<float>(expert) : score;
}

// Sum of the `width` largest compared values of a group, in a fixed order. ROUTING-4.
__device__ inline float group_score(const Route& r, const float* scores, int group) {
  const int size = r.settings.group_size(), first = group * size, width = r.settings.group_width;
  // Lanes begin at different members, so that they read from different banks.
  const int shift = group % size;
  if (width <= 2) {
    float best = -INFINITY, second = -INFINITY;
    for (int i = 0; i < size; ++i) {
      const int member = i + shift < size ? i + shift : i + shift - size;
      const float value = biased(r, scores[first + member], first + member);
      second = fmaxf(second, fminf(best, value));
      best = fmaxf(best, value);
    }
    return width == 1 ? best : best + second;
  }
  float sum = 0, last = INFINITY;
  int last_member = -1;
  for (int taken = 0; taken < width; ++taken) {
    float best = -INFINITY;
    int best_member = size;
    for (int i = 0; i < size; ++i) {  // the largest one behind (last, last_member)
      const float value = biased(r, scores[first + i], first + i);
      const bool behind = value < last || (value == last && i > last_member);
      if (behind && (best_member == size || value > best)) best = value, best_member = i;
    }
    sum += best;
    last = best, last_member = best_member;
  }
  return sum;
}

// Marks the kept groups; equal scores fall to the lowest index.
__device__ inline void keep_groups(const Route& r, const Scratch& scratch, int lane) {
  const RouteSettings& s = r.settings;
  for (int g = lane; g < s.groups; g += warp_size) {
    scratch.group_keys[g] = key_of(group_score(r, scratch.scores, g));
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
    if (where == first && lane == static_cast<int>(first) % warp_size) {
      scratch.group_keys[first] = 0;
      scratch.kept_groups[first] = 1;
    }
    __syncwarp();
  }
}

// ids[K] in descending order of the keys, equal ones in ascending order of the index.
template <int V>
__device__ __forceinline__ void select(const RouteSettings& s, Lane<V>& row, int lane,
                                       const Scratch& scratch) {
  std::uint32_t best = 0;
  int where = 0;
  const auto find_best = [&] {
    best = 0, where = 0;
    for_experts<V>(s.experts, lane, [&](int i, int) {
      const std::uint32_t key = row.get_key(lane, i);
      if (key > best) best = key, where = i;
    });
  };
  find_best();
  for (int j = 0; j < s.top_k; ++j) {
    const std::uint32_t most = __reduce_max_sync(whole_warp, best);
    bool mine;
    if constexpr (V > 0) {  // lower lanes have lower indices
      mine = lane == __ffs(static_cast<int>(__ballot_sync(whole_warp, best == most))) - 1;
    } else {
      const std::uint32_t index =
          best == most ? static_cast<std::uint32_t>(Lane<V>::expert(lane, where)) : 0xFFFFFFFFu;
      mine = __reduce_min_sync(whole_warp, index) == index && best == most;
    }
    if (mine) {
      scratch.ids[j] = Lane<V>::expert(lane, where);
      for_experts<V>(s.experts, lane, [&](int i, int) {
        if (i == where) row.set_key(lane, i, 0);
      });
      find_best();
    }
  }
  __syncwarp();
}

// Scores of the row into shared memory and, where asked for, the output. ROUTING-1.
template <int V>
__device__ __forceinline__ void score_row(const Route& r, const Lane<V>& row, Index t, int lane,
                                          float most, const Scratch& scratch) {
  const RouteSettings& s = r.settings;
  float factor = 1;
  if (s.score_function == DROPLESS_SCORE_SOFTMAX) {
    float sum = 0;
    for_experts<V>(s.experts, lane, [&](int i, int e) {
      const float power = expf(row.at(r, t, lane, i) - most);
      scratch.scores[e] = power;
      sum += power;
    });
    factor = __frcp_rn(warp_sum(sum));
  }
  for_experts<V>(s.experts, lane, [&](int i, int e) {
    const float l = row.at(r, t, lane, i);
    const float score = s.score_function == DROPLESS_SCORE_SOFTMAX
                            ? scratch.scores[e] * factor
                            : pointwise_score(s.score_function, l);
    if (r.scores.given) r.scores.as<float>(t, e) = score;
    scratch.scores[e] = l == -INFINITY ? masked_score : score;
  });
  __syncwarp();
}

// Weights of the K ids (ROUTING-6): the few numbers of a token are combined in double, so that only
// the scores and one rounding remain.
__device__ inline void weigh(const Route& r, Index t, int lane, bool nan_row,
                             const Scratch& scratch, unsigned* histogram) {
  const RouteSettings& s = r.settings;
  const auto is_real = [&](int id) { return id >= 0 && id < s.experts; };
  float most = -INFINITY;
  if (s.after_top_k) {
    for (int j = lane; j < s.top_k; j += warp_size) {
      if (is_real(scratch.ids[j])) most = fmaxf(most, load_float(r.logits, t, scratch.ids[j]));
    }
    most = warp_max(most);
  }
  const auto raw = [&](int id) -> float {
    if (!is_real(id) || scratch.scores[id] == masked_score) return 0;  // ROUTING-7
    return s.after_top_k ? expf(load_float(r.logits, t, id) - most) : scratch.scores[id];
  };
  double divisor = 1;
  if (s.after_top_k || s.renormalize) {
    double sum = 0;
    for (int j = lane; j < s.top_k; j += warp_size) {
      sum += static_cast<double>(raw(scratch.ids[j]));
    }
    sum = warp_sum(sum);
    divisor = s.after_top_k ? sum : s.eps_maximum ? fmax(sum, s.eps) : sum + s.eps;
  }
  for (int j = lane; j < s.top_k; j += warp_size) {
    const int id = scratch.ids[j];
    double weight = 0;
    if (is_real(id) && scratch.scores[id] != masked_score) {
      weight = static_cast<double>(raw(id)) / divisor * s.scale;
      if (r.expert_scale.given) weight *= static_cast<double>(r.expert_scale.as<float>(id));
    }
    if (is_real(id)) {
      if (nan_row) weight = static_cast<double>(NAN);
      atomicAdd(&histogram[id], 1u);
    }
    r.ids.store_integer(id, t, j);
    r.weights.as<float>(t, j) = static_cast<float>(weight);
  }
  __syncwarp();
}

template <int V>
__device__ __forceinline__ void route_token(const Route& r, Index t, int lane,
                                            const Scratch& scratch, unsigned* histogram) {
  const RouteSettings& s = r.settings;
  const bool masked = r.token_mask.given && r.token_mask.as<std::uint8_t>(t) == 0;
  Lane<V> row;
  row.load(r, t, lane, scratch);
  RowKinds kinds;
  for_experts<V>(s.experts, lane, [&](int i, int) { kinds.see(row.at(r, t, lane, i)); });
  kinds.join();
  if (!masked || r.scores.given) score_row<V>(r, row, t, lane, kinds.most, scratch);
  const bool nan_row = !masked && kinds.is_nan_row(s.score_function);
  if (masked || r.given_ids.given || nan_row) {
    for (int j = lane; j < s.top_k; j += warp_size) {
      scratch.ids[j] = masked              ? -1
                       : r.given_ids.given ? static_cast<int>(r.given_ids.integer(t, j))
                                           : j;  // any choice (ROUTING-8)
    }
    __syncwarp();
  } else {
    // Softmax without a bias is ordered by its logits, which no underflow can make equal.
    const bool by_logits = s.score_function == DROPLESS_SCORE_SOFTMAX && !r.bias.given;
    if (s.groups > 1) keep_groups(r, scratch, lane);
    if constexpr (V > 0) {
#pragma unroll
      for (int i = 0; i < V; ++i) row.set_key(lane, i, 0);
    }
    for_experts<V>(s.experts, lane, [&](int i, int e) {
      const bool kept = s.groups == 1 || scratch.kept_groups[e / s.group_size()] != 0;
      const float value = by_logits ? row.at(r, t, lane, i) : biased(r, scratch.scores[e], e);
      row.set_key(lane, i, kept ? key_of(value) : 0);
    });
    select<V>(s, row, lane, scratch);
  }
  weigh(r, t, lane, nan_row, scratch, histogram);
}

template <int V>
__global__ void __launch_bounds__(most_warps* warp_size) route_kernel(Route r) {
  extern __shared__ std::uint32_t memory[];
  if (*r.refusal != 0) return;
  const RouteSettings& s = r.settings;
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const int warp = static_cast<int>(threadIdx.x) / warp_size;
  const int warps = static_cast<int>(blockDim.x) / warp_size;
  unsigned* histogram = memory;
  for (int e = static_cast<int>(threadIdx.x); e < s.experts; e += static_cast<int>(blockDim.x)) {
    histogram[e] = 0;
  }
  __syncthreads();
  const Scratch scratch =
      scratch_of(s, V == 0, memory + s.experts + warp * words_of_warp(s, V == 0));
  const Index step = static_cast<Index>(gridDim.x) * warps;
  for (Index t = static_cast<Index>(blockIdx.x) * warps + warp; t < r.logits.shape[0]; t += step) {
    route_token<V>(r, t, lane, scratch, histogram);
  }
  __syncthreads();
  for (int e = static_cast<int>(threadIdx.x); e < s.experts; e += static_cast<int>(blockDim.x)) {
    // Integers: any order of the additions gives the same counts (GENERAL-5).
    if (histogram[e] != 0) {
      atomicAdd(reinterpret_cast<unsigned long long*>(r.counts.at(e)),
                static_cast<unsigned long long>(histogram[e]));
    }
  }
}

__global__ void zero_counts(Tensor counts, const int* refusal) {
  if (*refusal != 0) return;
  for (Index e = threadIdx.x; e < counts.shape[0]; e += blockDim.x) counts.as<std::int64_t>(e) = 0;
}

template <int V>
void launch(Call& call, const Route& route) {
  const RouteSettings& s = route.settings;
  const Index available = call.device().shared_memory_per_block;
  int warps = most_warps;
  const auto bytes_with = [&](int count) {
    return 4 * (s.experts + static_cast<Index>(count) * words_of_warp(s, V == 0));
  };
  while (warps > 1 && bytes_with(warps) > available / 2) warps /= 2;
  const Index bytes = bytes_with(warps);
  if (bytes > available) not_supported("num_experts: more than fit into shared memory");
  if (bytes > 48 * 1024) {
    check(cudaFuncSetAttribute(route_kernel<V>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(bytes)),
          "shared memory of the router");
  }
  const Index tokens = route.logits.shape[0];
  // Blocks take several tokens each, so that few of them add to the counts in global memory.
  const unsigned blocks = grid_size(ceil_div(tokens, warps), 8 * call.device().multiprocessors);
  route_kernel<V><<<blocks, static_cast<unsigned>(warps * warp_size),
                    static_cast<std::size_t>(bytes), call.stream()>>>(route);
  check_launch("route");
}

}  // namespace

void route_forward(Call& call, const dropless_route_args& args) {
  Route route = {};
  route.settings = read_route_settings(args.settings, args.expert_bias != nullptr);
  const Index experts = route.settings.experts, top_k = route.settings.top_k;
  route.logits = tensor(args.logits, "logits", floats, {any, experts});
  const Index tokens = route.logits.shape[0];
  route.bias = optional_tensor(args.expert_bias, "expert_bias", {DROPLESS_FP32}, {experts});
  route.token_mask = optional_tensor(args.token_mask, "token_mask", {DROPLESS_U8}, {tokens});
  route.given_ids = optional_tensor(args.given_ids, "given_ids", integers, {tokens, top_k});
  route.expert_scale =
      optional_tensor(args.expert_scale, "expert_scale", {DROPLESS_FP32}, {experts});
  route.ids = tensor(args.ids, "ids", integers, {tokens, top_k});
  route.weights = tensor(args.weights, "weights", {DROPLESS_FP32}, {tokens, top_k});
  route.scores = optional_tensor(args.scores, "scores", {DROPLESS_FP32}, {tokens, experts});
  route.counts = tensor(args.tokens_per_expert, "tokens_per_expert", {DROPLESS_I64}, {experts});
  route.aligned = route.logits.rows_aligned_to(16);
  route.refusal = call.refusal_word();

  if (route.given_ids.given) check_ids(call, route.given_ids, experts);
  zero_counts<<<1, 1024, 0, call.stream()>>>(route.counts, call.refusal_word());
  check_launch("zero_counts");
  if (tokens > 0) {
    if (experts <= narrow * warp_size) {
      launch<narrow>(call, route);
    } else {
      launch<0>(call, route);
    }
  }
  call.ran("route");
}

}  // namespace dropless::cuda
