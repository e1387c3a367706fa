// SPDX-License-Identifier: Apache-2.0
// Grouped products of MXFP8 operands through the contract: compared with double precision, with a
// group whose values no bf16 can hold (scale bytes near both ends, subnormal codes), and timed
// beside the same product of bf16 operands. Exits with 1 after mismatches, 77 without a GPU.
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <functional>
#include <vector>

#include "optimized/cuda/grouped_gemm_codes.cuh"
#include "optimized/cuda/operations.h"

namespace dropless::cuda {
namespace {

void must(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::printf("FAILED %s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

__host__ __device__ std::uint32_t mix(std::uint64_t x) {
  x = (x ^ (x >> 31)) * 0x7FB5D329728EA185ULL;
  x = (x ^ (x >> 27)) * 0x81DADEF4BC2DD44DULL;
  return static_cast<std::uint32_t>(x >> 33);
}

// Bytes low .. low + range - 1; codes also get a sign.
__global__ void fill_bytes(std::uint8_t* to, Index count, std::uint64_t seed, unsigned low,
                           unsigned range, bool sign) {
  const Index i = blockIdx.x * static_cast<Index>(blockDim.x) + threadIdx.x;
  if (i >= count) return;
  const std::uint32_t random = mix(seed * 0x9E3779B97F4A7C15ULL + static_cast<std::uint64_t>(i));
  to[i] = static_cast<std::uint8_t>(low + random % range) |
          static_cast<std::uint8_t>(sign && (random & 0x40000000U) != 0 ? 0x80 : 0);
}

__global__ void fill_bf16(__nv_bfloat16* to, Index count, std::uint64_t seed) {
  const Index i = blockIdx.x * static_cast<Index>(blockDim.x) + threadIdx.x;
  if (i >= count) return;
  to[i] = __float2bfloat16(
      static_cast<float>(mix(seed << 40 | static_cast<std::uint64_t>(i))) * 0x1p-30F - 1.0F);
}

struct Shape {
  Index experts, rows, out, in;  // every expert has rows / experts rows
};

__device__ double decode(std::uint8_t code, std::uint8_t byte) {
  return static_cast<double>(code_value(code, DROPLESS_E4M3)) * ldexp(1.0, byte - 127);
}

// Random elements of y against sums in double precision.
__global__ void check(Shape s, const std::uint8_t* x, const std::uint8_t* xs, const std::uint8_t* w,
                      const std::uint8_t* ws, const float* y, int samples, int* wrong) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= samples) return;
  const Index row = mix(static_cast<std::uint64_t>(i)) % s.rows;
  const Index column = mix(static_cast<std::uint64_t>(i) + (1ULL << 40)) % s.out;
  const Index line = row / (s.rows / s.experts) * s.out + column, blocks = s.in / 32;
  double sum = 0, magnitude = 0;
  for (Index k = 0; k < s.in; ++k) {
    const double term = decode(x[row * s.in + k], xs[row * blocks + k / 32]) *
                        decode(w[line * s.in + k], ws[line * blocks + k / 32]);
    sum += term, magnitude += fabs(term);
  }
  const double bound = fabs(sum) * 0x1p-24 + magnitude * (s.in / 16.0 + 4) * 0x1.8p-23;
  if (!(fabs(y[row * s.out + column] - sum) <= bound) && atomicAdd(wrong, 1) < 4) {
    printf("   row %lld column %lld: expected %g, got %g\n", static_cast<long long>(row),
           static_cast<long long>(column), sum, static_cast<double>(y[row * s.out + column]));
  }
}

unsigned blocks_of(Index count) {
  return static_cast<unsigned>((count + 255) / 256);
}

template <class T>
T* make(Index count) {
  void* data = nullptr;
  must(cudaMalloc(&data, static_cast<std::size_t>(count) * sizeof(T)), "cudaMalloc");
  return static_cast<T*>(data);
}

std::uint8_t* bytes(Index count, std::uint64_t seed, unsigned low, unsigned range, bool sign) {
  auto* data = make<std::uint8_t>(count);
  fill_bytes<<<blocks_of(count), 256>>>(data, count, seed, low, range, sign);
  return data;
}

dropless_operand operand(const dropless_tensor& values, const dropless_tensor* scales) {
  dropless_operand made = {};
  made.struct_size = sizeof made, made.struct_version = DROPLESS_STRUCT_VERSION;
  made.values = &values, made.scales = scales;
  return made;
}

double median_ms(const std::function<void()>& turn) {
  cudaEvent_t begin, end;
  must(cudaEventCreate(&begin), ""), must(cudaEventCreate(&end), "");
  std::vector<float> times;
  for (int i = -3; i < 15; ++i) {
    alarm(20);
    must(cudaEventRecord(begin), "");
    turn();
    must(cudaEventRecord(end), ""), must(cudaEventSynchronize(end), "timing");
    float ms = 0;
    must(cudaEventElapsedTime(&ms, begin, end), "");
    if (i >= 0) times.push_back(ms);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

void fprop(const dropless_operand& x, const dropless_operand& w, const dropless_tensor& offsets,
           const dropless_tensor& y) {
  dropless_call raw = {};
  raw.struct_size = sizeof raw, raw.struct_version = DROPLESS_STRUCT_VERSION;
  dropless_gemm_fprop_args args = {};
  args.struct_size = sizeof args, args.struct_version = DROPLESS_STRUCT_VERSION;
  args.alpha = 1, args.x = &x, args.w = &w, args.offsets = &offsets, args.y = &y;
  Call call(&raw);
  if (guarded(call, [&] { gemm_fprop(call, args); }) != DROPLESS_OK) {
    std::printf("FAILED %s\n", raw.message);
    std::exit(1);
  }
}

// Correctness where `timed` is false; the second half of the experts then has extreme scales.
int run(const Shape& s, bool timed) {
  const Index x_size = s.rows * s.in, w_size = s.experts * s.out * s.in;
  std::vector<Index> places;
  for (Index e = 0; e <= s.experts; ++e) places.push_back(e * (s.rows / s.experts));
  auto* offsets = make<Index>(s.experts + 1);
  must(cudaMemcpy(offsets, places.data(), places.size() * sizeof(Index), cudaMemcpyHostToDevice),
       "offsets");
  auto* x = bytes(x_size, 1, 0, 127, true);
  auto* w = bytes(w_size, 2, 0, 127, true);
  auto* xs = bytes(x_size / 32, 3, 120, 10, false);
  auto* ws = bytes(w_size / 32, 4, 120, 10, false);
  if (!timed) {
    const Index half = x_size / 64;
    fill_bytes<<<blocks_of(half), 256>>>(xs + half, half, 5, 0, 3, false);
    const Index half_w = w_size / 64;
    fill_bytes<<<blocks_of(half_w), 256>>>(ws + half_w, half_w, 6, 240, 6, false);
  }
  const dropless_tensor xt = describe(x, DROPLESS_E4M3, {s.rows, s.in});
  const dropless_tensor xst = describe(xs, DROPLESS_E8M0, {s.rows, s.in / 32});
  const dropless_tensor wt = describe(w, DROPLESS_E4M3, {s.experts, s.out, s.in});
  const dropless_tensor wst = describe(ws, DROPLESS_E8M0, {s.experts, s.out, s.in / 32});
  const dropless_tensor ot = describe(offsets, DROPLESS_I64, {s.experts + 1});
  auto* y = make<float>(s.rows * s.out);
  const dropless_tensor yt = describe(y, timed ? DROPLESS_BF16 : DROPLESS_FP32, {s.rows, s.out});
  must(cudaMemset(y, 0xFF, static_cast<std::size_t>(s.rows * s.out) * 4), "poison");
  const dropless_operand xo = operand(xt, &xst), wo = operand(wt, &wst);
  int* wrong = make<int>(1);
  int count = 0;
  must(cudaMemset(wrong, 0, 4), "");
  if (timed) {
    auto* xb = make<__nv_bfloat16>(x_size);
    auto* wb = make<__nv_bfloat16>(w_size);
    fill_bf16<<<blocks_of(x_size), 256>>>(xb, x_size, 7);
    fill_bf16<<<blocks_of(w_size), 256>>>(wb, w_size, 8);
    const dropless_tensor xbt = describe(xb, DROPLESS_BF16, {s.rows, s.in});
    const dropless_tensor wbt = describe(wb, DROPLESS_BF16, {s.experts, s.out, s.in});
    const dropless_operand xbo = operand(xbt, nullptr), wbo = operand(wbt, nullptr);
    const double coded = median_ms([&] { fprop(xo, wo, ot, yt); });
    const double plain = median_ms([&] { fprop(xbo, wbo, ot, yt); });
    const double flops = 2.0 * static_cast<double>(s.rows * s.out * s.in);
    std::printf(
        "MXFP8 fprop %lld experts N%lld K%lld: %.3f ms %.1f TFLOP/s, bf16 %.3f ms %.1f, "
        "ratio %.3f (mark 0.85)\n",
        static_cast<long long>(s.experts), static_cast<long long>(s.out),
        static_cast<long long>(s.in), coded, flops / coded * 1e-9, plain, flops / plain * 1e-9,
        plain / coded);
    cudaFree(xb), cudaFree(wb);
  } else {
    alarm(20);
    fprop(xo, wo, ot, yt);
    check<<<400, 256>>>(s, x, xs, w, ws, y, 102400, wrong);
    must(cudaDeviceSynchronize(), "check");
    must(cudaMemcpy(&count, wrong, 4, cudaMemcpyDeviceToHost), "");
    std::printf("MXFP8 fprop, half of the groups with extreme scales: %d of 102400 wrong\n", count);
  }
  for (void* memory : {static_cast<void*>(x), static_cast<void*>(w), static_cast<void*>(xs),
                       static_cast<void*>(ws), static_cast<void*>(y), static_cast<void*>(offsets),
                       static_cast<void*>(wrong)}) {
    cudaFree(memory);
  }
  return count;
}

}  // namespace
}  // namespace dropless::cuda

int main(int argc, char** argv) {
  using namespace dropless::cuda;
  try {
    device(0);
    const int wrong = run({4, 1024, 512, 768}, false);
    if (argc < 2 || std::string(argv[1]) != "check") {
      run({8, 32768, 4096, 7168}, true);
      run({8, 32768, 7168, 2048}, true);
    }
    return wrong == 0 ? 0 : 1;
  } catch (const Refusal& refusal) {
    std::printf("%s\n", refusal.message.c_str());
    return refusal.status == DROPLESS_NOT_SUPPORTED ? 77 : 1;
  }
}
