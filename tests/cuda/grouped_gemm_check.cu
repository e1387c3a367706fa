// SPDX-License-Identifier: Apache-2.0
// Stand-alone check and stop-watch of the grouped GEMM kernels: one binary that can be carried to a
// machine with a GPU. Every product is compared with sums in double precision, element by element,
// on integers (exactly) and random numbers; outputs are poisoned, rows that nobody may read are
// NaN, and the two kernels must agree bit for bit. Exits with 1 after the first mismatches.
//
//     grouped_gemm_check [all | check | time | quick]
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <functional>
#include <vector>

#include "optimized/cuda/grouped_gemm_store.cuh"

namespace dropless::cuda {
namespace {

constexpr unsigned kSeconds = 20;  // without progress: the kernel hangs, and SIGALRM ends us

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

// Integers in -3 .. 3, or a sum of four uniform numbers.
__device__ float draw(std::uint64_t at, bool integers) {
  if (integers) return static_cast<float>(static_cast<int>(mix(at) % 7) - 3);
  float sum = 0;
  for (int i = 0; i < 4; ++i) sum += static_cast<float>(mix(at * 4 + i)) * 0x1p-31F - 0.5F;
  return sum;
}

template <class Element>
__global__ void fill(Element* to, Index rows, Index width, Index stride, std::uint64_t seed,
                     bool integers) {
  const Index i = blockIdx.x * static_cast<Index>(blockDim.x) + threadIdx.x;
  if (i >= rows * width) return;
  const float value = draw(seed * 0x9E3779B97F4A7C15ULL + static_cast<std::uint64_t>(i), integers);
  to[i / width * stride + i % width] = static_cast<Element>(value);
}

// NaN into every row that is not real, and into all rows of one group.
__global__ void spoil(__nv_bfloat16* x, Zones zones, Index width, Index stride, Index group) {
  const Index row = blockIdx.x;
  bool real = false;
  for (Index g = 0; g < zones.groups; ++g) {
    real |= g != group && row >= zones.first(g) && row < zones.real_end(g);
  }
  for (Index i = threadIdx.x; i < width && !real; i += blockDim.x) {
    x[row * stride + i] = __ushort_as_bfloat16(0x7FFF);
  }
}

struct Found {
  int wrong;
  long long element[4];
  double expected[4], got[4];
};

__device__ double operand_at(const GroupedProduct& p, const GemmOperand& x, Index g, Index outer,
                             Index k) {
  const Index start = x.ragged == GemmRagged::none    ? g * x.group_stride
                      : x.ragged == GemmRagged::outer ? p.zones.first(g) * x.outer_stride
                                                      : p.zones.first(g) * x.k_stride;
  return load_element(x.data, x.dtype, start + outer * x.outer_stride + k * x.k_stride);
}

// Element `index` of all that the output buffer holds, columns up to the row stride included.
__device__ void check_element(const GroupedProduct& p, const void* earlier, Index index, bool exact,
                              Found* found) {
  const Index width = p.out.row_stride, column = index % width;
  Index row = index / width, g = 0, at = 0;
  bool covered = column < p.n, padding = false;
  if (p.ragged_k()) {
    g = row / p.m, row %= p.m;
    at = g * p.out.group_stride + row * p.out.row_stride + column;
  } else {
    at = row * p.out.row_stride + column;
    while (g < p.zones.groups && row >= p.zones.end(g)) ++g;
    covered = covered && g < p.zones.groups;
    if (covered) padding = row >= p.zones.real_end(g), row -= p.zones.first(g);
  }
  const double got = load_element(p.out.data, p.out.dtype, at);
  double expected = 0, bound = 0;
  bool right = false;
  if (!covered) {
    right = p.out.dtype == DROPLESS_FP32
                ? static_cast<const unsigned*>(p.out.data)[at] == 0xFFFFFFFFU
                : static_cast<const std::uint16_t*>(p.out.data)[at] == 0xFFFFU;
  } else {
    double sum = 0, magnitude = 0;
    for (Index k = 0; k < p.depth(g) && !padding; ++k) {
      const double term = operand_at(p, p.a, g, row, k) * operand_at(p, p.b, g, column, k);
      sum += term, magnitude += fabs(term);
    }
    if (!padding) {
      expected = p.alpha * sum;
      if (p.bias.data != nullptr) {
        expected += load_element(p.bias.data, p.bias.dtype, g * p.bias.group_stride + column);
      }
      if (p.beta != 0) {
        expected += p.beta * load_element(earlier, p.c.dtype,
                                          g * p.c.group_stride + row * p.c.row_stride + column);
      }
    }
    const double ulp = p.out.dtype == DROPLESS_FP32 ? 0x1.01p-24 : 0x1.01p-8;
    bound = ulp * fabs(expected) +
            (exact ? 0 : (static_cast<double>(p.depth(g)) / 16 + 4) * 0x1p-23 * magnitude * 1.5);
    right = isnan(expected) ? isnan(got) : fabs(got - expected) <= bound;
  }
  if (right) return;
  const int slot = atomicAdd(&found->wrong, 1);
  if (slot >= 4) return;
  found->element[slot] = index, found->expected[slot] = expected, found->got[slot] = got;
}

__global__ void check_all(GroupedProduct p, const void* earlier, Index elements, Index samples,
                          bool exact, Found* found) {
  const Index i = blockIdx.x * static_cast<Index>(blockDim.x) + threadIdx.x;
  if (i >= samples) return;
  const std::uint64_t wide = static_cast<std::uint64_t>(mix(i)) << 31 | mix(i + 0x12345678901ULL);
  check_element(p, earlier, samples == elements ? i : static_cast<Index>(wide % elements), exact,
                found);
}

__global__ void compare_bytes(const std::uint8_t* a, const std::uint8_t* b, Index bytes,
                              int* different) {
  const Index i = blockIdx.x * static_cast<Index>(blockDim.x) + threadIdx.x;
  if (i < bytes && a[i] != b[i]) atomicAdd(different, 1);
}

unsigned blocks(Index items) {
  return static_cast<unsigned>((items + 255) / 256);
}

enum class Kind { fprop, dgrad, wgrad };

struct Settings {
  Kind kind = Kind::fprop;
  Index out = 512, in = 512;  // O and I
  std::vector<Index> counts;
  Index pad = 1;  // zones are multiples of it
  Index tail = 0;
  bool integers = false, transposed_w = false;
  dropless_dtype output = DROPLESS_BF16;
  double alpha = 1, beta = 0;
  bool bias = false;
  Index gap = 0;         // columns between rows of the output
  Index nan_group = -1;  // one whose rows are all NaN
};

class Memory {
 public:
  template <class T>
  T* make(Index count) {
    void* pointer = nullptr;
    must(cudaMalloc(&pointer, static_cast<std::size_t>(std::max<Index>(count, 1)) * sizeof(T)),
         "cudaMalloc");
    all_.push_back(pointer);
    return static_cast<T*>(pointer);
  }
  ~Memory() {
    for (void* pointer : all_) cudaFree(pointer);
  }
  Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

 private:
  std::vector<void*> all_;
};

struct Problem {
  GroupedProduct product;
  Index out_elements = 0, out_bytes = 0;
  double operations = 0;
};

__nv_bfloat16* random_matrix(Memory& memory, Index rows, Index width, std::uint64_t seed,
                             bool integers) {
  auto* data = memory.make<__nv_bfloat16>(rows * width);
  if (rows * width > 0)
    fill<<<blocks(rows * width), 256>>>(data, rows, width, width, seed, integers);
  return data;
}

Problem make(Memory& memory, const Settings& s, std::uint64_t seed) {
  const Index experts = static_cast<Index>(s.counts.size());
  std::vector<Index> offsets = {0};
  Index real = 0;
  for (const Index count : s.counts) {
    offsets.push_back(offsets.back() + (count + s.pad - 1) / s.pad * s.pad), real += count;
  }
  const Index rows = offsets.back() + s.tail;
  Problem problem;
  GroupedProduct& p = problem.product;
  auto* device_offsets = memory.make<Index>(experts + 1);
  auto* device_counts = memory.make<Index>(experts);
  must(cudaMemcpy(device_offsets, offsets.data(), offsets.size() * 8, cudaMemcpyHostToDevice), "");
  must(cudaMemcpy(device_counts, s.counts.data(), s.counts.size() * 8, cudaMemcpyHostToDevice), "");
  p.zones.offsets = device_offsets, p.zones.counts = device_counts;
  p.zones.groups = experts, p.zones.rows = rows;
  p.alpha = s.alpha, p.beta = s.beta;
  auto* refusal = memory.make<int>(1);
  must(cudaMemset(refusal, 0, 4), "");
  p.refusal = refusal;
  problem.operations = 2.0 * static_cast<double>(real * s.out * s.in);

  const auto ragged = [&](Index width, std::uint64_t what, bool contracted) {
    GemmOperand operand;
    auto* data = random_matrix(memory, rows, width, seed * 8 + what, s.integers);
    if (rows > 0)
      spoil<<<static_cast<unsigned>(rows), 128>>>(data, p.zones, width, width, s.nan_group);
    operand.data = data;
    operand.ragged = contracted ? GemmRagged::contraction : GemmRagged::outer;
    operand.outer_stride = contracted ? 1 : width, operand.k_stride = contracted ? width : 1;
    return operand;
  };
  Index out_rows = rows;
  if (s.kind == Kind::wgrad) {
    p.m = s.out, p.n = s.in;
    p.a = ragged(s.out, 1, true), p.b = ragged(s.in, 2, true);
    out_rows = experts * s.out;
  } else {
    const bool forward = s.kind == Kind::fprop;
    p.n = forward ? s.out : s.in, p.k = forward ? s.in : s.out;
    p.a = ragged(p.k, 1, false);
    p.b.data = random_matrix(memory, experts * s.out, s.in, seed * 8 + 3, s.integers);
    const bool k_dense = forward != s.transposed_w;
    p.b.k_stride = k_dense ? 1 : p.n, p.b.outer_stride = k_dense ? p.k : 1;
    p.b.group_stride = s.out * s.in;
    if (s.bias) {
      p.bias.data = random_matrix(memory, experts, p.n, seed * 8 + 4, s.integers);
      p.bias.group_stride = p.n;
    }
  }
  p.out.dtype = s.output, p.out.row_stride = p.n + s.gap;
  p.out.group_stride = s.kind == Kind::wgrad ? s.out * p.out.row_stride : 0;
  problem.out_elements = out_rows * p.out.row_stride;
  problem.out_bytes = problem.out_elements * (s.output == DROPLESS_FP32 ? 4 : 2);
  p.out.data = memory.make<std::uint8_t>(problem.out_bytes);
  if (s.beta != 0) p.c = p.out, p.in_place = true;
  return problem;
}

// Poison, or what is to be added to.
void prepare_output(const Problem& problem, const Settings& s) {
  const GroupedProduct& p = problem.product;
  must(cudaMemset(p.out.data, 0xFF, static_cast<std::size_t>(problem.out_bytes)), "poison");
  const Index rows = problem.out_elements / std::max<Index>(p.out.row_stride, 1);
  if (s.beta == 0 || rows * p.n == 0) return;
  if (s.output == DROPLESS_FP32) {
    fill<<<blocks(rows * p.n), 256>>>(static_cast<float*>(p.out.data), rows, p.n, p.out.row_stride,
                                      77, s.integers);
  } else {
    fill<<<blocks(rows * p.n), 256>>>(static_cast<__nv_bfloat16*>(p.out.data), rows, p.n,
                                      p.out.row_stride, 77, s.integers);
  }
}

using Run = std::function<void(const GroupedProduct&)>;

std::string describe(const Settings& s) {
  constexpr const char* names[] = {"fprop", "dgrad", "wgrad"};
  Index rows = 0;
  for (const Index count : s.counts) rows += count;
  char text[256];
  std::snprintf(text, sizeof text,
                "%s E=%zu rows=%lld O=%lld I=%lld pad=%lld tail=%lld %s %s alpha=%g beta=%g%s%s "
                "gap=%lld nan=%lld",
                names[static_cast<int>(s.kind)], s.counts.size(), static_cast<long long>(rows),
                static_cast<long long>(s.out), static_cast<long long>(s.in),
                static_cast<long long>(s.pad), static_cast<long long>(s.tail),
                s.integers ? "integers" : "random", s.output == DROPLESS_FP32 ? "fp32" : "bf16",
                s.alpha, s.beta, s.bias ? " bias" : "", s.transposed_w ? " transposed" : "",
                static_cast<long long>(s.gap), static_cast<long long>(s.nan_group));
  return text;
}

// Number of mismatches of one kernel.
int check_run(const Problem& problem, const Settings& s, const Run& run, const char* kernel,
              Index most_samples) {
  Memory memory;
  alarm(kSeconds);
  prepare_output(problem, s);
  auto* earlier = memory.make<std::uint8_t>(problem.out_bytes);
  auto* found = memory.make<Found>(1);
  must(cudaMemset(found, 0, sizeof(Found)), "");
  must(cudaMemcpy(earlier, problem.product.out.data, static_cast<std::size_t>(problem.out_bytes),
                  cudaMemcpyDeviceToDevice),
       "");
  run(problem.product);
  must(cudaDeviceSynchronize(), kernel);
  const Index samples = std::min(problem.out_elements, most_samples);
  if (samples > 0) {
    check_all<<<blocks(samples), 256>>>(problem.product, earlier, problem.out_elements, samples,
                                        s.integers, found);
  }
  Found result;
  must(cudaMemcpy(&result, found, sizeof result, cudaMemcpyDeviceToHost), "check");
  if (result.wrong > 0) {
    std::printf("WRONG %s, %s: %d of %lld\n", kernel, describe(s).c_str(), result.wrong,
                static_cast<long long>(samples));
    const Index width = problem.product.out.row_stride;
    for (int i = 0; i < std::min(result.wrong, 4); ++i) {
      std::printf("   row %lld column %lld: expected %.9g, got %.9g\n", result.element[i] / width,
                  result.element[i] % width, result.expected[i], result.got[i]);
    }
  }
  std::fflush(stdout);
  return result.wrong;
}

int without_wgmma = 0;  // settings that TMA cannot read, or without rows

int check_settings(const Settings& s, const Device& gpu, Index most_samples = 1 << 22) {
  Memory memory;
  const Problem problem = make(memory, s, 5);
  int wrong = check_run(
      problem, s, [](const GroupedProduct& p) { grouped_gemm_simple(p, nullptr); }, "simple",
      most_samples);
  if (!grouped_gemm_hopper_takes(problem.product, gpu)) {
    ++without_wgmma;
    return wrong;
  }
  auto* simple = memory.make<std::uint8_t>(problem.out_bytes);
  must(cudaMemcpy(simple, problem.product.out.data, static_cast<std::size_t>(problem.out_bytes),
                  cudaMemcpyDeviceToDevice),
       "");
  wrong += check_run(
      problem, s, [&](const GroupedProduct& p) { grouped_gemm_hopper(p, gpu, nullptr); }, "wgmma",
      most_samples);
  auto* different = memory.make<int>(1);
  must(cudaMemset(different, 0, 4), "");
  if (problem.out_bytes > 0) {
    compare_bytes<<<blocks(problem.out_bytes), 256>>>(
        simple, static_cast<const std::uint8_t*>(problem.product.out.data), problem.out_bytes,
        different);
  }
  int count = 0;
  must(cudaMemcpy(&count, different, 4, cudaMemcpyDeviceToHost), "compare");
  if (count > 0) {
    std::printf("DIFFERENT BITS %s: %d of %lld bytes\n", describe(s).c_str(), count,
                static_cast<long long>(problem.out_bytes));
  }
  return wrong + count;
}

int check(const Device& gpu) {
  const std::vector<std::vector<Index>> loads = {{128, 128},     {300, 0, 1, 63, 64, 65, 129, 517},
                                                 {0, 0, 700, 0}, {0, 0},
                                                 {1, 1, 1},      {257, 383, 1000}};
  int wrong = 0, settings = 0;
  for (const Kind kind : {Kind::fprop, Kind::dgrad, Kind::wgrad}) {
    for (std::size_t load = 0; load < loads.size(); ++load) {
      for (const auto& [out, in] : std::vector<std::pair<Index, Index>>{
               {256, 64}, {512, 320}, {328, 200}, {40, 776}, {37, 58}}) {
        for (int variant = 0; variant < 6; ++variant) {
          Settings s;
          s.kind = kind, s.counts = loads[load], s.out = out, s.in = in;
          s.integers = variant % 2 == 0;
          s.output = variant == 1 || variant == 2 || variant == 5 ? DROPLESS_FP32 : DROPLESS_BF16;
          s.pad = variant == 3 ? 16 : variant == 4 ? 128 : 1, s.tail = variant > 2 ? 70 : 0;
          s.gap = variant == 2 ? 8 : variant == 4 ? 1 : 0;
          s.alpha = variant == 4 ? 0.5 : 1;
          s.nan_group = variant == 3 ? 1 : -1;
          if (kind == Kind::fprop) s.bias = variant == 4 || variant == 5;
          if (kind != Kind::wgrad) s.transposed_w = variant == 5;
          if (kind == Kind::wgrad) s.beta = variant == 2 || variant == 3 ? 1 : variant == 4 ? 2 : 0;
          wrong += check_settings(s, gpu);
          ++settings;
          if (wrong > 0 && settings > 400) return wrong;
        }
      }
    }
  }
  std::printf("%d settings checked (%d by the simple kernel alone), %d mismatches\n", settings,
              without_wgmma, wrong);
  return wrong;
}

std::vector<Index> make_counts(const char* load, Index experts, Index rows) {
  std::vector<double> shares;
  for (Index e = 0; e < experts; ++e) {
    const double uniform = static_cast<double>(mix(static_cast<std::uint64_t>(e) + 99)) * 0x1p-31;
    shares.push_back(load[0] == 'e'   ? 1
                     : load[0] == 'z' ? 1 / static_cast<double>(1 + e * 7 % experts)
                                      : 0.25 + 1.5 * uniform);
  }
  double total = 0;
  for (const double share : shares) total += share;
  std::vector<Index> counts;
  Index left = rows;
  for (const double share : shares) {
    counts.push_back(std::min(left, static_cast<Index>(share / total * static_cast<double>(rows))));
    left -= counts.back();
  }
  counts.back() += left;
  return counts;
}

double median_ms(const std::vector<std::function<void()>>& turns, int repeats) {
  cudaEvent_t begin, end;
  must(cudaEventCreate(&begin), ""), must(cudaEventCreate(&end), "");
  std::vector<float> times;
  for (int i = -3; i < repeats; ++i) {
    alarm(kSeconds);
    must(cudaEventRecord(begin), "");
    turns[static_cast<std::size_t>(i + 3) % turns.size()]();
    must(cudaEventRecord(end), ""), must(cudaEventSynchronize(end), "timing");
    float ms = 0;
    must(cudaEventElapsedTime(&ms, begin, end), "");
    if (i >= 0) times.push_back(ms);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

int time_one(const Device& gpu, const char* name, Settings s, bool simple = false) {
  Memory memory;
  std::vector<Problem> problems;
  std::vector<std::function<void()>> turns;
  for (std::uint64_t turn = 0; turn < 2; ++turn) {
    problems.push_back(make(memory, s, 20 + turn));
    prepare_output(problems.back(), s);
  }
  for (const Problem& problem : problems) {
    turns.emplace_back([&] {
      if (simple) {
        grouped_gemm_simple(problem.product, nullptr);
      } else {
        grouped_gemm_hopper(problem.product, gpu, nullptr);
      }
    });
  }
  must(cudaDeviceSynchronize(), "preparing");
  const double ms = median_ms(turns, simple ? 3 : 15);
  Settings plain = s;
  plain.beta = 0;  // what the repeated sums added up to is not checked
  int wrong = 0;
  if (s.beta == 0) {
    Memory more;
    const Problem problem = make(more, plain, 5);
    wrong = check_run(
        problem, plain, [&](const GroupedProduct& p) { grouped_gemm_hopper(p, gpu, nullptr); },
        "wgmma", 20000);
  }
  std::printf("%-34s %8.3f ms %7.1f TFLOP/s%s\n", name, ms, problems[0].operations / ms * 1e-9,
              wrong > 0 ? "  WRONG" : "");
  std::fflush(stdout);
  return wrong;
}

int time_all(const Device& gpu, bool quick) {
  int wrong = 0;
  const auto settings = [](Kind kind, Index out, Index in, const char* load, Index experts) {
    Settings s;
    s.kind = kind, s.out = out, s.in = in, s.counts = make_counts(load, experts, 32768);
    return s;
  };
  for (const Kind kind : {Kind::fprop, Kind::dgrad, Kind::wgrad}) {
    const std::string name = kind == Kind::fprop   ? "fprop"
                             : kind == Kind::dgrad ? "dgrad"
                                                   : "wgrad";
    wrong +=
        time_one(gpu, (name + " 8 even N4096 K7168").c_str(), settings(kind, 4096, 7168, "e", 8));
    if (quick) continue;
    wrong +=
        time_one(gpu, (name + " 8 even N7168 K2048").c_str(), settings(kind, 7168, 2048, "e", 8));
    wrong +=
        time_one(gpu, (name + " 32 zipf N4096 K7168").c_str(), settings(kind, 4096, 7168, "z", 32));
    wrong += time_one(gpu, (name + " 32 ragged N4096 K7168").c_str(),
                      settings(kind, 4096, 7168, "r", 32));
    wrong += time_one(gpu, (name + " 256 ragged N4096 K7168").c_str(),
                      settings(kind, 4096, 7168, "r", 256));
  }
  if (quick) {
    return wrong + time_one(gpu, "fprop 256 ragged N4096 K7168",
                            settings(Kind::fprop, 4096, 7168, "r", 256));
  }
  Settings sum = settings(Kind::wgrad, 4096, 7168, "e", 8);
  sum.output = DROPLESS_FP32;
  wrong += time_one(gpu, "wgrad 8 even fp32", sum);
  sum.beta = 1;
  wrong += time_one(gpu, "wgrad 8 even fp32 +=", sum);
  Settings wide = settings(Kind::fprop, 4096, 7168, "e", 8);
  wide.output = DROPLESS_FP32;
  wrong += time_one(gpu, "fprop 8 even fp32 out", wide);
  wrong +=
      time_one(gpu, "fprop 8 even, simple kernel", settings(Kind::fprop, 4096, 7168, "e", 8), true);
  return wrong;
}

}  // namespace
}  // namespace dropless::cuda

int main(int argc, char** argv) {
  using namespace dropless::cuda;
  const std::string what = argc > 1 ? argv[1] : "all";
  try {
    const Device& gpu = device(0);
    int wrong = 0;
    if (what == "all" || what == "check") wrong += check(gpu);
    if (what != "check") wrong += time_all(gpu, what == "quick");
    std::printf(wrong == 0 ? "all right\n" : "%d mismatches\n", wrong);
    return wrong == 0 ? 0 : 1;
  } catch (const Refusal& refusal) {
    std::printf("refused: %s\n", refusal.message.c_str());
    return refusal.status == DROPLESS_NOT_SUPPORTED ? 77 : 1;
  }
}
