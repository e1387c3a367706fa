// SPDX-License-Identifier: Apache-2.0
// AdamW, in double with one rounding of each result. OPTIMIZER-1.
//
// Floor: with fp32 state and gradient 16 bytes read and 12 written an element.
#include <cmath>

#include "optimized/cuda/device_refusal.h"
#include "optimized/cuda/elements.cuh"
#include "optimized/cuda/operations.h"

namespace dropless::cuda {
namespace {

constexpr int block_threads = 256;

struct Adam {
  Tensor weight, gradient, first, second, master, scale_tensor;
  double learning_rate, beta1, beta2, eps, weight_decay, scale;
  double correction1, correction2;  // 1 - beta^t
  bool stochastic;
  std::uint64_t stream;  // of random bits: of the seed and the step
  const int* refusal;
};

// Random bits of one element come from its index (a counter-based generator with the mixing
// function of SplitMix64), so that the same seed repeats them.
__host__ __device__ inline std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// One of the two bf16 neighbours: up with the probability of the distance to the lower one.
__device__ inline std::uint16_t round_stochastically(float x, std::uint64_t random) {
  const std::uint32_t bits = __float_as_uint(x);
  if ((bits & 0x7F800000u) == 0x7F800000u) return static_cast<std::uint16_t>(round_bf16(x));
  return static_cast<std::uint16_t>((bits + static_cast<std::uint32_t>(random >> 48)) >> 16);
}

__global__ void __launch_bounds__(block_threads) adamw_kernel(Adam a) {
  if (*a.refusal != 0) return;
  const double scale =
      a.scale_tensor.given ? static_cast<double>(a.scale_tensor.as<float>(0)) : a.scale;
  const Tensor& source = a.master.given ? a.master : a.weight;
  const Index step = static_cast<Index>(gridDim.x) * block_threads;
  for (Index i = static_cast<Index>(blockIdx.x) * block_threads + threadIdx.x;
       i < a.weight.shape[0]; i += step) {
    const double g = scale * static_cast<double>(load_float(a.gradient, i));
    const double first =
        a.beta1 * static_cast<double>(load_float(a.first, i)) + (1.0 - a.beta1) * g;
    const double second =
        a.beta2 * static_cast<double>(a.second.as<float>(i)) + (1.0 - a.beta2) * g * g;
    const double update = (first / a.correction1) / (sqrt(second / a.correction2) + a.eps);
    const double old = static_cast<double>(load_float(source, i));
    const float weight =
        static_cast<float>(old - a.learning_rate * (update + a.weight_decay * old));
    store_float(a.first, static_cast<float>(first), i);
    a.second.as<float>(i) = static_cast<float>(second);
    if (a.master.given) a.master.as<float>(i) = weight;
    if (a.stochastic) {
      const std::uint64_t counter = static_cast<std::uint64_t>(i) + 1;
      a.weight.as<std::uint16_t>(i) =
          round_stochastically(weight, mix(a.stream + 0x9E3779B97F4A7C15u * counter));
    } else {
      store_float(a.weight, weight, i);
    }
  }
}

}  // namespace

void adamw(Call& call, const dropless_adamw_args& args) {
  Adam a = {};
  a.weight = tensor(args.weight, "weight", floats, {any});
  const Index n = a.weight.shape[0];
  a.gradient = tensor(args.gradient, "gradient", floats, {n});
  a.first = tensor(args.first_moment, "first_moment", floats, {n});
  a.second = tensor(args.second_moment, "second_moment", {DROPLESS_FP32}, {n});
  a.master = optional_tensor(args.master, "master", {DROPLESS_FP32}, {n});
  a.scale_tensor =
      optional_tensor(args.gradient_scale_tensor, "gradient_scale_tensor", {DROPLESS_FP32}, {1});
  refuse_if(args.step < 1, "step: below 1");
  refuse_if(args.weight_rounding != DROPLESS_ROUND_NEAREST_EVEN &&
                args.weight_rounding != DROPLESS_ROUND_STOCHASTIC,
            "weight_rounding: unknown");
  const double t = static_cast<double>(args.step);
  a.learning_rate = args.learning_rate;
  a.beta1 = args.beta1;
  a.beta2 = args.beta2;
  a.eps = args.eps;
  a.weight_decay = args.weight_decay;
  a.scale = args.gradient_scale;
  a.correction1 = 1.0 - std::pow(args.beta1, t);
  a.correction2 = 1.0 - std::pow(args.beta2, t);
  a.stochastic =
      args.weight_rounding == DROPLESS_ROUND_STOCHASTIC && a.weight.dtype == DROPLESS_BF16;
  a.stream = mix(args.seed ^ mix(static_cast<std::uint64_t>(args.step)));
  a.refusal = call.refusal_word();
  if (n > 0) {
    const unsigned blocks =
        grid_size(ceil_div(n, block_threads), 32 * call.device().multiprocessors);
    adamw_kernel<<<blocks, block_threads, 0, call.stream()>>>(a);
    check_launch("adamw");
  }
  call.ran("optimizer");
}

}  // namespace dropless::cuda
