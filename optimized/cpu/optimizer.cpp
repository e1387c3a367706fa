// SPDX-License-Identifier: Apache-2.0
// AdamW, in double with one rounding of each result. OPTIMIZER-1 (semantics 7.3).
#include <cmath>

#include "optimized/cpu/operations.h"
#include "optimized/cpu/values.h"

namespace dropless::cpu {
namespace {

constexpr Index piece = 256;

// Random bits of one element: a counter-based generator (the mixing function of SplitMix64), so
// that the same seed repeats them whatever the threads.
DROPLESS_INLINE std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// One of the two bf16 neighbours: up with the probability of the distance to the lower one.
std::uint16_t round_stochastically(float x, std::uint64_t random) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  if ((bits & 0x7F800000u) == 0x7F800000u) return round_bf16(x);
  return static_cast<std::uint16_t>((bits + static_cast<std::uint32_t>(random >> 48)) >> 16);
}

struct Adam {
  double learning_rate, beta1, beta2, eps, weight_decay, scale;
  double correction1, correction2;  // 1 - beta^t
};

// One step on a run; p, m and v are in and out.
DROPLESS_INLINE void step_run(const Adam& a, const float* gradient, Index n, float* p, float* m,
                              float* v) {
  for (Index i = 0; i < n; ++i) {
    const double g = a.scale * static_cast<double>(gradient[i]);
    const double first = a.beta1 * static_cast<double>(m[i]) + (1.0 - a.beta1) * g;
    const double second = a.beta2 * static_cast<double>(v[i]) + (1.0 - a.beta2) * g * g;
    const double update = (first / a.correction1) / (std::sqrt(second / a.correction2) + a.eps);
    const double weight = static_cast<double>(p[i]);
    p[i] = static_cast<float>(weight - a.learning_rate * (update + a.weight_decay * weight));
    m[i] = static_cast<float>(first);
    v[i] = static_cast<float>(second);
  }
}

}  // namespace

void adamw(Call& call, const dropless_adamw_args& args) {
  const Tensor weight = tensor(args.weight, "weight", floats, {any});
  const Index n = weight.shape[0];
  const Tensor gradient = tensor(args.gradient, "gradient", floats, {n});
  const Tensor first = tensor(args.first_moment, "first_moment", floats, {n});
  const Tensor second = tensor(args.second_moment, "second_moment", {DROPLESS_FP32}, {n});
  const Tensor master = optional_tensor(args.master, "master", {DROPLESS_FP32}, {n});
  const Tensor scale =
      optional_tensor(args.gradient_scale_tensor, "gradient_scale_tensor", {DROPLESS_FP32}, {1});
  refuse_if(args.step < 1, "step: below 1");
  refuse_if(args.weight_rounding != DROPLESS_ROUND_NEAREST_EVEN &&
                args.weight_rounding != DROPLESS_ROUND_STOCHASTIC,
            "weight_rounding: unknown");
  const double t = static_cast<double>(args.step);
  const Adam adam = {args.learning_rate,
                     args.beta1,
                     args.beta2,
                     args.eps,
                     args.weight_decay,
                     scale ? static_cast<double>(scale.as<float>(0)) : args.gradient_scale,
                     1.0 - std::pow(args.beta1, t),
                     1.0 - std::pow(args.beta2, t)};
  const bool stochastic =
      args.weight_rounding == DROPLESS_ROUND_STOCHASTIC && weight.dtype == DROPLESS_BF16;
  const std::uint64_t stream = mix(args.seed ^ mix(static_cast<std::uint64_t>(args.step)));
  const Tensor& source = master ? master : weight;

  parallel_ranges(call.threads(), n, 16 * 1024, [&](Index begin, Index end) {
    with_simd([&]() DROPLESS_INLINE_LAMBDA {
      float g[piece], p[piece], m[piece], v[piece];
      for (Index i = begin; i < end; i += piece) {
        const Index count = std::min(piece, end - i);
        load_run(gradient.at(i), gradient.dtype, gradient.inner_stride(), count, g);
        load_run(source.at(i), source.dtype, source.inner_stride(), count, p);
        load_run(first.at(i), first.dtype, first.inner_stride(), count, m);
        load_run(second.at(i), second.dtype, second.inner_stride(), count, v);
        step_run(adam, g, count, p, m, v);
        store_run(m, count, first.at(i), first.dtype, first.inner_stride());
        store_run(v, count, second.at(i), second.dtype, second.inner_stride());
        if (master) store_run(p, count, master.at(i), master.dtype, master.inner_stride());
        if (stochastic) {
          for (Index j = 0; j < count; ++j) {
            const std::uint64_t counter = static_cast<std::uint64_t>(i + j);
            weight.as<std::uint16_t>(i + j) =
                round_stochastically(p[j], mix(stream + 0x9E3779B97F4A7C15u * (counter + 1)));
          }
        } else {
          store_run(p, count, weight.at(i), weight.dtype, weight.inner_stride());
        }
      }
    });
  });
  call.ran_simd();
}

}  // namespace dropless::cpu
