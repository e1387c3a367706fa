// SPDX-License-Identifier: Apache-2.0
// Router z-loss and cross-entropy, both made of logsumexp. ROUTING-15, LOSSES-1.
//
// A block per token reads its row twice, the second time from the cache; the terms of the tokens
// are added up by one block in a fixed order. Floor: logits once, and gradients once in the
// backward pass.
#include "optimized/cuda/device_refusal.h"
#include "optimized/cuda/elements.cuh"
#include "optimized/cuda/operations.h"

namespace dropless::cuda {
namespace {

constexpr int most_threads = 512;
constexpr int columns_per_thread = 8;
constexpr int sum_threads = 1024;

// Which tokens count, and what each asks for: cross-entropy has labels, z-loss perhaps a mask.
struct Tokens {
  Tensor labels, mask;
  Index tokens = 0;

  [[nodiscard]] __device__ bool counts(Index t) const {
    if (labels.given) return labels.integer(t) >= 0;
    return !mask.given || mask.as<std::uint8_t>(t) != 0;
  }
};

struct Loss {
  Tokens tokens;
  Tensor logits, loss, d_loss, d_logits;
  double coeff = 1;
  bool aligned = false;
  double* terms = nullptr;   // [T]
  Index* counted = nullptr;  // [1]
  int* refusal = nullptr;
};

struct LogSumExp {
  float most;
  double sum;  // of exp(l - most)
  [[nodiscard]] __device__ double value() const { return static_cast<double>(most) + log(sum); }
};

// body(column, left, eight logits) for this thread's share of a row.
template <class Body>
__device__ __forceinline__ void for_row(const Loss& s, Index t, const Body& body) {
  const Index width = s.logits.shape[1];
  for (Index column = threadIdx.x * columns_per_thread; column < width;
       column += blockDim.x * columns_per_thread) {
    Eight row;
    load_eight(s.logits, t, column, width - column, s.aligned, row);
    body(column, width - column, row);
  }
}

__device__ inline LogSumExp log_sum_exp(const Loss& s, Index t) {
  __shared__ float most_of_warps[most_threads / warp_size];
  __shared__ double sum_of_warps[most_threads / warp_size];
  LogSumExp result = {-INFINITY, 0};
  for_row(s, t, [&](Index, Index left, const Eight& row) {
    for (int i = 0; i < columns_per_thread; ++i) {
      if (i < left) result.most = fmaxf(result.most, row.value[i]);
    }
  });
  result.most = block_max(result.most, most_of_warps);
  for_row(s, t, [&](Index, Index left, const Eight& row) {
    float sum = 0;
    for (int i = 0; i < columns_per_thread; ++i) {
      if (i < left) sum += expf(row.value[i] - result.most);
    }
    result.sum += static_cast<double>(sum);
  });
  result.sum = block_sum(result.sum, sum_of_warps);
  return result;
}

__global__ void __launch_bounds__(most_threads) loss_terms(Loss s) {
  if (*s.refusal != 0) return;
  const Index t = blockIdx.x;
  if (!s.tokens.counts(t)) {
    if (threadIdx.x == 0) s.terms[t] = 0;
    return;
  }
  const LogSumExp lse = log_sum_exp(s, t);
  if (threadIdx.x != 0) return;
  if (s.tokens.labels.given) {
    const double label = static_cast<double>(load_float(s.logits, t, s.tokens.labels.integer(t)));
    s.terms[t] = static_cast<double>(lse.most) - label + log(lse.sum);
  } else {
    s.terms[t] = lse.value() * lse.value();
  }
}

// One block: how many tokens count, and in the forward pass the mean of their terms.
__global__ void __launch_bounds__(sum_threads) finish_loss(Loss s) {
  __shared__ double sums[warp_size];
  __shared__ long long counts[warp_size];
  if (*s.refusal != 0) return;
  double sum = 0;
  long long counted = 0;
  for (Index t = threadIdx.x; t < s.tokens.tokens; t += sum_threads) {
    counted += s.tokens.counts(t) ? 1 : 0;
    if (s.loss.given) sum += s.terms[t];
  }
  counted = block_sum(counted, counts);
  sum = block_sum(sum, sums);
  if (threadIdx.x != 0) return;
  if (s.loss.given) {
    s.loss.as<float>(0) =
        counted == 0 ? 0.0F : static_cast<float>(s.coeff * (sum / static_cast<double>(counted)));
  } else {
    *s.counted = counted;
  }
}

__global__ void __launch_bounds__(most_threads) loss_gradients(Loss s) {
  if (*s.refusal != 0) return;
  const Index t = blockIdx.x, width = s.d_logits.shape[1];
  if (!s.tokens.counts(t)) {
    for (Index e = threadIdx.x; e < width; e += blockDim.x) s.d_logits.as<float>(t, e) = 0;
    return;
  }
  const LogSumExp lse = log_sum_exp(s, t);
  const double mean = static_cast<double>(s.d_loss.as<float>(0)) * s.coeff /
                      static_cast<double>(max(*s.counted, Index{1}));
  const float factor = static_cast<float>(s.tokens.labels.given ? mean : mean * 2.0 * lse.value());
  const Index label = s.tokens.labels.given ? s.tokens.labels.integer(t) : -1;
  const float inverse = static_cast<float>(1.0 / lse.sum);
  for_row(s, t, [&](Index column, Index left, const Eight& row) {
    Eight gradient;
#pragma unroll
    for (int i = 0; i < columns_per_thread; ++i) {
      const float p = expf(row.value[i] - lse.most) * inverse;
      gradient.value[i] = factor * (column + i == label ? p - 1.0F : p);
    }
    store_eight(s.d_logits, t, column, left, s.aligned, gradient);
  });
}

__global__ void check_labels(Tensor labels, Index classes, int* refusal) {
  for (Index t = threadIdx.x; t < labels.shape[0]; t += blockDim.x) {
    if (labels.integer(t) >= classes) refuse_on_device(refusal, DeviceReason::label_out_of_range);
  }
}

unsigned threads_of(const Loss& s) {
  return static_cast<unsigned>(
      block_size(ceil_div(s.logits.shape[1], columns_per_thread), most_threads));
}

void forward(Call& call, Loss& s, const dropless_tensor* loss) {
  s.loss = tensor(loss, "loss", {DROPLESS_FP32}, {1});
  s.aligned = s.logits.rows_aligned_to(16);
  s.terms = call.scratch<double>(s.tokens.tokens);
  s.refusal = call.refusal_word();
  if (s.tokens.tokens > 0) {
    loss_terms<<<grid_size(s.tokens.tokens), threads_of(s), 0, call.stream()>>>(s);
    check_launch("loss_terms");
  }
  finish_loss<<<1, sum_threads, 0, call.stream()>>>(s);
  check_launch("finish_loss");
  call.ran("losses");
}

void backward(Call& call, Loss& s, const dropless_tensor* d_loss, const dropless_tensor* d_logits) {
  s.d_loss = tensor(d_loss, "d_loss", {DROPLESS_FP32}, {1});
  s.d_logits = tensor(d_logits, "d_logits", {DROPLESS_FP32}, {s.tokens.tokens, s.logits.shape[1]});
  s.aligned = s.logits.rows_aligned_to(16) && s.d_logits.rows_aligned_to(16);
  s.counted = call.scratch<Index>(1);
  s.refusal = call.refusal_word();
  if (s.tokens.tokens > 0) {
    finish_loss<<<1, sum_threads, 0, call.stream()>>>(s);
    check_launch("finish_loss");
    loss_gradients<<<grid_size(s.tokens.tokens), threads_of(s), 0, call.stream()>>>(s);
    check_launch("loss_gradients");
  }
  call.ran("losses");
}

Loss z_loss(const dropless_z_loss_args& args) {
  Loss s;
  s.logits = tensor(args.logits, "logits", floats, {any, any});
  s.tokens.tokens = s.logits.shape[0];
  s.tokens.mask = optional_tensor(args.token_mask, "token_mask", {DROPLESS_U8}, {s.tokens.tokens});
  s.coeff = args.coeff;
  return s;
}

// Also what is checked on the device, once the host has seen the rest.
Loss cross_entropy(const dropless_cross_entropy_args& args) {
  Loss s;
  s.logits = tensor(args.logits, "logits", floats, {any, any});
  s.tokens.tokens = s.logits.shape[0];
  s.tokens.labels = tensor(args.labels, "labels", integers, {s.tokens.tokens});
  return s;
}

void check_labels_of(Call& call, const Loss& s) {
  if (call.trusted() || s.tokens.tokens == 0) return;
  check_labels<<<1, sum_threads, 0, call.stream()>>>(s.tokens.labels, s.logits.shape[1],
                                                     call.refusal_word());
  check_launch("check_labels");
}

}  // namespace

void z_loss_forward(Call& call, const dropless_z_loss_args& args) {
  Loss s = z_loss(args);
  forward(call, s, args.loss);
}

void z_loss_backward(Call& call, const dropless_z_loss_args& args) {
  Loss s = z_loss(args);
  backward(call, s, args.d_loss, args.d_logits);
}

void cross_entropy_forward(Call& call, const dropless_cross_entropy_args& args) {
  Loss s = cross_entropy(args);
  check_labels_of(call, s);
  forward(call, s, args.loss);
}

void cross_entropy_backward(Call& call, const dropless_cross_entropy_args& args) {
  Loss s = cross_entropy(args);
  check_labels_of(call, s);
  backward(call, s, args.d_loss, args.d_logits);
}

}  // namespace dropless::cuda
