// SPDX-License-Identifier: Apache-2.0
// Checks of offsets and counts in device memory.
#include "optimized/cuda/device_refusal.h"
#include "optimized/cuda/zones.h"

namespace dropless::cuda {
namespace {

__global__ void check_zones(Zones zones, int* refusal) {
  for (Index g = threadIdx.x; g < zones.groups; g += blockDim.x) {
    const Index first = zones.first(g), end = zones.end(g);
    if (g == 0 && first != 0) refuse_on_device(refusal, DeviceReason::offsets_do_not_begin_at_zero);
    if (end < first) refuse_on_device(refusal, DeviceReason::falling_offsets);
    if (end > zones.rows) refuse_on_device(refusal, DeviceReason::offsets_beyond_the_buffer);
    const Index real = zones.real_end(g);
    if (real < first || real > end) refuse_on_device(refusal, DeviceReason::count_outside_its_zone);
  }
  // No group at all: the single offset has no zone to be looked at with.
  if (threadIdx.x == 0 && zones.groups == 0 && zones.first(0) != 0) {
    refuse_on_device(refusal, DeviceReason::offsets_do_not_begin_at_zero);
  }
}

}  // namespace

Zones read_zones(Call& call, const dropless_tensor* offsets, const dropless_tensor* counts,
                 Index rows, Index groups) {
  Zones zones;
  zones.rows = rows;
  if (offsets != nullptr) {
    const Tensor given =
        tensor(offsets, "offsets", {DROPLESS_I64}, {groups == any ? any : groups + 1});
    refuse_if(given.shape[0] < 1, "offsets: empty");
    zones.offsets = reinterpret_cast<const std::int64_t*>(given.data);
    zones.offset_stride = given.strides[0];
    zones.groups = given.shape[0] - 1;
  }
  if (counts != nullptr) {
    const Tensor given = tensor(counts, "counts", {DROPLESS_I64}, {zones.groups});
    zones.counts = reinterpret_cast<const std::int64_t*>(given.data);
    zones.count_stride = given.strides[0];
  }
  if (!call.trusted() && (offsets != nullptr || counts != nullptr)) {
    check_zones<<<1, 256, 0, call.stream()>>>(zones, call.refusal_word());
    check_launch("check_zones");
  }
  return zones;
}

}  // namespace dropless::cuda
