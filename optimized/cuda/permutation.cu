// SPDX-License-Identifier: Apache-2.0
// The plan of a permutation: a stable counting sort of (token, slot) pairs by expert, on the device
// and without any host synchronisation. PERMUTATION-1 to 3 and 5.
//
// Tokens are cut into chunks. A block marks which tokens of its chunk chose which expert, one bit
// each; the rank of a pair within its chunk is the number of bits before its own, so that the order
// does not depend on which thread came first.
//
// Floor: ids read twice, row_map and source written; T = 4096, K = 8: 0.8 MB, so that two launches
// of some 3 us each are what it takes.
#include "optimized/cuda/device_refusal.h"
#include "optimized/cuda/elements.cuh"
#include "optimized/cuda/operations.h"
#include "optimized/cuda/planted_fault.h"
#include "optimized/cuda/route_settings.h"

namespace dropless::cuda {
namespace {

constexpr Index alignment = 1;  // PERMUTATION-3, as declared in the profile
constexpr bool empty_takes_block = false;
constexpr int block_threads = 512;
constexpr int word_bits = 32;

struct Plan {
  Tensor ids, tokens_per_expert, offsets, row_map, source, demand;
  int experts;
  Index capacity;  // -1: none
  int words;       // of bits of a chunk: 32 tokens each
  int chunks;
  std::int32_t* counts;  // [chunks, experts]
  int* refusal;
  PlantedFault fault;

  [[nodiscard]] __device__ Index first_token(int chunk) const {
    return static_cast<Index>(chunk) * words * word_bits;
  }
  [[nodiscard]] __device__ Index end_token(int chunk) const {
    return min(first_token(chunk + 1), ids.shape[0]);
  }
  // Rows of a zone before any capacity.
  [[nodiscard]] __device__ static Index zone(Index pairs) {
    if (pairs == 0) return empty_takes_block ? alignment : 0;
    return (pairs + alignment - 1) / alignment * alignment;
  }
  [[nodiscard]] __device__ Index clamp(Index row) const {
    return capacity < 0 ? row : min(row, capacity);
  }
};

// body(t, slot, id) for the routed pairs of a chunk, ids within 0 .. E-1.
template <class Body>
__device__ inline void for_pairs(const Plan& p, int chunk, const Body& body) {
  const int top_k = static_cast<int>(p.ids.shape[1]);
  const Index first = p.first_token(chunk);
  const int pairs = static_cast<int>(max(p.end_token(chunk) - first, Index{0})) * top_k;
  for (int pair = static_cast<int>(threadIdx.x); pair < pairs; pair += block_threads) {
    const Index t = first + pair / top_k;
    const Index id = p.ids.integer(t, pair % top_k);
    body(t, pair % top_k, id >= 0 && id < p.experts ? static_cast<int>(id) : -1);
  }
}

// bits[expert * words + word] of the tokens of a chunk.
__device__ inline void mark_tokens(const Plan& p, int chunk, std::uint32_t* bits) {
  for (int i = static_cast<int>(threadIdx.x); i < p.experts * p.words; i += block_threads)
    bits[i] = 0;
  __syncthreads();
  const Index first = p.first_token(chunk);
  for_pairs(p, chunk, [&](Index t, int, int id) {
    const int token = static_cast<int>(t - first);
    if (id >= 0) atomicOr(&bits[id * p.words + token / word_bits], 1u << (token % word_bits));
  });
  __syncthreads();
}

__global__ void __launch_bounds__(block_threads) count_pairs(Plan p) {
  extern __shared__ std::uint32_t bits[];
  if (*p.refusal != 0) return;
  mark_tokens(p, static_cast<int>(blockIdx.x), bits);
  for (int e = static_cast<int>(threadIdx.x); e < p.experts; e += block_threads) {
    int count = 0;
    for (int w = 0; w < p.words; ++w) count += __popc(bits[e * p.words + w]);
    p.counts[static_cast<Index>(blockIdx.x) * p.experts + e] = count;
  }
}

// Turns values[n] into their exclusive prefix sums and returns the total, in every thread.
__device__ inline Index exclusive_sums(Index* values, int n) {
  __shared__ Index warp_sums[block_threads / warp_size];
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const int warp = static_cast<int>(threadIdx.x) / warp_size;
  const int each = (n + block_threads - 1) / block_threads;
  const int begin = min(static_cast<int>(threadIdx.x) * each, n), end = min(begin + each, n);
  Index own = 0;
  for (int i = begin; i < end; ++i) own += values[i];
  Index inclusive = own;
#pragma unroll
  for (int step = 1; step < warp_size; step *= 2) {
    const Index below = __shfl_up_sync(whole_warp, inclusive, step);
    if (lane >= step) inclusive += below;
  }
  if (lane == warp_size - 1) warp_sums[warp] = inclusive;
  __syncthreads();
  Index before = inclusive - own, total = 0;
  for (int w = 0; w < block_threads / warp_size; ++w) {
    if (w < warp) before += warp_sums[w];
    total += warp_sums[w];
  }
  for (int i = begin; i < end; ++i) {
    const Index value = values[i];
    values[i] = before;
    before += value;
  }
  __syncthreads();
  return total;
}

// Every block knows from the counts of all chunks where its own pairs go. Block 0 also writes what
// there is one of.
__global__ void __launch_bounds__(block_threads) place_pairs(Plan p, bool check_source) {
  extern __shared__ Index starts[];  // [experts], then the pairs before, then bits
  Index* before = starts + p.experts;
  std::uint32_t* bits = reinterpret_cast<std::uint32_t*>(before + p.experts);
  if (*p.refusal != 0) return;
  const int chunk = static_cast<int>(blockIdx.x);
  for (int e = static_cast<int>(threadIdx.x); e < p.experts; e += block_threads) {
    Index here = 0, all = 0;
#pragma unroll 8
    for (int c = 0; c < p.chunks; ++c) {
      const Index count = p.counts[static_cast<Index>(c) * p.experts + e];
      here += c < chunk ? count : 0;
      all += count;
    }
    before[e] = here;
    starts[e] = Plan::zone(all);
    if (chunk == 0) before[e] = all;  // chunk 0 has nothing before it
  }
  __syncthreads();
  const Index demand = exclusive_sums(starts, p.experts);
  // Every block sees the same numbers, so that all of them write or none (GENERAL-3).
  if (check_source && p.clamp(demand) > p.source.shape[0]) {
    if (threadIdx.x == 0) refuse_on_device(p.refusal, DeviceReason::source_too_short);
    return;
  }
  if (chunk == 0) {
    for (int e = static_cast<int>(threadIdx.x); e < p.experts; e += block_threads) {
      const Index end = e + 1 < p.experts ? starts[e + 1] : demand;
      const Index real_end = p.clamp(starts[e] + before[e]);
      p.offsets.as<std::int64_t>(e) = p.clamp(starts[e]);
      p.tokens_per_expert.as<std::int64_t>(e) = real_end - p.clamp(starts[e]);
      for (Index row = real_end; row < p.clamp(end); ++row) p.source.as<std::int64_t>(row) = -1;
    }
    if (threadIdx.x == 0) {
      p.offsets.as<std::int64_t>(p.experts) = p.clamp(demand);
      p.demand.as<std::int64_t>(0) = demand;
    }
    __syncthreads();
    for (int e = static_cast<int>(threadIdx.x); e < p.experts; e += block_threads) before[e] = 0;
  }
  mark_tokens(p, chunk, bits);
  const Index first = p.first_token(chunk), kept = p.clamp(demand);
  const Index top_k = p.ids.shape[1];
  for_pairs(p, chunk, [&](Index t, int slot, int id) {
    Index row = -1;
    if (id >= 0) {
      const int token = static_cast<int>(t - first), word = token / word_bits;
      const std::uint32_t* of_expert = bits + id * p.words;
      int rank = __popc(of_expert[word] & ((1u << (token % word_bits)) - 1));
      for (int w = 0; w < word; ++w) rank += __popc(of_expert[w]);
      row = starts[id] + before[id] + rank;
      if (p.fault.is(Fault::order_of_arrival)) {
        row = starts[id] + static_cast<Index>(
                               atomicAdd(reinterpret_cast<unsigned long long*>(&before[id]), 1ULL));
      }
      if (row >= kept) row = -1;
    }
    p.row_map.as<std::int64_t>(t, slot) = row;
    if (row >= 0) p.source.as<std::int64_t>(row) = t * top_k + slot;
  });
}

void allow_shared_memory(const void* kernel, Index bytes) {
  if (bytes <= 48 * 1024) return;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(bytes)),
        "shared memory of the plan");
}

}  // namespace

void permute_plan(Call& call, const dropless_permute_plan_args& args) {
  const Index experts = args.num_experts;
  refuse_if(experts < 0, "num_experts: negative");
  refuse_if(args.row_capacity < -1, "row_capacity: below -1");
  refuse_if(args.row_capacity > 0 && args.row_capacity % alignment != 0,
            "row_capacity: not a multiple of the alignment");
  Plan plan = {};
  plan.ids = tensor(args.ids, "ids", integers, {any, any});
  const Index tokens = plan.ids.shape[0], top_k = plan.ids.shape[1];
  plan.tokens_per_expert =
      tensor(args.tokens_per_expert, "tokens_per_expert", {DROPLESS_I64}, {experts});
  plan.offsets = tensor(args.offsets, "offsets", {DROPLESS_I64}, {experts + 1});
  plan.row_map = tensor(args.row_map, "row_map", {DROPLESS_I64}, {tokens, top_k});
  plan.source = tensor(args.source, "source", {DROPLESS_I64}, {any});
  plan.demand = tensor(args.demand, "demand", {DROPLESS_I64}, {1});
  plan.capacity = args.row_capacity;
  plan.refusal = call.refusal_word();

  // About a chunk per multiprocessor, in whole words of 32 tokens, as many as fit into shared
  // memory.
  const Index available = call.device().shared_memory_per_block;
  const Index fixed = 2 * static_cast<Index>(sizeof(Index)) * experts, word = 4 * experts;
  if (fixed + word > available) not_supported("num_experts: more than fit into shared memory");
  const Index wanted = ceil_div(ceil_div(tokens, call.device().multiprocessors), word_bits);
  const Index most = experts == 0 ? 1024 : (available - fixed) / word;
  plan.experts = static_cast<int>(experts);
  plan.words = static_cast<int>(std::clamp<Index>(wanted, 1, std::min<Index>(most, 1024)));
  plan.chunks = static_cast<int>(std::max<Index>(ceil_div(tokens, plan.words * word_bits), 1));
  plan.counts = call.scratch<std::int32_t>(plan.chunks * experts);

  check_ids(call, plan.ids, experts);
  const Index bits = word * plan.words;
  const unsigned blocks = static_cast<unsigned>(plan.chunks);
  allow_shared_memory(reinterpret_cast<const void*>(count_pairs), bits);
  count_pairs<<<blocks, block_threads, static_cast<std::size_t>(bits), call.stream()>>>(plan);
  check_launch("count_pairs");
  allow_shared_memory(reinterpret_cast<const void*>(place_pairs), fixed + bits);
  place_pairs<<<blocks, block_threads, static_cast<std::size_t>(fixed + bits), call.stream()>>>(
      plan, !call.trusted());
  check_launch("place_pairs");
  call.ran("permute");
}

}  // namespace dropless::cuda
