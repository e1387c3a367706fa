// SPDX-License-Identifier: Apache-2.0
// The memory-bound operations of the GPU implementation at the sizes of a large model: right
// results on samples, and times beside the floor of the bytes that must move.
//
//     dropless_cuda_memory_bound            checks and times; 77 where no GPU is (skipped)
//     dropless_cuda_memory_bound router     only names that contain "router"
//
// Times are medians of replayed batches between CUDA events, over rotating buffers that do not fit
// into the cache, on random data. Sizes that the conformance cases do not reach are checked against
// host loops written from the semantics.
#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "optimized/cuda/operations.h"

namespace {

using namespace dropless::cuda;

constexpr double bytes_per_second = 4.3e12;  // of a large copy on an H200, read + written
constexpr int rotation = 3;                  // sets of buffers

void must(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::printf("%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

cudaStream_t stream = nullptr;
int failures = 0;
void expect(bool right, const std::string& what) {
  if (right) return;
  ++failures;
  std::printf("WRONG %s\n", what.c_str());
}

__global__ void fill_normal(void* data, Index n, bool bf16, unsigned seed, float scale) {
  const Index step = static_cast<Index>(gridDim.x) * blockDim.x;
  for (Index i = static_cast<Index>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step) {
    unsigned long long x = (static_cast<unsigned long long>(i) + 1) * 0x9E3779B97F4A7C15ull + seed;
    float sum = 0;
    for (int k = 0; k < 4; ++k) {
      x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
      x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
      x ^= x >> 31;
      sum += static_cast<float>(x >> 40) * 0x1p-24F - 0.5F;
    }
    const float value = sum * 1.7320508F * scale;
    if (bf16) {
      static_cast<unsigned short*>(data)[i] =
          static_cast<unsigned short>((__float_as_uint(value) + 0x8000u) >> 16);
    } else {
      static_cast<float*>(data)[i] = value;
    }
  }
}

// A dense tensor in device memory.
class Device {
 public:
  Device(dropless_dtype dtype, std::initializer_list<Index> shape, float random = 0) {
    element_ = dtype == DROPLESS_FP32 || dtype == DROPLESS_I32 ? 4
               : dtype == DROPLESS_I64                         ? 8
               : dtype == DROPLESS_BF16                        ? 2
                                                               : 1;
    count_ = std::accumulate(shape.begin(), shape.end(), Index{1}, std::multiplies<>());
    must(cudaMalloc(&data_, static_cast<std::size_t>(std::max<Index>(bytes(), 1))), "cudaMalloc");
    must(cudaMemset(data_, 0xFF, static_cast<std::size_t>(bytes())), "cudaMemset");
    static unsigned seed = 1;
    if (random != 0) {
      fill_normal<<<1024, 256>>>(data_, count_, dtype == DROPLESS_BF16, ++seed * 7919u, random);
    }
    tensor_ = describe(data_, dtype, shape);
  }
  ~Device() { cudaFree(data_); }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  [[nodiscard]] const dropless_tensor* operator()() const { return &tensor_; }
  [[nodiscard]] Index bytes() const { return count_ * element_; }
  template <class T>
  [[nodiscard]] std::vector<T> host() const {
    std::vector<T> values(static_cast<std::size_t>(bytes()) / sizeof(T));
    must(
        cudaMemcpy(values.data(), data_, static_cast<std::size_t>(bytes()), cudaMemcpyDeviceToHost),
        "cudaMemcpy");
    return values;
  }
  template <class T>
  void set(const std::vector<T>& values) {
    must(cudaMemcpy(data_, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice),
         "cudaMemcpy");
  }

 private:
  void* data_ = nullptr;
  Index count_ = 0, element_ = 0;
  dropless_tensor tensor_ = {};
};

float widen(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

template <class Args>
Args make() {
  Args args = {};
  args.struct_size = sizeof args;
  args.struct_version = DROPLESS_STRUCT_VERSION;
  return args;
}

// One call through the operation itself; prints why it did not run.
template <class Operation, class Args>
void run(Operation operation, const Args& args) {
  dropless_call raw = make<dropless_call>();
  raw.stream = stream;
  Call call(&raw);
  const dropless_status status = guarded(call, [&] { operation(call, args); });
  if (status != DROPLESS_OK) {
    std::printf("refused: %s\n", raw.message);
    std::exit(1);
  }
}

// A batch of calls is captured once and replayed, so that only the device's time counts.
void time_it(const std::string& name, double bytes, double mark_us,
             const std::function<void(int)>& call) {
  constexpr int batch = 9, repetitions = 15;
  cudaEvent_t begin, end;
  must(cudaEventCreate(&begin), "event");
  must(cudaEventCreate(&end), "event");
  for (int i = 0; i < batch; ++i) call(i % rotation);
  cudaGraph_t graph;
  cudaGraphExec_t replay;
  must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  for (int i = 0; i < batch; ++i) call(i % rotation);
  must(cudaStreamEndCapture(stream, &graph), "capture");
  must(cudaGraphInstantiate(&replay, graph, 0), "graph");
  must(cudaGraphLaunch(replay, stream), "replay");
  std::vector<double> times;
  for (int r = 0; r < repetitions; ++r) {
    must(cudaEventRecord(begin, stream), "record");
    must(cudaGraphLaunch(replay, stream), "replay");
    must(cudaEventRecord(end, stream), "record");
    must(cudaEventSynchronize(end), name.c_str());
    float ms = 0;
    must(cudaEventElapsedTime(&ms, begin, end), "time");
    times.push_back(static_cast<double>(ms) * 1e3 / batch);
  }
  std::sort(times.begin(), times.end());
  const double us = times[repetitions / 2], floor = bytes / bytes_per_second * 1e6;
  std::printf("%-34s %8.1f us  floor %7.1f us  %5.2f of floor  %5.2f TB/s  mark %5.0f us %s\n",
              name.c_str(), us, floor, us / floor, bytes / us * 1e-6, mark_us,
              mark_us == 0    ? ""
              : us <= mark_us ? "met"
                              : "MISSED");
  cudaGraphExecDestroy(replay);
  cudaGraphDestroy(graph);
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
}

template <class T>
using Sets = std::vector<std::unique_ptr<T>>;
template <class T, class... Args>
Sets<T> sets(Args... args) {
  Sets<T> all;
  for (int i = 0; i < rotation; ++i) all.push_back(std::make_unique<T>(args...));
  return all;
}

dropless_route_settings deepseek(Index experts, Index top_k) {
  auto s = make<dropless_route_settings>();
  s.num_experts = experts;
  s.top_k = top_k;
  s.score_function = DROPLESS_SCORE_SIGMOID;
  s.renormalize = 1;
  s.renormalize_eps = 1e-20;
  s.scaling_factor = 2.5;
  return s;
}

struct Router {
  Router(Index tokens, Index experts, Index top_k)
      : logits(DROPLESS_FP32, {tokens, experts}, 1.5F),
        bias(DROPLESS_FP32, {experts}, 0.1F),
        ids(DROPLESS_I32, {tokens, top_k}),
        weights(DROPLESS_FP32, {tokens, top_k}),
        d_weights(DROPLESS_FP32, {tokens, top_k}, 1.0F),
        d_logits(DROPLESS_FP32, {tokens, experts}),
        counts(DROPLESS_I64, {experts}) {}
  Device logits, bias, ids, weights, d_weights, d_logits, counts;
};

void check_router(const Router& r, Index tokens, Index experts, Index top_k) {
  const auto logits = r.logits.host<float>(), bias = r.bias.host<float>();
  const auto weights = r.weights.host<float>();
  const auto ids = r.ids.host<std::int32_t>();
  std::vector<std::int64_t> counts(static_cast<std::size_t>(experts), 0);
  Index close = 0;
  for (Index t = 0; t < tokens; ++t) {
    std::vector<double> score(static_cast<std::size_t>(experts)), biased(score.size());
    std::vector<std::int32_t> order(score.size());
    for (std::size_t e = 0; e < score.size(); ++e) {
      const double l = logits[static_cast<std::size_t>(t * experts) + e];
      score[e] = 1 / (1 + std::exp(-l));
      biased[e] = score[e] + static_cast<double>(bias[e]);
      order[e] = static_cast<std::int32_t>(e);
    }
    std::partial_sort(order.begin(), order.begin() + top_k, order.end(), [&](auto a, auto b) {
      return biased[static_cast<std::size_t>(a)] > biased[static_cast<std::size_t>(b)];
    });
    double sum = 0;
    for (Index j = 0; j < top_k; ++j) {
      const std::int32_t id = ids[static_cast<std::size_t>(t * top_k + j)];
      ++counts[static_cast<std::size_t>(id)];
      sum += score[static_cast<std::size_t>(id)];
      const double wanted = biased[static_cast<std::size_t>(order[static_cast<std::size_t>(j)])];
      const double got = biased[static_cast<std::size_t>(id)];
      if (id != order[static_cast<std::size_t>(j)]) ++close;
      if (std::abs(wanted - got) > 1e-6) return expect(false, "router: a selection");
    }
    for (Index j = 0; j < top_k; ++j) {
      const std::size_t at = static_cast<std::size_t>(t * top_k + j);
      const double wanted = 2.5 * score[static_cast<std::size_t>(ids[at])] / sum;
      if (!(std::abs(weights[at] - wanted) <= 1e-6 * wanted)) {
        return expect(false, "router: a weight");
      }
    }
  }
  expect(close < tokens / 100, "router: too many neighbours in the wrong order");
  expect(counts == r.counts.host<std::int64_t>(), "router: counts");
}

void router(Index tokens) {
  const Index experts = 256, top_k = 8;
  const dropless_route_settings settings = deepseek(experts, top_k);
  const auto all = sets<Router>(tokens, experts, top_k);
  const auto forward = [&](int i) {
    auto a = make<dropless_route_args>();
    const Router& r = *all[static_cast<std::size_t>(i)];
    a.settings = &settings;
    a.logits = r.logits(), a.expert_bias = r.bias(), a.ids = r.ids(), a.weights = r.weights();
    a.tokens_per_expert = r.counts();
    run(route_forward, a);
  };
  const auto backward = [&](int i) {
    auto a = make<dropless_route_backward_args>();
    const Router& r = *all[static_cast<std::size_t>(i)];
    a.settings = &settings;
    a.logits = r.logits(), a.ids = r.ids(), a.d_weights = r.d_weights(), a.d_logits = r.d_logits();
    run(route_backward, a);
  };
  forward(0);
  check_router(*all[0], tokens, experts, top_k);
  const double bytes = static_cast<double>(tokens * (experts * 4 + top_k * 8));
  const std::string size = " T=" + std::to_string(tokens);
  time_it("router" + size, bytes, tokens == 32768 ? 30 : 0, forward);
  time_it("router backward" + size, bytes + static_cast<double>(tokens * experts * 4), 0, backward);
}

struct Rows {
  Rows(Index tokens, Index top_k, Index hidden, Index experts,
       const std::vector<std::int32_t>& given)
      : x(DROPLESS_BF16, {tokens, hidden}, 1.0F),
        y(DROPLESS_BF16, {tokens, hidden}),
        rows(DROPLESS_BF16, {tokens * top_k, hidden}),
        d_rows(DROPLESS_BF16, {tokens * top_k, hidden}),
        ids(DROPLESS_I32, {tokens, top_k}),
        weights(DROPLESS_FP32, {tokens, top_k}, 1.0F),
        d_weights(DROPLESS_FP32, {tokens, top_k}),
        counts(DROPLESS_I64, {experts}),
        offsets(DROPLESS_I64, {experts + 1}),
        map(DROPLESS_I64, {tokens, top_k}),
        source(DROPLESS_I64, {tokens * top_k}),
        demand(DROPLESS_I64, {1}) {
    ids.set(given);
  }
  Device x, y, rows, d_rows, ids, weights, d_weights, counts, offsets, map, source, demand;
};

void check_rows(const Rows& r, Index tokens, Index top_k, Index hidden, Index experts,
                const std::vector<std::int32_t>& ids) {
  std::vector<std::int64_t> map(ids.size(), -1), source, offsets = {0};
  for (Index e = 0; e < experts; ++e) {
    for (std::size_t pair = 0; pair < ids.size(); ++pair) {
      if (ids[pair] != e) continue;
      map[pair] = static_cast<std::int64_t>(source.size());
      source.push_back(static_cast<std::int64_t>(pair));
    }
    offsets.push_back(static_cast<std::int64_t>(source.size()));
  }
  expect(map == r.map.host<std::int64_t>(), "plan: row_map");
  expect(source == r.source.host<std::int64_t>(), "plan: source");
  expect(offsets == r.offsets.host<std::int64_t>(), "plan: offsets");
  const auto x = r.x.host<std::uint16_t>(), rows = r.rows.host<std::uint16_t>();
  const auto y = r.y.host<std::uint16_t>();
  const auto weights = r.weights.host<float>(), d_weights = r.d_weights.host<float>();
  const std::size_t width = static_cast<std::size_t>(hidden);
  for (std::size_t row = 0; row < source.size(); ++row) {
    const std::size_t t = static_cast<std::size_t>(source[row] / top_k);
    if (!std::equal(&rows[row * width], &rows[row * width] + width, &x[t * width])) {
      return expect(false, "permute: row " + std::to_string(row));
    }
  }
  for (std::size_t t = 0; t < static_cast<std::size_t>(tokens); t += 97) {
    double sum_of_weights = 0, size_of_weights = 0, dot = 0, size = 0;
    for (std::size_t j = 0; j < static_cast<std::size_t>(top_k); ++j) {
      sum_of_weights += weights[t * static_cast<std::size_t>(top_k) + j];
      size_of_weights += std::abs(weights[t * static_cast<std::size_t>(top_k) + j]);
    }
    for (std::size_t i = 0; i < width; ++i) {  // every row is x[t], so that y = x * sum of weights
      const double wanted = widen(x[t * width + i]) * sum_of_weights, got = widen(y[t * width + i]);
      const double bound = std::abs(wanted) / 250 + 1e-5 * size_of_weights;
      if (!(std::abs(got - wanted) <= bound)) return expect(false, "unpermute: a value");
      dot += widen(x[t * width + i]) * got;
      size += std::abs(widen(x[t * width + i]) * got);
    }
    for (std::size_t j = 0; j < static_cast<std::size_t>(top_k); ++j) {
      const double got = d_weights[t * static_cast<std::size_t>(top_k) + j];
      if (!(std::abs(got - dot) <= 1e-4 * size))
        return expect(false, "unpermute backward: d_weight");
    }
  }
}

std::vector<std::int32_t> random_ids(Index tokens, Index top_k, Index experts) {
  std::vector<std::int32_t> ids, all(static_cast<std::size_t>(experts));
  std::iota(all.begin(), all.end(), 0);
  std::uint64_t state = 12345;
  for (Index t = 0; t < tokens; ++t) {
    for (Index j = 0; j < top_k; ++j) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      const std::size_t pick =
          static_cast<std::size_t>(j) + (state >> 33) % static_cast<std::size_t>(experts - j);
      std::swap(all[static_cast<std::size_t>(j)], all[pick]);
      ids.push_back(all[static_cast<std::size_t>(j)]);
    }
  }
  return ids;
}

void permutation() {
  const Index tokens = 4096, top_k = 8, hidden = 7168, experts = 256;
  const std::vector<std::int32_t> ids = random_ids(tokens, top_k, experts);
  const auto all = sets<Rows>(tokens, top_k, hidden, experts, ids);
  const auto plan = [&](int i) {
    auto a = make<dropless_permute_plan_args>();
    const Rows& r = *all[static_cast<std::size_t>(i)];
    a.num_experts = experts;
    a.row_capacity = -1;
    a.ids = r.ids(), a.tokens_per_expert = r.counts(), a.offsets = r.offsets();
    a.row_map = r.map(), a.source = r.source(), a.demand = r.demand();
    run(permute_plan, a);
  };
  const auto permute = [&](int i) {
    auto a = make<dropless_permute_args>();
    const Rows& r = *all[static_cast<std::size_t>(i)];
    a.offsets = r.offsets(), a.row_map = r.map(), a.source = r.source(), a.x = r.x();
    a.rows = r.rows();
    run(permute_forward, a);
  };
  const auto unpermute = [&](int i) {
    auto a = make<dropless_unpermute_args>();
    const Rows& r = *all[static_cast<std::size_t>(i)];
    a.row_map = r.map(), a.rows = r.rows(), a.weights = r.weights(), a.y = r.y();
    run(unpermute_forward, a);
  };
  const auto permute_back = [&](int i) {
    auto a = make<dropless_permute_backward_args>();
    const Rows& r = *all[static_cast<std::size_t>(i)];
    a.row_map = r.map(), a.d_rows = r.d_rows(), a.d_x = r.x();
    run(permute_backward, a);
  };
  const auto unpermute_back = [&](int i) {
    auto a = make<dropless_unpermute_backward_args>();
    const Rows& r = *all[static_cast<std::size_t>(i)];
    a.offsets = r.offsets(), a.row_map = r.map(), a.source = r.source(), a.rows = r.rows();
    a.weights = r.weights(), a.d_y = r.y(), a.d_rows = r.d_rows(), a.d_weights = r.d_weights();
    run(unpermute_backward, a);
  };
  for (int i = 0; i < rotation; ++i) plan(i), permute(i), unpermute(i), unpermute_back(i);
  check_rows(*all[0], tokens, top_k, hidden, experts, ids);
  const double token_bytes = static_cast<double>(tokens * hidden * 2), row_bytes = 8 * token_bytes;
  time_it("plan T=4096", static_cast<double>(tokens * top_k * 24), 12, plan);
  time_it("permute", token_bytes + row_bytes, 160, permute);
  time_it("unpermute weighted", token_bytes + row_bytes, 160, unpermute);
  time_it("unpermute backward", token_bytes + 2 * row_bytes, 0, unpermute_back);
  time_it("permute backward", token_bytes + row_bytes, 0, permute_back);  // overwrites x
}

struct Matrix {
  Matrix(Index rows, Index columns, Index groups)
      : x(DROPLESS_BF16, {rows, columns}, 1.0F),
        row_codes(DROPLESS_E4M3, {rows, columns}),
        column_codes(DROPLESS_E4M3, {rows, columns}),
        row_scales(DROPLESS_E8M0, {(rows / 128 + groups) * (columns / 128) * 512}),
        column_scales(DROPLESS_E8M0, {(rows / 128 + groups) * (columns / 128) * 512}),
        offsets(DROPLESS_I64, {groups + 1}),
        y(DROPLESS_BF16, {rows, columns}) {
    std::vector<std::int64_t> zones;
    for (Index g = 0; g < groups; ++g) zones.push_back(rows * g * g / (groups * groups) + g);
    zones.push_back(rows);
    offsets.set(zones);
  }
  Device x, row_codes, column_codes, row_scales, column_scales, offsets, y;
};

// Dequantised values lie within half a step of the codes: 2^-4 relative, or 2^-10 of the block's
// scale.
void check_quantised(const Matrix& m, Index rows, Index columns, const char* name) {
  const auto x = m.x.host<std::uint16_t>(), y = m.y.host<std::uint16_t>();
  for (Index row = 0; row < rows; row += 251) {
    for (Index i = row * columns; i < (row + 1) * columns; ++i) {
      const double a = widen(x[static_cast<std::size_t>(i)]),
                   b = widen(y[static_cast<std::size_t>(i)]);
      if (!(std::abs(a - b) <= std::abs(a) / 16 + 0x1p-16)) return expect(false, name);
    }
  }
}

void mxfp8() {
  const Index rows = 32768, columns = 7168, groups = 32;
  const auto all = sets<Matrix>(rows, columns, groups);
  const auto quantise = [&](bool row, bool column) {
    return [&all, row, column](int i) {
      auto a = make<dropless_quantize_args>();
      const Matrix& m = *all[static_cast<std::size_t>(i)];
      a.scale_layout = DROPLESS_SCALES_PACKED;
      a.x = m.x(), a.offsets = m.offsets();
      if (row) a.row_codes = m.row_codes(), a.row_scales = m.row_scales();
      if (column) a.column_codes = m.column_codes(), a.column_scales = m.column_scales();
      run(quantize, a);
    };
  };
  const auto dequantise = [&](bool row) {
    return [&all, row](int i) {
      auto a = make<dropless_dequantize_args>();
      const Matrix& m = *all[static_cast<std::size_t>(i)];
      a.direction = row ? DROPLESS_BLOCKS_ROW_WISE : DROPLESS_BLOCKS_COLUMN_WISE;
      a.scale_layout = DROPLESS_SCALES_PACKED;
      a.codes = row ? m.row_codes() : m.column_codes();
      a.scales = row ? m.row_scales() : m.column_scales();
      a.offsets = m.offsets(), a.y = m.y();
      run(dequantize, a);
    };
  };
  for (int i = 0; i < rotation; ++i) quantise(true, true)(i);
  dequantise(true)(0);
  check_quantised(*all[0], rows, columns, "quantise row-wise and back");
  dequantise(false)(0);
  check_quantised(*all[0], rows, columns, "quantise column-wise and back");
  const double n = static_cast<double>(rows * columns);
  time_it("quantise row + column", n * 4.0625, 300, quantise(true, true));
  time_it("quantise row", n * 3.03125, 0, quantise(true, false));
  time_it("quantise column", n * 3.03125, 0, quantise(false, true));
  time_it("dequantise row-wise", n * 3.03125, 0, dequantise(true));
  time_it("dequantise column-wise", n * 3.03125, 0, dequantise(false));
}

struct Gate {
  Gate(Index rows, Index width)
      : x(DROPLESS_BF16, {rows, 2 * width}, 2.0F),
        d_x(DROPLESS_BF16, {rows, 2 * width}),
        h(DROPLESS_BF16, {rows, width}, 1.0F),
        weights(DROPLESS_FP32, {rows}, 1.0F),
        d_weights(DROPLESS_FP32, {rows}) {}
  Device x, d_x, h, weights, d_weights;
};

void check_activation(const Gate& gate, Index rows, Index width) {
  const auto x = gate.x.host<std::uint16_t>(), h = gate.h.host<std::uint16_t>();
  for (Index row = 0; row < rows; row += 127) {
    for (Index i = 0; i < width; ++i) {
      const double g = widen(x[static_cast<std::size_t>(row * 2 * width + i)]);
      const double u = widen(x[static_cast<std::size_t>(row * 2 * width + width + i)]);
      const double wanted = g / (1 + std::exp(-g)) * u;
      const double got = widen(h[static_cast<std::size_t>(row * width + i)]);
      if (!(std::abs(got - wanted) <= std::abs(wanted) / 250)) return expect(false, "swiglu");
    }
  }
}

void activation() {
  const Index rows = 32768, width = 2048;
  const auto all = sets<Gate>(rows, width);
  auto settings = make<dropless_activation_settings>();
  const auto forward = [&](int i) {
    auto a = make<dropless_activation_args>();
    const Gate& g = *all[static_cast<std::size_t>(i)];
    a.settings = &settings, a.x = g.x(), a.h = g.h();
    run(activation_forward, a);
  };
  const auto backward = [&](int i) {
    auto a = make<dropless_activation_backward_args>();
    const Gate& g = *all[static_cast<std::size_t>(i)];
    a.settings = &settings, a.x = g.x(), a.dh = g.h(), a.d_x = g.d_x();
    a.row_weights = g.weights(), a.d_row_weights = g.d_weights();
    run(activation_backward, a);
  };
  const double n = static_cast<double>(rows * width * 2);
  forward(0);
  check_activation(*all[0], rows, width);
  time_it("swiglu", 3 * n, 120, forward);
  time_it("swiglu backward, weights", 5 * n, 0, backward);
}

}  // namespace

int main(int argc, char** argv) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("skipped: no GPU\n");
    return 77;
  }
  must(cudaStreamCreate(&stream), "stream");
  const std::string wanted = argc > 1 ? argv[1] : "";
  const auto want = [&](const char* name) {
    return std::string(name).find(wanted) != std::string::npos;
  };
  // 32765: what is left of four tokens at a time, which only many tokens are given.
  if (want("router")) router(32768), router(32765), router(4096);
  if (want("permutation")) permutation();
  if (want("mxfp8")) mxfp8();
  if (want("activation")) activation();
  must(cudaDeviceSynchronize(), "the end");
  std::printf("%s\n", failures == 0 ? "all right" : "FAILED");
  return failures == 0 ? 0 : 1;
}
