// SPDX-License-Identifier: Apache-2.0
// How long a whole layer takes, forward and backward, called one after the other and as a captured
// graph: a slice of DeepSeek-V3 with 32 local experts, on random data. scripts/torch_peer.py
// times the same layer in PyTorch.
//
//     dropless_cuda_layer [tokens]          default 4096; 77 where no GPU is (skipped)
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <vector>

#include "optimized/cuda/implementation.h"

namespace {

using Index = std::int64_t;

constexpr Index hidden = 7168, intermediate = 2048, experts = 32, top_k = 8;
constexpr int repetitions = 11;

void must(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::printf("%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

// A sum of four uniform numbers, variance scale^2.
__global__ void fill(__nv_bfloat16* data, Index n, std::uint64_t seed, float scale) {
  const Index step = static_cast<Index>(gridDim.x) * blockDim.x;
  for (Index i = static_cast<Index>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step) {
    std::uint64_t x = static_cast<std::uint64_t>(i) * 0x9E3779B97F4A7C15ULL + seed;
    float sum = 0;
    for (int k = 0; k < 4; ++k) {
      x = (x ^ (x >> 29)) * 0xBF58476D1CE4E5B9ULL;
      x ^= x >> 32;
      sum += static_cast<float>(x >> 40) * 0x1p-24F - 0.5F;
    }
    data[i] = __float2bfloat16_rn(sum * 1.7320508F * scale);
  }
}

template <class Struct>
Struct make() {
  Struct made = {};
  made.struct_size = sizeof made, made.struct_version = DROPLESS_STRUCT_VERSION;
  return made;
}

std::vector<std::unique_ptr<dropless_tensor>> tensors;

const dropless_tensor* tensor(dropless_dtype dtype, std::initializer_list<Index> shape,
                              double scale = 0) {
  auto made = std::make_unique<dropless_tensor>(make<dropless_tensor>());
  made->dtype = dtype, made->memory_space = DROPLESS_CUDA_DEVICE;
  Index count = 1;
  for (const Index extent : shape) made->shape[made->rank++] = extent, count *= extent;
  Index stride = 1;
  for (int axis = made->rank; axis-- > 0;) {
    made->strides[axis] = stride, stride *= made->shape[axis];
  }
  const Index element = dtype == DROPLESS_BF16 ? 2 : dtype == DROPLESS_I64 ? 8 : 4;
  must(cudaMalloc(&made->data, static_cast<std::size_t>(count * element)), "cudaMalloc");
  if (scale != 0) {
    fill<<<2048, 256>>>(static_cast<__nv_bfloat16*>(made->data), count, 77 * tensors.size() + 1,
                        static_cast<float>(scale));
  }
  tensors.push_back(std::move(made));
  return tensors.back().get();
}

void report(const char* what, Index tokens, double passes, cudaStream_t stream,
            const std::function<void()>& body) {
  cudaEvent_t begin, end;
  must(cudaEventCreate(&begin), "event");
  must(cudaEventCreate(&end), "event");
  std::vector<double> times;
  for (int i = 0; i < repetitions + 2; ++i) {
    must(cudaEventRecord(begin, stream), "record");
    body();
    must(cudaEventRecord(end, stream), "record");
    must(cudaEventSynchronize(end), what);
    float milliseconds = 0;
    must(cudaEventElapsedTime(&milliseconds, begin, end), "time");
    if (i >= 2) times.push_back(milliseconds);
  }
  std::sort(times.begin(), times.end());
  const double median = times[times.size() / 2];
  const double flops = passes * 2.0 * 3 * tokens * top_k * hidden * intermediate;
  std::printf("%-28s %8.3f ms  %6.1f TFLOP/s of expert products  %.2f million tokens/s\n", what,
              median, flops / median * 1e-9, tokens / median * 1e-3);
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
}

}  // namespace

int main(int count, char** arguments) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::puts("no CUDA device");
    return 77;
  }
  const Index tokens = count > 1 ? std::atoll(arguments[1]) : 4096;
  const dropless_implementation& cuda = dropless::cuda::implementation();

  auto route = make<dropless_route_settings>();
  route.num_experts = experts, route.top_k = top_k;
  route.num_groups = 1, route.kept_groups = 1;
  route.score_function = DROPLESS_SCORE_SIGMOID;
  route.renormalize = 1, route.renormalize_eps = 1e-20, route.scaling_factor = 2.5;
  auto activation = make<dropless_activation_settings>();
  auto settings = make<dropless_layer_settings>();
  settings.route = &route, settings.activation = &activation;

  const double by_hidden = 1 / std::sqrt(static_cast<double>(hidden));
  auto parameters = make<dropless_layer_parameters>(), gradients = parameters;
  parameters.router_weight = tensor(DROPLESS_BF16, {experts, hidden}, by_hidden);
  parameters.gate_up = tensor(DROPLESS_BF16, {experts, 2 * intermediate, hidden}, by_hidden);
  parameters.down = tensor(DROPLESS_BF16, {experts, hidden, intermediate}, 0.03);
  gradients.router_weight = tensor(DROPLESS_BF16, {experts, hidden});
  gradients.gate_up = tensor(DROPLESS_BF16, {experts, 2 * intermediate, hidden});
  gradients.down = tensor(DROPLESS_BF16, {experts, hidden, intermediate});

  auto forward = make<dropless_layer_args>();
  forward.settings = &settings, forward.parameters = &parameters;
  forward.x = tensor(DROPLESS_BF16, {tokens, hidden}, 1);
  forward.y = tensor(DROPLESS_BF16, {tokens, hidden});
  forward.ids = tensor(DROPLESS_I64, {tokens, top_k});
  forward.tokens_per_expert = tensor(DROPLESS_I64, {experts});
  auto backward = make<dropless_layer_backward_args>();
  backward.forward = &forward;
  backward.d_y = tensor(DROPLESS_BF16, {tokens, hidden}, 1);
  backward.d_x = tensor(DROPLESS_BF16, {tokens, hidden});
  backward.gradients = &gradients;

  cudaStream_t stream = nullptr;
  must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  must(cudaDeviceSynchronize(), "filling");
  const auto run = [&](auto entry, auto& args) {
    auto call = make<dropless_call>();
    call.stream = stream;
    if (entry(cuda.context, &call, &args) == DROPLESS_OK) return;
    std::printf("refused: %s\n", call.message);
    std::exit(1);
  };
  const auto both = [&] {
    forward.keep = 1;
    run(cuda.layer_forward, forward);
    run(cuda.layer_backward, backward);
  };
  for (const int recipe : {DROPLESS_RECIPE_PLAIN, DROPLESS_RECIPE_MXFP8}) {
    settings.recipe = recipe, settings.gradient_format = DROPLESS_E4M3;
    std::printf("%s, T=%lld H=%lld I=%lld E=%lld K=%lld\n",
                recipe == DROPLESS_RECIPE_PLAIN ? "bf16" : "mxfp8", static_cast<long long>(tokens),
                static_cast<long long>(hidden), static_cast<long long>(intermediate),
                static_cast<long long>(experts), static_cast<long long>(top_k));
    report("forward", tokens, 1, stream, [&] {
      forward.keep = 0;
      run(cuda.layer_forward, forward);
    });
    report("forward + backward", tokens, 3, stream, both);
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t runnable = nullptr;
    must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
    both();
    must(cudaStreamEndCapture(stream, &graph), "capture");
    must(cudaGraphInstantiate(&runnable, graph, 0), "graph");
    report("forward + backward, graph", tokens, 3, stream,
           [&] { must(cudaGraphLaunch(runnable, stream), "graph"); });
    cudaGraphExecDestroy(runnable);
    cudaGraphDestroy(graph);
  }
  return 0;
}
