// SPDX-License-Identifier: Apache-2.0
// Faults of queues, graphs and kernels, planted into the CUDA implementation. A fault may wait for
// the device where the correct operation must not: that is not what it is caught by, unless it is
// the fault.
#include <cuda_runtime_api.h>

#include <map>
#include <vector>

#include "tests/faults/gpu_plants.h"

namespace dropless::faults {
namespace {

template <class Next>
cudaStream_t stream_of(const Next& next) {
  return static_cast<cudaStream_t>(next.call()->stream);
}

bool is_captured(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  return cudaStreamIsCapturing(stream, &status) == cudaSuccess &&
         status != cudaStreamCaptureStatusNone;
}

std::int64_t rows_of(const dropless_tensor& tensor) {
  std::int64_t rows = 1;
  for (std::int32_t axis = 0; axis + 1 < tensor.rank; ++axis) rows *= tensor.shape[axis];
  return rows;
}

std::vector<std::int64_t> on_host(const dropless_tensor& vector, cudaStream_t stream) {
  std::vector<std::int64_t> values(static_cast<std::size_t>(vector.shape[0]));
  cudaMemcpyAsync(values.data(), vector.data, values.size() * 8, cudaMemcpyDeviceToHost, stream);
  cudaStreamSynchronize(stream);
  return values;
}

// The forward pass runs on the default stream, which the caller's does not wait for.
void on_another_stream(Planted& planted) {
  planted.around<&Table::layer_forward>([](const auto& next, auto& a) {
    void* const own = next.call()->stream;
    next.call()->stream = nullptr;
    const dropless_status status = next(a);
    next.call()->stream = own;
    return status;
  });
}

// A captured forward pass takes the ids of the call before, so a replay never routes anew.
void frozen_routing(Planted& planted) {
  planted.around<&Table::layer_forward>([](const auto& next, auto& a) {
    static dropless_tensor frozen{};
    static void* memory = nullptr;
    if (a.ids != nullptr && a.given_ids == nullptr && memory != nullptr &&
        is_captured(stream_of(next)) && a.ids->shape[0] == frozen.shape[0] &&
        a.ids->shape[1] == frozen.shape[1]) {
      a.given_ids = &frozen;
      return next(a);
    }
    const dropless_status status = next(a);
    if (status != DROPLESS_OK || is_captured(stream_of(next))) return status;
    frozen = *a.ids;
    const std::size_t element = frozen.dtype == DROPLESS_I32 ? 4 : 8;
    const auto bytes = static_cast<std::size_t>(frozen.shape[0] * frozen.shape[1]) * element;
    if (memory != nullptr) cudaFree(memory);
    memory = nullptr;
    if (bytes == 0 || cudaMalloc(&memory, bytes) != cudaSuccess) return status;
    cudaMemcpyAsync(memory, frozen.data, bytes, cudaMemcpyDeviceToDevice, stream_of(next));
    frozen.data = memory;
    return status;
  });
}

// The host looks at the counts before it goes on.
void reads_the_counts(Planted& planted) {
  planted.around<&Table::layer_forward>([](const auto& next, auto& a) {
    const dropless_status status = next(a);
    if (status == DROPLESS_OK) on_host(*a.tokens_per_expert, stream_of(next));
    return status;
  });
}

// The accumulator of an empty contraction is not cleared: the tile before is stored again.
void stale_accumulator(Planted& planted) {
  planted.around<&Table::gemm_wgrad>([](const auto& next, auto& a) {
    const dropless_status status = next(a);
    if (status != DROPLESS_OK || a.dw->data == nullptr || is_captured(stream_of(next))) {
      return status;
    }
    const auto offsets = on_host(*a.offsets, stream_of(next));
    const std::size_t element = a.dw->dtype == DROPLESS_FP32 ? 4 : 2;
    const auto pitch = static_cast<std::size_t>(a.dw->strides[1]) * element;
    const auto width = static_cast<std::size_t>(a.dw->shape[2]) * element;
    for (std::size_t e = 1; e + 1 < offsets.size(); ++e) {
      if (offsets[e] != offsets[e + 1]) continue;
      auto* to = static_cast<std::byte*>(a.dw->data) +
                 e * static_cast<std::size_t>(a.dw->strides[0]) * element;
      const auto* from = to - static_cast<std::size_t>(a.dw->strides[0]) * element;
      cudaMemcpy2DAsync(to, pitch, from, pitch, width, static_cast<std::size_t>(a.dw->shape[1]),
                        cudaMemcpyDeviceToDevice, stream_of(next));
    }
    return status;
  });
}

// The last row ends in a vector store of 16 bytes, whatever its length.
void rows_past_the_buffer(Planted& planted) {
  planted.around<&Table::permute_forward>([](const auto& next, auto& a) {
    const dropless_status status = next(a);
    if (status != DROPLESS_OK || a.rows->data == nullptr || rows_of(*a.rows) == 0) return status;
    const std::int64_t element = a.rows->dtype == DROPLESS_FP32   ? 4
                                 : a.rows->dtype == DROPLESS_BF16 ? 2
                                                                  : 1;
    auto* end = static_cast<std::byte*>(a.rows->data) +
                ((a.rows->shape[0] - 1) * a.rows->strides[0] + a.rows->shape[1]) * element;
    cudaMemsetAsync(end, 0, 16, stream_of(next));
    return status;
  });
}

}  // namespace

GpuPlant gpu_plant(const std::string& name) {
  static const std::map<std::string, GpuPlant> plants = {
      {"layer.output_filled_on_another_stream", on_another_stream},
      {"layer.routing_frozen_in_replay", frozen_routing},
      {"layer.host_reads_the_counts", reads_the_counts},
      {"grouped_gemm.accumulator_of_an_empty_contraction", stale_accumulator},
      {"permutation.vector_store_past_the_last_row", rows_past_the_buffer},
  };
  const auto found = plants.find(name);
  return found == plants.end() ? nullptr : found->second;
}

}  // namespace dropless::faults
