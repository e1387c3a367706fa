// SPDX-License-Identifier: Apache-2.0
// Grouped products on Hopper: a persistent kernel with one producer warp (TMA) and two consumer
// warpgroups (wgmma 64 x 256 x 16), clusters of two blocks that share one operand by multicast.
//
// Shared memory holds four stages; a stage is six boxes of 64 x 64 bf16: two of a, four of b. Boxes
// lie as TMA's 128-byte swizzle leaves them, whichever of the two axes is dense in memory; wgmma
// reads both ways. Boxes may reach into the next group: its rows become rows that are not stored
// (fprop, dgrad), or are set to zero in shared memory in both operands (wgrad), since 0 * NaN is
// NaN.
#include "optimized/cuda/grouped_gemm_epilogue.cuh"
#include "optimized/cuda/grouped_gemm_maps.h"
#include "optimized/cuda/grouped_gemm_ptx.cuh"
#include "optimized/cuda/grouped_gemm_units.cuh"

namespace dropless::cuda {
namespace {

constexpr int stages = 4, box_bytes = 64 * 64 * 2, stage_bytes = 6 * box_bytes;
constexpr int block_threads = 384;

struct Shared {
  std::uint64_t full[stages], empty[stages];
  GemmGroups groups;
  GemmStaging staging[8];  // one per consumer warp
};
constexpr int shared_bytes = 1024 + stages * stage_bytes + static_cast<int>(sizeof(Shared));

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Position in the ring of stages.
struct Ring {
  int stage = 0;
  std::uint32_t parity = 0;
  __device__ void advance() {
    if (++stage == stages) stage = 0, parity ^= 1;
  }
};

// Sets rows valid .. 64 of the boxes that a consumer warpgroup reads (its own of a, all of b) to
// zero. Both warpgroups do so for themselves: zero over zero, and neither waits for the other.
__device__ __forceinline__ void clear_rows(std::byte* stage, int valid, int half) {
  const int vectors = (64 - valid) * 8;  // of 16 bytes, per box
#pragma unroll
  for (int i = 0; i < 5; ++i) {
    auto* rows = reinterpret_cast<uint4*>(stage + (i == 0 ? half : i + 1) * box_bytes);
    for (int at = static_cast<int>(threadIdx.x) % 128; at < vectors; at += 128) {
      rows[valid * 8 + at] = make_uint4(0, 0, 0, 0);
    }
  }
  ptx::fence_async_proxy();
  ptx::named_barrier(1 + half, 128);
}

// a_rows, b_rows: the contraction runs along the rows of the operand's boxes.
template <bool a_rows, bool b_rows>
struct Kernel {
  const GroupedProduct& p;
  const GemmGroups& groups;
  GemmStaging* staging;
  std::byte* stage_memory;
  std::uint32_t full, empty;  // addresses of the first barriers

  // Neighbouring boxes of one operand, 64 apart along m or n.
  template <int count, bool rows>
  __device__ __forceinline__ void load(const CUtensorMap& map, std::uint32_t to, int outer, int k,
                                       int group, std::uint32_t barrier, bool everyone) const {
#pragma unroll
    for (int i = 0; i < count; ++i) {
      const int at = outer + 64 * i;
      ptx::load_box(to + i * box_bytes, &map, rows ? at : k, rows ? k : at, group, barrier,
                    everyone);
    }
  }

  __device__ void produce(const CUtensorMap& a, const CUtensorMap& b, int rank) const {
    GemmUnits units(p, groups, rank);
    Ring ring;
    const std::uint32_t memory = ptx::shared_address(stage_memory);
    for (GemmUnit unit; units.next(unit);) {
      const int first = groups.first[unit.group];
      const int row = a_rows ? unit.row : first + unit.row;
      const int group = a_rows || p.fault.is(Fault::operand_of_first_group) ? 0 : unit.group;
      int k = a_rows ? first : 0;
      const int end = k + unit.depth;
      for (; k < end; k += gemm_tile_k, ring.advance()) {
        const std::uint32_t barrier = full + 8 * ring.stage;
        const std::uint32_t to = memory + ring.stage * stage_bytes;
        ptx::wait(empty + 8 * ring.stage, ring.parity ^ 1);
        ptx::expect_bytes(barrier, stage_bytes);
        // Both blocks of a cluster need the same part of one operand: each loads half for both.
        if (unit.shares_b) {
          load<2, a_rows>(a, to, row, k, 0, barrier, false);
          load<2, b_rows>(b, to + (2 + 2 * rank) * box_bytes, unit.column + 128 * rank, k, group,
                          barrier, true);
        } else {
          load<1, a_rows>(a, to + rank * box_bytes, row + 64 * rank, k, 0, barrier, true);
          load<4, b_rows>(b, to + 2 * box_bytes, unit.column, k, group, barrier, false);
        }
      }
    }
  }

  // This warp has read the stage. Every warp says so for itself: what it waited for are its own
  // products, and the warps of a warpgroup may drift apart while they store a tile.
  __device__ void release(int stage) const {
    const std::uint32_t lane = threadIdx.x % 32;
    if (lane < 2) ptx::arrive_at(empty + 8 * stage, lane);
  }

  // Steps through a unit without computing: this warpgroup's rows do not exist.
  __device__ void skip(const GemmUnit& unit, Ring& ring) const {
    for (int k = 0; k < unit.depth; k += gemm_tile_k, ring.advance()) {
      ptx::wait(full + 8 * ring.stage, ring.parity);
      release(ring.stage);
    }
  }

  // The products of a unit. The last ones may still run; returned is the stage that they read.
  __device__ __forceinline__ int accumulate(const GemmUnit& unit, Ring& ring, int half,
                                            float (&sums)[128]) const {
    constexpr std::uint64_t step_a = (a_rows ? 16 * 128 : 32) >> 4;
    constexpr std::uint64_t step_b = (b_rows ? 16 * 128 : 32) >> 4;
    int previous = -1;
    for (int k = 0; k < unit.depth; k += gemm_tile_k) {
      const bool late = p.fault.is(Fault::products_before_copies);
      if (!late) ptx::wait(full + 8 * ring.stage, ring.parity);
      std::byte* stage = stage_memory + ring.stage * stage_bytes;
      if constexpr (a_rows) {
        if (unit.depth - k < gemm_tile_k && !p.fault.is(Fault::contraction_tail)) {
          clear_rows(stage, unit.depth - k, half);
        }
      }
      const std::uint32_t at = ptx::shared_address(stage);
      const std::uint64_t a = ptx::describe_boxes(at + half * box_bytes);
      const std::uint64_t b = ptx::describe_boxes(at + 2 * box_bytes);
      ptx::multiply_fence();
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        ptx::multiply<a_rows, b_rows>(sums, a + step * step_a, b + step * step_b,
                                      step > 0 || k > 0 ? 1 : 0);
      }
      ptx::multiply_commit();
      ptx::multiply_wait<1>();
      if (late) ptx::wait(full + 8 * ring.stage, ring.parity);
      if (previous >= 0) release(previous);
      previous = ring.stage;
      ring.advance();
    }
    return previous;
  }

  __device__ void consume(const GemmEpilogue& how, int rank) const {
    GemmUnits units(p, groups, rank);
    Ring ring;
    const int half = static_cast<int>(threadIdx.x) / 128 - 1;
    const bool ragged_k = p.ragged_k();
    GemmUnit unit, next;
    for (bool more = units.next(unit); more; unit = next) {
      const int g = unit.group, row = unit.row + 64 * half;
      int rows = groups.rows[g];
      const int real = groups.real[g];
      if (p.fault.is(Fault::rows_behind_zone) && !ragged_k) {
        rows = min(row + 64, static_cast<int>(p.zones.rows) - groups.first[g]);
      }
      if (p.fault.is(Fault::padding_unwritten) && !ragged_k) rows = min(rows, real);
      const bool computes = unit.column < p.n && row < (ragged_k ? rows : real) && unit.depth > 0 &&
                            !(p.fault.is(Fault::half_tile_skipped) && half == 1);
      const bool writes = unit.column < p.n && !(ragged_k && unit.depth == 0 && p.keeps_empty());
      const GemmTarget at = {g, groups.first[g], rows, real, row, unit.column};
      float sums[128];
      if (computes) {
        ptx::undefined(sums);  // the first products do not read them
        const int last = accumulate(unit, ring, half, sums);
        more = units.next(next);  // while the last products run
        ptx::multiply_wait<0>();
        ptx::keep_in_place(sums);
        release(last);
        if (writes) store_sums<a_rows>(p, how, at, sums, staging[threadIdx.x / 32 - 4]);
      } else {
        skip(unit, ring);
#pragma unroll
        for (int i = 0; i < 128; ++i) {
          sums[i] = p.fault.is(Fault::stale_accumulator) && unit.depth == 0 ? 1.0F : 0.0F;
        }
        more = units.next(next);
        if (writes) store_sums<a_rows>(p, how, at, sums, staging[threadIdx.x / 32 - 4]);
      }
    }
  }
};
#endif

template <bool a_rows, bool b_rows>
__global__ void __launch_bounds__(block_threads, 1)
    multiply_groups(const __grid_constant__ GroupedProduct p, const __grid_constant__ CUtensorMap a,
                    const __grid_constant__ CUtensorMap b, const GemmEpilogue how) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ std::byte raw[];
  if (*p.refusal != 0) return;
  std::byte* stage_memory = raw + (1024 - ptx::shared_address(raw) % 1024) % 1024;
  Shared& shared = *reinterpret_cast<Shared*>(stage_memory + stages * stage_bytes);
  const std::uint32_t full = ptx::shared_address(shared.full);
  const std::uint32_t empty = ptx::shared_address(shared.empty);
  const int thread = static_cast<int>(threadIdx.x), rank = static_cast<int>(ptx::cluster_rank());
  if (thread == 0) {
    for (int s = 0; s < stages; ++s) {
      ptx::barrier_init(full + 8 * s, 1);
      ptx::barrier_init(empty + 8 * s, 16);  // eight warps of both blocks
    }
    ptx::fence_barrier_init();
    ptx::prefetch_map(&a), ptx::prefetch_map(&b);
  }
  for (int g = thread; g < p.zones.groups; g += block_threads) {
    shared.groups.first[g] = static_cast<int>(p.zones.first(g));
    shared.groups.rows[g] = static_cast<int>(p.rows(g));
    shared.groups.real[g] = static_cast<int>(p.real(g));
  }
  ptx::cluster_sync();
  __syncthreads();
  const Kernel<a_rows, b_rows> kernel{p, shared.groups, shared.staging, stage_memory, full, empty};
  if (thread < 128) {
    ptx::give_registers<40>();
    if (thread == 0) kernel.produce(a, b, rank);
    __syncwarp();
  } else {
    ptx::take_registers<232>();
    kernel.consume(how, rank);
  }
  ptx::cluster_sync();  // nobody leaves while the other block may still write here
#endif
}

using Launched = void (*)(GroupedProduct, CUtensorMap, CUtensorMap, GemmEpilogue);

// Rows of 16-byte pieces of `piece` elements.
bool has_pieces(const GroupedProduct& p, const GemmMatrix& matrix, Index piece) {
  return p.n % piece == 0 && matrix.column_stride == 1 && matrix.row_stride % piece == 0 &&
         matrix.group_stride % piece == 0 &&
         reinterpret_cast<std::uintptr_t>(matrix.data) % 16 == 0;
}

GemmEpilogue epilogue_of(const GroupedProduct& p) {
  const bool adds = p.beta != 0, as_is = p.alpha == 1 && p.bias.data == nullptr;
  const bool fp32 = as_is && p.out.dtype == DROPLESS_FP32 &&
                    (!adds || (p.beta == 1 && p.c.dtype == DROPLESS_FP32));
  return {as_is && !adds && p.out.dtype == DROPLESS_BF16 && has_pieces(p, p.out, 8), fp32, adds,
          fp32 && has_pieces(p, p.out, 4) && (!adds || has_pieces(p, p.c, 4))};
}

}  // namespace

bool grouped_gemm_hopper_takes(const GroupedProduct& product, const Device& device) {
  constexpr Index most = Index{1} << 30;
  if (!device.runs_sm90a() || device.shared_memory_per_block < shared_bytes) return false;
  const Index strips = product.ragged_k() ? product.zones.groups * (product.m / gemm_tile_m + 1)
                                          : product.zones.rows / gemm_tile_m + product.zones.groups;
  return product.zones.groups <= gemm_most_experts && product.zones.rows > 0 &&
         std::max({product.m, product.n, product.k, product.zones.rows}) < most &&
         (product.ragged_k() || product.k > 0) && strips * (product.n / gemm_tile_n + 1) < most &&
         can_map(product, product.a) && can_map(product, product.b);
}

void grouped_gemm_hopper(const GroupedProduct& product, const Device& device, cudaStream_t stream) {
  const CUtensorMap a = map_operand(product, product.a, product.m);
  const CUtensorMap b = map_operand(product, product.b, product.n);
  const bool b_rows = product.ragged_k() || product.b.k_stride != 1;
  const Launched kernel = product.ragged_k() ? multiply_groups<true, true>
                          : b_rows           ? multiply_groups<false, true>
                                             : multiply_groups<false, false>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
        "shared memory of the grouped GEMM");
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {2, 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(device.multiprocessors / 2 * 2));
  config.blockDim = dim3(block_threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &cluster, config.numAttrs = 1;
  check(cudaLaunchKernelEx(&config, kernel, product, a, b, epilogue_of(product)),
        "grouped GEMM (sm_90a)");
}

}  // namespace dropless::cuda
