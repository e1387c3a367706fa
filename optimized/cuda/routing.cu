// SPDX-License-Identifier: Apache-2.0
// Routing: scores, group limit, selection, weights and counts in one pass over the logits. A warp
// takes one token (routing_row.cuh) or four at once (routing_four.cuh). ROUTING-1 to 10, 13.
//
// Floor: every logit is read once and K ids and weights are written; T = 32768, E = 256, K = 8,
// fp32: 34 MB + 2 MB, 9 us at 4 TB/s. The issue of instructions is the limit beside it.
#include "optimized/cuda/device_refusal.h"
#include "optimized/cuda/operations.h"
#include "optimized/cuda/routing_four.cuh"

namespace dropless::cuda {
namespace {

// Weights of the K ids (ROUTING-6): the few numbers of a token are combined in double, so that only
// the scores and one rounding remain. A token t has `lanes` neighbouring lanes, of which this is
// number `lane`; all of the warp take part. With fewer lanes than a warp there are no more than
// eight ids, one a lane, and no softmax over the selected.
template <int lanes, class Score>
__device__ __forceinline__ void weigh(const Route& r, Index t, int lane, bool nan_row,
                                      const Score& score, const int* ids, unsigned* histogram) {
  constexpr bool alone = lanes < warp_size;  // at most one id a lane
  const RouteSettings& s = r.settings;
  const int slots = t < r.logits.shape[0] ? s.top_k : 0;
  const bool after_top_k = !alone && s.after_top_k;
  // The logit of an id; -Inf, which weighs 0 (ROUTING-7), where there is none.
  const auto logit = [&](int id) {
    return id >= 0 && id < s.experts ? load_float(r.logits, t, id) : -INFINITY;
  };
  float most = -INFINITY;
  if (after_top_k) {
    for (int j = lane; j < slots; j += lanes) most = fmaxf(most, logit(ids[j]));
    most = warp_max(most);
  }
  const auto raw = [&](float l) -> double {
    if (l == -INFINITY) return 0;
    return static_cast<double>(after_top_k ? expf(l - most) : score(l));
  };
  double divisor = 1, own = 0;  // own: of the first id of this lane, as a rule the only one
  const float own_logit = lane < slots ? logit(ids[lane]) : -INFINITY;
  if (lane < slots) own = raw(own_logit);
  if (after_top_k || s.renormalize) {
    double sum = own;
    if (!alone) {
      for (int j = lane + lanes; j < slots; j += lanes) sum += raw(logit(ids[j]));
    }
    // Lanes without a slot hold 0; small K needs few steps.
    for (int step = alone || s.top_k <= 8 ? 4 : lanes / 2; step > 0; step /= 2) {
      sum += __shfl_xor_sync(whole_warp, sum, step);
    }
    divisor = after_top_k ? sum : s.eps_maximum ? fmax(sum, s.eps) : sum + s.eps;
  }
  const auto store = [&](int j, float l, double value) {
    const int id = ids[j];
    const bool is_real = id >= 0 && id < s.experts;
    double weight = 0;
    if (l != -INFINITY) {
      weight = value / divisor * s.scale;
      if (r.expert_scale.given) weight *= static_cast<double>(r.expert_scale.as<float>(id));
    }
    if (is_real) {
      if (nan_row) weight = static_cast<double>(NAN);
      atomicAdd(&histogram[id], 1u);
    }
    r.ids.store_integer(id, t, j);
    r.weights.as<float>(t, j) = static_cast<float>(weight);
  };
  if (lane < slots) store(lane, own_logit, own);
  if (!alone) {
    for (int j = lane + lanes; j < slots; j += lanes) {
      const float l = logit(ids[j]);
      store(j, l, raw(l));
    }
  }
  __syncwarp();
}

constexpr int never_quick = -1;  // else a score function: see is_quick()
constexpr int quick_warps = 24;  // of a block: registers for 32 values a lane

// The tokens that choose_four() leaves; out of line, so that it keeps its registers. Whether the
// token of this lane is a row with NaN.
__device__ __noinline__ bool choose_each(const Route& r, Index t, int lane, FourScratch& memory) {
  Scratch scratch =
      scratch_of(r.settings, false, 0, reinterpret_cast<std::uint32_t*>(memory.values));
  Lane<narrow> row;
  row.begin(r, lane, scratch);
  bool nan_row = false;
  for (int i = 0; i < four && t + i < r.logits.shape[0]; ++i) {
    scratch.ids = memory.ids + i * r.settings.top_k;
    const RowScores scores = choose<narrow>(r, row, t + i, lane, scratch);
    if (lane / four_lanes == i) nan_row = scores.nan_row;
  }
  return nan_row;
}

// batch: tokens that a warp selects for, one after the other or (quick) at once, and weighs at
// once.
template <int V, int batch, int quick>
__global__ void __launch_bounds__((quick == never_quick ? most_warps : quick_warps) * warp_size, 1)
    route_kernel(const __grid_constant__ Route r) {
  extern __shared__ __align__(16) std::uint32_t memory[];
  if (*r.refusal != 0) return;
  const RouteSettings& s = r.settings;
  constexpr int lanes = warp_size / batch;
  const int lane = static_cast<int>(threadIdx.x) % warp_size, part = lane / lanes;
  const int warp = static_cast<int>(threadIdx.x) / warp_size;
  const int warps = static_cast<int>(blockDim.x) / warp_size;
  unsigned* histogram = memory;
  for (int e = static_cast<int>(threadIdx.x); e < s.experts; e += static_cast<int>(blockDim.x)) {
    histogram[e] = 0;
  }
  float* const bias = reinterpret_cast<float*>(memory + s.experts);
  bool usual = true;
  if constexpr (quick != never_quick) {
    for (int e = static_cast<int>(threadIdx.x); e < s.experts; e += static_cast<int>(blockDim.x)) {
      bias[e] = r.bias.given ? r.bias.as<float>(e) : 0.0F;
      usual &= fabsf(bias[e]) < INFINITY;
    }
  }
  usual = __syncthreads_and(usual) != 0;
  const Index tokens = r.logits.shape[0];
  const Index step = static_cast<Index>(gridDim.x) * warps * batch;
  Index t = (static_cast<Index>(blockIdx.x) * warps + warp) * batch;
  if constexpr (quick != never_quick) {
    FourScratch& scratch = reinterpret_cast<FourScratch*>(bias + s.experts)[warp];
    const auto score = [](float l) { return pointwise_score(quick, l); };
    for (; t < tokens; t += step) {
      bool nan_row = false;
      if (!usual || t + four > tokens || !choose_four(r, t, lane, score, bias, scratch)) {
        nan_row = choose_each(r, t, lane, scratch);
      }
      weigh<lanes>(r, t + part, lane % lanes, nan_row, score, scratch.ids + part * s.top_k,
                   histogram);
    }
  } else {
    Scratch scratch =
        scratch_of(s, V == 0, batch, memory + s.experts + warp * words_of_warp(s, V == 0, batch));
    int* const ids = scratch.ids;
    Lane<V> row;
    row.begin(r, lane, scratch);
    for (; t < tokens; t += step) {
      RowScores scores;
      for (int i = 0; i < batch && t + i < tokens; ++i) {
        scratch.ids = ids + i * s.top_k;
        const RowScores of_row = choose<V>(r, row, t + i, lane, scratch);
        if (part == i) scores = of_row;
      }
      weigh<lanes>(
          r, t + part, lane % lanes, scores.nan_row, [&](float l) { return scores.score(s, l); },
          ids + part * s.top_k, histogram);
    }
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

// Route::group_lanes.
int group_lanes(const RouteSettings& s, bool with_bias) {
  // Keys must be those of the compared values: see compare_row.
  const bool by_logits = s.score_function == DROPLESS_SCORE_SOFTMAX && !with_bias;
  if (s.groups == 1 || s.group_width > 2 || by_logits) return 0;
  const int lanes = s.group_size() / narrow;
  const bool whole = s.experts <= narrow * warp_size && s.group_size() % narrow == 0;
  return whole && (lanes & (lanes - 1)) == 0 ? lanes : 0;
}

// choose_four() applies; choose() takes the few tokens that it leaves.
bool is_quick(const Route& r) {
  const RouteSettings& s = r.settings;
  const bool groups = s.groups == 1 || (s.groups == four_parts && s.group_width == 2 &&
                                        2 * s.kept_groups >= s.top_k);
  return s.experts == four_experts && s.top_k <= four_lanes && groups &&
         s.score_function != DROPLESS_SCORE_SOFTMAX && r.aligned && !r.given_ids.given;
}

template <int V, int batch, int quick = never_quick>
void launch(Call& call, const Route& route) {
  const RouteSettings& s = route.settings;
  const int multiprocessors = call.device().multiprocessors;
  const Index tokens = route.logits.shape[0], available = call.device().shared_memory_per_block;
  const auto bytes_with = [&](Index count) -> Index {
    if (quick != never_quick) return 8 * s.experts + count * Index{sizeof(FourScratch)};
    return 4 * (s.experts + count * words_of_warp(s, V == 0, batch));
  };
  int warps = most_warps;
  if (quick != never_quick) {  // few tokens: on all multiprocessors
    warps = static_cast<int>(
        std::clamp<Index>(ceil_div(tokens, Index{batch} * multiprocessors), 1, quick_warps));
  }
  const Index most = quick != never_quick ? available : available / 2;
  while (warps > 1 && bytes_with(warps) > most) warps /= 2;
  const Index bytes = bytes_with(warps);
  if (bytes > available) not_supported("num_experts: more than fit into shared memory");
  const auto kernel = route_kernel<V, batch, quick>;
  if (bytes > 48 * 1024) {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(bytes)),
          "shared memory of the router");
  }
  // Blocks take several tokens each, so that few of them add to the counts in global memory.
  const unsigned blocks = grid_size(ceil_div(tokens, Index{warps} * batch), multiprocessors);
  kernel<<<blocks, static_cast<unsigned>(warps * warp_size), static_cast<std::size_t>(bytes),
           call.stream()>>>(route);
  check_launch("route");
}

// Four tokens at a time where that gives no warp more than one token more than one at a time.
bool at_once(const Call& call, const Route& route) {
  const RouteSettings& s = route.settings;
  const Index all_warps = static_cast<Index>(call.device().multiprocessors) * most_warps;
  const Index tokens = route.logits.shape[0], turns = ceil_div(tokens, all_warps);
  return s.top_k <= 8 && !s.after_top_k && turns >= 4 &&
         4 * ceil_div(tokens, 4 * all_warps) <= turns + 1;
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
  route.group_lanes = group_lanes(route.settings, route.bias.given);
  route.refusal = call.refusal_word();

  if (route.given_ids.given) check_ids(call, route.given_ids, experts);
  zero_counts<<<1, 1024, 0, call.stream()>>>(route.counts, call.refusal_word());
  check_launch("zero_counts");
  if (tokens > 0) {
    const bool quick = is_quick(route);
    if (quick && route.settings.score_function == DROPLESS_SCORE_SIGMOID) {
      launch<narrow, four, DROPLESS_SCORE_SIGMOID>(call, route);
    } else if (quick) {
      launch<narrow, four, DROPLESS_SCORE_SQRT_SOFTPLUS>(call, route);
    } else if (experts > narrow * warp_size) {
      launch<0, 1>(call, route);
    } else if (at_once(call, route)) {
      launch<narrow, four>(call, route);
    } else {
      launch<narrow, 1>(call, route);
    }
  }
  call.ran("route");
}

}  // namespace dropless::cuda
