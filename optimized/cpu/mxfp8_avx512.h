// SPDX-License-Identifier: Apache-2.0
// The quantiser's fast path: bf16 to MXFP8 in 16-bit integers, one register a block.
#pragma once

#include <dropless/contract.h>

#include "optimized/cpu/simd.h"
#include "optimized/cpu/threads.h"

#if DROPLESS_CPU_X86

namespace dropless::cpu {

// As quantize_row and quantize_columns of mxfp8_blocks.h.
void quantize_row_avx512(dropless_dtype dtype, const std::uint16_t* x, Index blocks,
                         const std::uint32_t* tiles, std::uint8_t* codes, std::uint8_t* bytes);

void quantize_columns_avx512(dropless_dtype dtype, const std::uint16_t* x, Index row_stride,
                             Index rows, const std::uint32_t* tile, std::uint8_t* codes,
                             Index code_stride, std::uint8_t* bytes);

}  // namespace dropless::cpu

#endif
