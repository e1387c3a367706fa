// SPDX-License-Identifier: Apache-2.0
// Tensor maps, made on the host from what it knows: whole buffers, never single groups.
#include "optimized/cuda/grouped_gemm_maps.h"

#include <cuda_runtime_api.h>

namespace dropless::cuda {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

// From the driver, so that the library does not need it to be linked.
Encode encoder() {
  static const Encode function = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000,
                                           cudaEnableDefault, &result),
          "looking for cuTensorMapEncodeTiled");
    if (found == nullptr) not_supported("the driver has no cuTensorMapEncodeTiled");
    return reinterpret_cast<Encode>(found);
  }();
  return function;
}

}  // namespace

bool can_map(const GroupedProduct& product, const GemmOperand& operand) {
  if (operand.dtype != DROPLESS_BF16) return false;
  const bool dense_k = operand.k_stride == 1, dense_outer = operand.outer_stride == 1;
  const bool axis = operand.ragged == GemmRagged::outer         ? dense_k
                    : operand.ragged == GemmRagged::contraction ? dense_outer
                                                                : dense_k || dense_outer;
  const auto aligned = [](Index stride) { return stride % 8 == 0 && stride > 0; };
  const bool weights = operand.ragged == GemmRagged::none;
  return axis &&
         aligned(dense_k && operand.ragged != GemmRagged::contraction ? operand.outer_stride
                                                                      : operand.k_stride) &&
         (!weights || product.zones.groups == 1 || aligned(operand.group_stride)) &&
         reinterpret_cast<std::uintptr_t>(operand.data) % 16 == 0 && operand.data != nullptr;
}

CUtensorMap map_operand(const GroupedProduct& product, const GemmOperand& operand, Index outer) {
  const bool along_k = operand.ragged == GemmRagged::outer ||
                       (operand.ragged == GemmRagged::none && operand.k_stride == 1);
  const Index outers = operand.ragged == GemmRagged::outer ? product.zones.rows : outer;
  const Index ks = operand.ragged == GemmRagged::contraction ? product.zones.rows : product.k;
  const bool weights = operand.ragged == GemmRagged::none;
  const Index row_stride = along_k ? operand.outer_stride : operand.k_stride;
  const Index group_stride =
      weights && product.zones.groups > 1 ? operand.group_stride : row_stride;
  const cuuint64_t sizes[3] = {static_cast<cuuint64_t>(along_k ? ks : outers),
                               static_cast<cuuint64_t>(along_k ? outers : ks),
                               static_cast<cuuint64_t>(weights ? product.zones.groups : 1)};
  const cuuint64_t strides[2] = {static_cast<cuuint64_t>(row_stride) * 2,
                                 static_cast<cuuint64_t>(group_stride) * 2};
  const cuuint32_t box[3] = {64, 64, 1}, steps[3] = {1, 1, 1};
  CUtensorMap map;
  const CUresult result =
      encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<void*>(operand.data), sizes,
                strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    throw Refusal{DROPLESS_INTERNAL_ERROR, "grouped GEMM: the driver refused a tensor map, error " +
                                               std::to_string(static_cast<int>(result))};
  }
  return map;
}

}  // namespace dropless::cuda
