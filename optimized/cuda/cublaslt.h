// SPDX-License-Identifier: Apache-2.0
// cuBLASLt, opened at run time: it is large, and most uses of this library need none of it.
#pragma once

#include <cublasLt.h>

#include "optimized/cuda/call.h"

namespace dropless::cuda {

// The functions that are used.
struct CublasLt {
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;
  decltype(&cublasLtMatmulDescCreate) desc_create = nullptr;
  decltype(&cublasLtMatmulDescDestroy) desc_destroy = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) layout_create = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;
};

// Opened once a process, or found missing once. Throws Refusal: NOT_SUPPORTED without the library
// of this build's major version, or with DROPLESS_CUBLASLT=off in the environment.
const CublasLt& cublaslt();

// The handle for the GPU of the call; it lives as long as the process. Throws Refusal:
// NOT_SUPPORTED where the library does not serve the GPU, INTERNAL_ERROR when it would have to be
// made while the stream is captured.
cublasLtHandle_t cublaslt_handle(const Call& call);

// Throws Refusal when an answer is no success: NOT_SUPPORTED for what the library or the GPU does
// not know.
void succeed(cublasStatus_t answer, const char* what);

}  // namespace dropless::cuda
