// SPDX-License-Identifier: Apache-2.0
// Balance loss coeff * E / K * sum_e f_e P_e (declared factor c = 1, counts of the real routing).
// ROUTING-14.
//
// The tokens of every sequence (or of the whole batch) are cut into parts; a warp per part sums
// probabilities and counts, a block per sequence adds the parts up, one block the sequences: always
// in the same order (GENERAL-5). Floor: logits read once forward; read and gradients written
// backward.
#include "optimized/cuda/device_refusal.h"
#include "optimized/cuda/operations.h"
#include "optimized/cuda/route_settings.h"
#include "optimized/cuda/scores.cuh"

namespace dropless::cuda {
namespace {

constexpr float least_row_sum = 0x1p-126F;
constexpr int sequence_threads = 256;
constexpr int gradient_threads = 256;
constexpr Index tokens_per_part = 32;
constexpr Index most_parts = 1024;

struct Balance {
  RouteSettings settings;
  int scope;
  double factor;  // coeff * c * E / K
  Tensor logits, ids, token_mask, boundaries, accumulated_counts, accumulated_tokens;
  Tensor loss, d_loss, d_logits;
  Index sequences, parts;  // parts of a sequence
  // Scratch: of every part, [sequences, parts, experts] and [sequences, parts].
  double* p_sums;  // null in the backward pass
  int* counts;
  int* tokens;
  // Of every sequence: [sequences, experts] and [sequences].
  double* f;
  double* terms;
  Index* sequence_tokens;
  Index* counted_sequences;  // [1]
  int* refusal;

  [[nodiscard]] __device__ bool unmasked(Index t) const {
    return !token_mask.given || token_mask.as<std::uint8_t>(t) != 0;
  }
  [[nodiscard]] __device__ Index boundary(Index s) const {
    return boundaries.given ? boundaries.as<std::int64_t>(s) : (s == 0 ? 0 : logits.shape[0]);
  }
};

// What p_te = power * factor is made of: softmax over E, or scores over their sum.
struct Row {
  bool softmax;
  float most = -INFINITY, factor = 1;
  bool moves = true;  // the divisor moves with the scores
  [[nodiscard]] __device__ float power(int score_function, float l) const {
    return softmax ? expf(l - most) : pointwise_score(score_function, l);
  }
};

__device__ inline Row read_row(const Balance& b, Index t, int lane) {
  const RouteSettings& s = b.settings;
  Row row;
  row.softmax = s.score_function == DROPLESS_SCORE_SOFTMAX;
  if (row.softmax) {
    for (int e = lane; e < s.experts; e += warp_size) {
      row.most = fmaxf(row.most, load_float(b.logits, t, e));
    }
    row.most = warp_max(row.most);
  }
  float sum = 0;
  for (int e = lane; e < s.experts; e += warp_size) {
    sum += row.power(s.score_function, load_float(b.logits, t, e));
  }
  sum = warp_sum(sum);
  row.moves = row.softmax || sum > least_row_sum;
  row.factor = 1.0F / (row.softmax ? sum : fmaxf(sum, least_row_sum));
  return row;
}

__global__ void __launch_bounds__(warp_size) sum_parts(Balance b) {
  extern __shared__ double p_sums[];
  if (*b.refusal != 0) return;
  const int lane = static_cast<int>(threadIdx.x), experts = b.settings.experts;
  int* counts = reinterpret_cast<int*>(p_sums + (b.p_sums == nullptr ? 0 : experts));
  for (int e = lane; e < experts; e += warp_size) {
    if (b.p_sums != nullptr) p_sums[e] = 0;
    counts[e] = 0;
  }
  __syncwarp();
  const Index sequence = blockIdx.x / b.parts, part = blockIdx.x % b.parts;
  const Index begin = b.boundary(sequence), length = b.boundary(sequence + 1) - begin;
  const Index each = ceil_div(length, b.parts);
  const Index first = begin + min(part * each, length), end = min(first + each, begin + length);
  int tokens = 0;
  for (Index t = first; t < end; ++t) {
    if (!b.unmasked(t)) continue;
    ++tokens;
    for (int j = lane; j < b.settings.top_k; j += warp_size) {
      const Index id = b.ids.integer(t, j);
      if (id >= 0 && id < experts) atomicAdd(&counts[id], 1);  // integers: any order
    }
    if (b.p_sums == nullptr) continue;
    const Row row = read_row(b, t, lane);
    for (int e = lane; e < experts; e += warp_size) {
      const float power = row.power(b.settings.score_function, load_float(b.logits, t, e));
      p_sums[e] += static_cast<double>(power * row.factor);
    }
  }
  __syncwarp();
  for (int e = lane; e < experts; e += warp_size) {
    const Index at = static_cast<Index>(blockIdx.x) * experts + e;
    if (b.p_sums != nullptr) b.p_sums[at] = p_sums[e];
    b.counts[at] = counts[e];
  }
  if (lane == 0) b.tokens[blockIdx.x] = tokens;
}

// f_e = n_e / T_f, and the term of the sequence in the forward pass.
__global__ void __launch_bounds__(sequence_threads) finish_sequence(Balance b) {
  __shared__ double partial[warp_size];
  if (*b.refusal != 0) return;
  const int experts = b.settings.experts;
  const Index sequence = blockIdx.x, first = sequence * b.parts;
  const bool forward = b.p_sums != nullptr, global = b.scope == DROPLESS_SCOPE_GLOBAL;
  Index tokens = 0;
  for (Index part = 0; part < b.parts; ++part) tokens += b.tokens[first + part];
  Index counted = tokens;
  if (global) {
    counted = b.accumulated_tokens.as<std::int64_t>(0) + (forward ? tokens : 0);
    __syncthreads();
    if (threadIdx.x == 0) b.accumulated_tokens.as<std::int64_t>(0) = counted;
  }
  double sum = 0;
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += sequence_threads) {
    Index n = 0;
    double p = 0;
    for (Index part = 0; part < b.parts; ++part) {
      const Index at = (first + part) * experts + e;
      n += b.counts[at];
      if (forward) p += b.p_sums[at];
    }
    if (global) {
      std::int64_t& accumulated = b.accumulated_counts.as<std::int64_t>(e);
      n = accumulated + (forward ? n : 0);
      if (forward) accumulated = n;
    }
    const double f = counted == 0 ? 0.0 : static_cast<double>(n) / static_cast<double>(counted);
    b.f[sequence * experts + e] = f;
    sum += f * p;
  }
  sum = block_sum(sum, partial);
  if (threadIdx.x != 0) return;
  b.sequence_tokens[sequence] = tokens;
  b.terms[sequence] = tokens == 0 ? 0.0 : b.factor * sum / static_cast<double>(tokens);
}

// The mean over the sequences that have an unmasked token.
__global__ void __launch_bounds__(sequence_threads) finish_loss(Balance b) {
  __shared__ double sums[warp_size];
  __shared__ long long counts[warp_size];
  if (*b.refusal != 0) return;
  double sum = 0;
  long long counted = 0;
  for (Index s = threadIdx.x; s < b.sequences; s += sequence_threads) {
    sum += b.terms[s];
    counted += b.sequence_tokens[s] > 0 ? 1 : 0;
  }
  sum = block_sum(sum, sums);
  counted = block_sum(counted, counts);
  if (threadIdx.x != 0) return;
  *b.counted_sequences = counted;
  if (b.loss.given) {
    b.loss.as<float>(0) =
        counted == 0 ? 0.0F : static_cast<float>(sum / static_cast<double>(counted));
  }
}

// The last sequence that begins at or before t, the one that holds it unless t is behind all.
__device__ inline Index sequence_of(const Balance& b, Index t) {
  Index low = 0, high = b.sequences;
  while (high - low > 1) {
    const Index middle = (low + high) / 2;
    (b.boundary(middle) <= t ? low : high) = middle;
  }
  return low;
}

// d p_e / d l: (f_e - sum of f p) times p_e, or times the slope over the sum of the scores.
__global__ void __launch_bounds__(gradient_threads) balance_gradients(Balance b) {
  if (*b.refusal != 0) return;
  const RouteSettings& s = b.settings;
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const Index t =
      static_cast<Index>(blockIdx.x) * (gradient_threads / warp_size) + threadIdx.x / warp_size;
  if (t >= b.logits.shape[0]) return;
  const Index sequence = sequence_of(b, t);
  const bool counts =
      b.sequences > 0 && t < b.boundary(b.sequences) && b.unmasked(t) && *b.counted_sequences > 0;
  if (!counts) {
    for (int e = lane; e < s.experts; e += warp_size) b.d_logits.as<float>(t, e) = 0;
    return;
  }
  const double outer = static_cast<double>(b.d_loss.as<float>(0)) * b.factor /
                       static_cast<double>(*b.counted_sequences) /
                       static_cast<double>(b.sequence_tokens[sequence]);
  const double* f = b.f + sequence * s.experts;
  const Row row = read_row(b, t, lane);
  double mean = 0;
  for (int e = lane; e < s.experts; e += warp_size) {
    const float power = row.power(s.score_function, load_float(b.logits, t, e));
    mean += f[e] * static_cast<double>(power * row.factor);
  }
  mean = row.moves ? warp_sum(mean) : 0.0;
  for (int e = lane; e < s.experts; e += warp_size) {
    const float l = load_float(b.logits, t, e);
    float slope = row.power(s.score_function, l);
    if (s.score_function == DROPLESS_SCORE_SIGMOID) {
      slope *= sigmoid_score(-l);
    } else if (s.score_function == DROPLESS_SCORE_SQRT_SOFTPLUS) {
      slope = slope == 0.0F ? 0.0F : sigmoid_score(l) / (2.0F * slope);
    }
    const double inner =
        (f[e] - mean) * static_cast<double>(slope) * static_cast<double>(row.factor);
    b.d_logits.as<float>(t, e) = static_cast<float>(outer * inner);
  }
}

__global__ void check_boundaries(Balance b) {
  const Index tokens = b.logits.shape[0];
  for (Index s = threadIdx.x; s <= b.sequences; s += blockDim.x) {
    const Index here = b.boundary(s);
    const bool falls = s > 0 && here < b.boundary(s - 1);
    if (falls || (s == 0 && here != 0) || here > tokens) {
      refuse_on_device(b.refusal, DeviceReason::falling_boundaries);
    }
  }
}

Balance read_balance(const dropless_balance_loss_args& args) {
  Balance b = {};
  b.settings = read_route_settings(args.settings, false);
  const Index experts = b.settings.experts;
  b.scope = args.scope;
  b.factor = args.coeff * static_cast<double>(experts) / static_cast<double>(b.settings.top_k);
  refuse_if(b.scope < DROPLESS_SCOPE_MICRO_BATCH || b.scope > DROPLESS_SCOPE_GLOBAL,
            "scope: unknown");
  b.logits = tensor(args.logits, "logits", floats, {any, experts});
  const Index tokens = b.logits.shape[0];
  b.ids = tensor(args.ids, "ids", integers, {tokens, b.settings.top_k});
  b.token_mask = optional_tensor(args.token_mask, "token_mask", {DROPLESS_U8}, {tokens});
  b.sequences = 1;
  if (b.scope == DROPLESS_SCOPE_SEQUENCE) {
    b.boundaries = tensor(args.sequence_boundaries, "sequence_boundaries", {DROPLESS_I64}, {any});
    refuse_if(b.boundaries.shape[0] < 1, "sequence_boundaries: empty");
    b.sequences = b.boundaries.shape[0] - 1;
  }
  if (b.scope == DROPLESS_SCOPE_GLOBAL) {
    b.accumulated_counts =
        tensor(args.accumulated_counts, "accumulated_counts", {DROPLESS_I64}, {experts});
    b.accumulated_tokens =
        tensor(args.accumulated_tokens, "accumulated_tokens", {DROPLESS_I64}, {1});
  }
  b.parts = std::clamp<Index>(ceil_div(tokens, tokens_per_part) / std::max<Index>(b.sequences, 1),
                              1, most_parts);
  return b;
}

// Everything up to f and the terms of the sequences.
void sum_up(Call& call, Balance& b, bool forward) {
  const Index experts = b.settings.experts, all = b.sequences * b.parts;
  const Index shared = experts * static_cast<Index>(sizeof(int) + (forward ? sizeof(double) : 0));
  if (shared > call.device().shared_memory_per_block) {
    not_supported("num_experts: more than fit into shared memory");
  }
  if (forward) b.p_sums = call.scratch<double>(all * experts);
  b.counts = call.scratch<int>(all * experts);
  b.tokens = call.scratch<int>(all);
  b.f = call.scratch<double>(b.sequences * experts);
  b.terms = call.scratch<double>(b.sequences);
  b.sequence_tokens = call.scratch<Index>(b.sequences);
  b.counted_sequences = call.scratch<Index>(1);
  b.refusal = call.refusal_word();
  check_ids(call, b.ids, experts);
  if (b.boundaries.given && !call.trusted()) {
    check_boundaries<<<1, sequence_threads, 0, call.stream()>>>(b);
    check_launch("check_boundaries");
  }
  if (all > 0) {
    check(cudaFuncSetAttribute(sum_parts, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shared)),
          "shared memory of the balance loss");
    sum_parts<<<grid_size(all), warp_size, static_cast<std::size_t>(shared), call.stream()>>>(b);
    check_launch("sum_parts");
    finish_sequence<<<grid_size(b.sequences), sequence_threads, 0, call.stream()>>>(b);
    check_launch("finish_sequence");
  }
  finish_loss<<<1, sequence_threads, 0, call.stream()>>>(b);
  check_launch("finish_loss");
}

}  // namespace

void balance_loss_forward(Call& call, const dropless_balance_loss_args& args) {
  Balance b = read_balance(args);
  b.loss = tensor(args.loss, "loss", {DROPLESS_FP32}, {1});
  sum_up(call, b, true);
  call.ran("losses");
}

void balance_loss_backward(Call& call, const dropless_balance_loss_args& args) {
  Balance b = read_balance(args);
  const Index tokens = b.logits.shape[0];
  b.d_loss = tensor(args.d_loss, "d_loss", {DROPLESS_FP32}, {1});
  b.d_logits = tensor(args.d_logits, "d_logits", {DROPLESS_FP32}, {tokens, b.settings.experts});
  sum_up(call, b, false);
  if (tokens > 0) {
    const unsigned blocks = grid_size(ceil_div(tokens, gradient_threads / warp_size));
    balance_gradients<<<blocks, gradient_threads, 0, call.stream()>>>(b);
    check_launch("balance_gradients");
  }
  call.ran("losses");
}

}  // namespace dropless::cuda
