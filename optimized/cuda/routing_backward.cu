// SPDX-License-Identifier: Apache-2.0
// Backward of routing with the selection held constant, and the update of the expert bias. A warp
// per token. ROUTING-12, 16.
//
// Floor: logits read and gradients written once; T = 32768, E = 256, fp32: 68 MB, 17 us at 4 TB/s.
#include "optimized/cuda/device_refusal.h"
#include "optimized/cuda/operations.h"
#include "optimized/cuda/route_settings.h"
#include "optimized/cuda/scores.cuh"

namespace dropless::cuda {
namespace {

constexpr int warps_per_block = 8;
constexpr int block_threads = warps_per_block * warp_size;

struct Backward {
  RouteSettings settings;
  Tensor logits, token_mask, expert_scale, ids, d_weights, d_logits;
  // [T,K] terms of the gradient of the expert scale, or null.
  float* scale_terms;
  const int* refusal;
};

// One selected slot of a token, in a lane's hands.
struct Slot {
  int id = -1;
  double gradient = 0;  // by its share: d_weight * factor * expert scale
  double score = 0;     // that enters the normalisation: score, or exp(l - max) after top-k
  double slope = 0;     // of a pointwise score
};

// most and sum of the softmax over all E; unused by the others.
__device__ inline Slot read_slot(const Backward& b, Index t, int j, float row_most, float row_sum,
                                 double selected_most) {
  const RouteSettings& s = b.settings;
  Slot slot;
  const Index id = b.ids.integer(t, j);
  if (id < 0 || id >= s.experts) return slot;
  slot.id = static_cast<int>(id);
  slot.gradient = static_cast<double>(b.d_weights.as<float>(t, j)) * s.scale;
  if (b.expert_scale.given) {
    slot.gradient *= static_cast<double>(b.expert_scale.as<float>(slot.id));
  }
  const double l = static_cast<double>(load_float(b.logits, t, slot.id));
  if (s.after_top_k) {
    slot.score = l == -INFINITY ? 0.0 : exp(l - selected_most);  // masked: weighs 0 (ROUTING-7)
  } else if (s.score_function == DROPLESS_SCORE_SOFTMAX) {
    slot.score = exp(l - static_cast<double>(row_most)) / static_cast<double>(row_sum);
  } else {
    const ScoreSlope point = pointwise_slope(s.score_function, l);
    slot.score = point.score;
    slot.slope = point.slope;
  }
  return slot;
}

// share_j = score_j / D; d_score_j = (g_j - [D moves] sum of g share) / D. ROUTING-6.
struct Normalisation {
  double divisor = 1, mean = 0;
  [[nodiscard]] __device__ double share(const Slot& slot) const {
    return divisor == 0 ? 0.0 : slot.score / divisor;
  }
  [[nodiscard]] __device__ double gradient(const Slot& slot) const {
    return divisor == 0 ? 0.0 : (slot.gradient - mean) / divisor;
  }
};

// body(j, slot) for the slots of this lane.
template <class Body>
__device__ inline void for_slots(const Backward& b, Index t, int lane, float row_most,
                                 float row_sum, double selected_most, const Body& body) {
  for (int j = lane; j < b.settings.top_k; j += warp_size) {
    body(j, read_slot(b, t, j, row_most, row_sum, selected_most));
  }
}

__device__ inline void differentiate(const Backward& b, Index t, int lane) {
  const RouteSettings& s = b.settings;
  const bool softmax_of_all = s.score_function == DROPLESS_SCORE_SOFTMAX && !s.after_top_k;
  float row_most = -INFINITY, row_sum = 0;
  if (softmax_of_all) {
    for (int e = lane; e < s.experts; e += warp_size) {
      row_most = fmaxf(row_most, load_float(b.logits, t, e));
    }
    row_most = warp_max(row_most);
    for (int e = lane; e < s.experts; e += warp_size) {
      row_sum += expf(load_float(b.logits, t, e) - row_most);
    }
    row_sum = warp_sum(row_sum);
  }
  double selected_most = -INFINITY;
  if (s.after_top_k) {
    for (int j = lane; j < s.top_k; j += warp_size) {
      const Index id = b.ids.integer(t, j);
      if (id >= 0 && id < s.experts) {
        selected_most = fmax(selected_most, static_cast<double>(load_float(b.logits, t, id)));
      }
    }
    for (int step = warp_size / 2; step > 0; step /= 2) {
      selected_most = fmax(selected_most, __shfl_xor_sync(whole_warp, selected_most, step));
    }
  }

  double sum = 0, product = 0;
  for_slots(b, t, lane, row_most, row_sum, selected_most, [&](int, const Slot& slot) {
    sum += slot.score;
    product += slot.gradient * slot.score;
  });
  sum = warp_sum(sum);
  product = warp_sum(product);
  Normalisation norm;
  bool moves = false;
  if (s.after_top_k) {
    norm.divisor = sum;
    moves = true;
  } else if (s.renormalize) {
    norm.divisor = s.eps_maximum ? fmax(sum, s.eps) : sum + s.eps;
    moves = !s.eps_maximum || sum > s.eps;
  }
  norm.mean = moves && norm.divisor != 0 ? product / norm.divisor : 0;

  // What the softmax over all takes away from every expert.
  double all_mean = 0;
  if (softmax_of_all) {
    for_slots(b, t, lane, row_most, row_sum, selected_most, [&](int, const Slot& slot) {
      if (slot.id >= 0) all_mean += norm.gradient(slot) * slot.score;
    });
    all_mean = warp_sum(all_mean);
  }
  const float taken = static_cast<float>(all_mean), factor = 1.0F / row_sum;
  for (int e = lane; e < s.experts; e += warp_size) {
    float gradient = 0;
    if (softmax_of_all) {
      gradient = -taken * (expf(load_float(b.logits, t, e) - row_most) * factor);
    }
    b.d_logits.as<float>(t, e) = gradient;
  }
  __syncwarp();  // the selected experts are written over what is there
  for_slots(b, t, lane, row_most, row_sum, selected_most, [&](int j, const Slot& slot) {
    if (b.scale_terms != nullptr) {
      const double d_weight = slot.id < 0 ? 0.0 : static_cast<double>(b.d_weights.as<float>(t, j));
      b.scale_terms[t * s.top_k + j] =
          slot.id < 0 ? 0.0F : static_cast<float>(d_weight * norm.share(slot) * s.scale);
    }
    if (slot.id < 0) return;
    double gradient = norm.gradient(slot);
    if (softmax_of_all) {
      gradient = (gradient - all_mean) * slot.score;
    } else {  // d exp(l) = exp(l) dl after top-k; the maximum cancels
      gradient *= s.after_top_k ? slot.score : slot.slope;
    }
    b.d_logits.as<float>(t, slot.id) = static_cast<float>(gradient);
  });
  __syncwarp();
}

__global__ void __launch_bounds__(block_threads) route_backward_kernel(Backward b) {
  if (*b.refusal != 0) return;
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const Index step = static_cast<Index>(gridDim.x) * warps_per_block;
  for (Index t = static_cast<Index>(blockIdx.x) * warps_per_block + threadIdx.x / warp_size;
       t < b.logits.shape[0]; t += step) {
    if (!b.token_mask.given || b.token_mask.as<std::uint8_t>(t) != 0) {
      differentiate(b, t, lane);
      continue;
    }
    for (int e = lane; e < b.settings.experts; e += warp_size) b.d_logits.as<float>(t, e) = 0;
    for (int j = lane; b.scale_terms != nullptr && j < b.settings.top_k; j += warp_size) {
      b.scale_terms[t * b.settings.top_k + j] = 0;
    }
  }
}

// A block per expert adds up the terms of its pairs, always in the same order (GENERAL-5).
__global__ void sum_scale_terms(Tensor ids, const float* terms, Tensor d_scale,
                                const int* refusal) {
  __shared__ double partial[warp_size];
  if (*refusal != 0) return;
  const Index expert = blockIdx.x, top_k = ids.shape[1], pairs = ids.shape[0] * top_k;
  double sum = 0;
  for (Index pair = threadIdx.x; pair < pairs; pair += blockDim.x) {
    if (ids.integer(pair / top_k, pair % top_k) == expert) sum += static_cast<double>(terms[pair]);
  }
  sum = block_sum(sum, partial);
  if (threadIdx.x == 0) d_scale.as<float>(expert) = static_cast<float>(sum);
}

// One block; counts are added as integers, whatever their size (ROUTING-16).
__global__ void bias_update_kernel(Tensor counts, Tensor bias, double rate, const int* refusal) {
  __shared__ long long partial[warp_size];
  if (*refusal != 0) return;
  const Index experts = bias.shape[0], rows = counts.shape[0];
  const auto of_expert = [&](Index e) {
    long long sum = 0;
    for (Index i = 0; i < rows; ++i) sum += counts.as<std::int64_t>(i, e);
    return sum;
  };
  long long total = 0;
  for (Index e = threadIdx.x; e < experts; e += blockDim.x) total += of_expert(e);
  total = block_sum(total, partial);
  for (Index e = threadIdx.x; e < experts; e += blockDim.x) {
    const long long above = total - experts * of_expert(e);
    if (above == 0) continue;
    float& value = bias.as<float>(e);
    value = static_cast<float>(static_cast<double>(value) + (above > 0 ? rate : -rate));
  }
}

}  // namespace

void route_backward(Call& call, const dropless_route_backward_args& args) {
  Backward b = {};
  b.settings = read_route_settings(args.settings, false);
  const Index experts = b.settings.experts, top_k = b.settings.top_k;
  b.logits = tensor(args.logits, "logits", floats, {any, experts});
  const Index tokens = b.logits.shape[0];
  b.token_mask = optional_tensor(args.token_mask, "token_mask", {DROPLESS_U8}, {tokens});
  b.expert_scale = optional_tensor(args.expert_scale, "expert_scale", {DROPLESS_FP32}, {experts});
  b.ids = tensor(args.ids, "ids", integers, {tokens, top_k});
  b.d_weights = tensor(args.d_weights, "d_weights", {DROPLESS_FP32}, {tokens, top_k});
  b.d_logits = tensor(args.d_logits, "d_logits", {DROPLESS_FP32}, {tokens, experts});
  const Tensor d_scale =
      optional_tensor(args.d_expert_scale, "d_expert_scale", {DROPLESS_FP32}, {experts});
  if (d_scale.given) b.scale_terms = call.scratch<float>(tokens * top_k);
  b.refusal = call.refusal_word();

  check_ids(call, b.ids, experts);
  if (tokens > 0) {
    const unsigned blocks = grid_size(ceil_div(tokens, warps_per_block));
    route_backward_kernel<<<blocks, block_threads, 0, call.stream()>>>(b);
    check_launch("route_backward");
  }
  if (d_scale.given) {
    sum_scale_terms<<<static_cast<unsigned>(experts), block_threads, 0, call.stream()>>>(
        b.ids, b.scale_terms, d_scale, b.refusal);
    check_launch("sum_scale_terms");
  }
  call.ran("route");
}

void bias_update(Call& call, const dropless_bias_update_args& args) {
  const Tensor bias = tensor(args.expert_bias, "expert_bias", {DROPLESS_FP32}, {any});
  const Tensor counts = tensor(args.counts, "counts", {DROPLESS_I64}, {any, bias.shape[0]});
  bias_update_kernel<<<1, 1024, 0, call.stream()>>>(counts, bias, args.rate, call.refusal_word());
  check_launch("bias_update");
  call.ran("route");
}

}  // namespace dropless::cuda
