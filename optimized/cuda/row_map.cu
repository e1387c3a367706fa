// SPDX-License-Identifier: Apache-2.0
// Checks of row maps in device memory.
#include "optimized/cuda/device_refusal.h"
#include "optimized/cuda/row_map.cuh"
#include "optimized/cuda/zones.h"

namespace dropless::cuda {
namespace {

constexpr int block_threads = 256;

// Values outside -1 .. limit-1 refuse.
__global__ void check_rows(Tensor map, Index limit, int* refusal) {
  const Index step = static_cast<Index>(gridDim.x) * blockDim.x, width = map.shape[1];
  for (Index i = static_cast<Index>(blockIdx.x) * blockDim.x + threadIdx.x; i < map.size();
       i += step) {
    const Index row = map.as<std::int64_t>(i / width, i % width);
    if (row < -1 || row >= limit) refuse_on_device(refusal, DeviceReason::row_map_out_of_range);
  }
}

void check_values(Call& call, const Tensor& map, Index limit) {
  if (call.trusted() || map.size() == 0) return;
  check_rows<<<grid_size(ceil_div(map.size(), block_threads), 1024), block_threads, 0,
               call.stream()>>>(map, limit, call.refusal_word());
  check_launch("check_rows");
}

}  // namespace

RowMap read_row_map(Call& call, const dropless_tensor* row_map, Index tokens, Index rows) {
  const Tensor given = tensor(row_map, "row_map", {DROPLESS_I64}, {tokens, any});
  check_values(call, given, rows);
  RowMap map;
  map.data = reinterpret_cast<const std::int64_t*>(given.data);
  map.token_stride = given.strides[0];
  map.slot_stride = given.strides[1];
  map.tokens = tokens;
  map.top_k = given.shape[1];
  map.rows = rows;
  return map;
}

Padding read_padding(Call& call, const dropless_tensor* offsets, const dropless_tensor* source,
                     Index rows) {
  const Zones zones = read_zones(call, offsets, nullptr, rows);
  refuse_if(zones.offsets == nullptr, "offsets: null pointer");
  const Tensor given = tensor(source, "source", {DROPLESS_I64}, {rows});
  Padding padding;
  padding.source = reinterpret_cast<const std::int64_t*>(given.data);
  padding.stride = given.strides[0];
  padding.rows = rows;
  padding.total = zones.offsets + zones.groups * zones.offset_stride;
  return padding;
}

}  // namespace dropless::cuda
