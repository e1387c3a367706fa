// SPDX-License-Identifier: Apache-2.0
// Opening cuBLASLt and its handles.
#include "optimized/cuda/cublaslt.h"

#include <dlfcn.h>

#include <cstdlib>
#include <map>
#include <mutex>
#include <string_view>

namespace dropless::cuda {
namespace {

dropless_status status_of(cublasStatus_t answer) {
  switch (answer) {
    case CUBLAS_STATUS_ALLOC_FAILED:
      return DROPLESS_OUT_OF_MEMORY;
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return DROPLESS_DEVICE_ERROR;
    case CUBLAS_STATUS_NOT_SUPPORTED:
    case CUBLAS_STATUS_ARCH_MISMATCH:
    case CUBLAS_STATUS_NOT_INITIALIZED:  // of a handle: the GPU is not served
    case CUBLAS_STATUS_INVALID_VALUE:    // of an attribute: an older library does not know it
      return DROPLESS_NOT_SUPPORTED;
    default:
      return DROPLESS_INTERNAL_ERROR;
  }
}

bool is_switched_off() {
  const char* given = std::getenv("DROPLESS_CUBLASLT");
  const std::string_view wish = given == nullptr ? "on" : given;
  if (wish != "on" && wish != "off") {
    refuse("DROPLESS_CUBLASLT is '" + std::string(wish) + "'; it may be on or off");
  }
  return wish == "off";
}

CublasLt open() {
  if (is_switched_off()) not_supported("DROPLESS_CUBLASLT is off");
  const std::string name = "libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR);
  void* file = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (file == nullptr) not_supported("dense products need " + name);
  CublasLt library;
  const auto find = [&](auto& function, const char* symbol) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(file, symbol));
    if (function == nullptr) not_supported(name + " has no " + symbol);
  };
  find(library.create, "cublasLtCreate");
  find(library.matmul, "cublasLtMatmul");
  find(library.desc_create, "cublasLtMatmulDescCreate");
  find(library.desc_destroy, "cublasLtMatmulDescDestroy");
  find(library.desc_set, "cublasLtMatmulDescSetAttribute");
  find(library.layout_create, "cublasLtMatrixLayoutCreate");
  find(library.layout_destroy, "cublasLtMatrixLayoutDestroy");
  find(library.preference_create, "cublasLtMatmulPreferenceCreate");
  find(library.preference_destroy, "cublasLtMatmulPreferenceDestroy");
  find(library.preference_set, "cublasLtMatmulPreferenceSetAttribute");
  find(library.heuristic, "cublasLtMatmulAlgoGetHeuristic");
  return library;
}

}  // namespace

void succeed(cublasStatus_t answer, const char* what) {
  if (answer == CUBLAS_STATUS_SUCCESS) return;
  throw Refusal{status_of(answer), std::string("cuBLASLt, ") + what + ": status " +
                                       std::to_string(static_cast<int>(answer))};
}

const CublasLt& cublaslt() {
  static Refusal trouble{DROPLESS_OK, ""};
  static const CublasLt opened = [] {
    try {
      return open();
    } catch (const Refusal& refusal) {
      trouble = refusal;
      return CublasLt{};
    }
  }();
  if (trouble.status != DROPLESS_OK) throw trouble;
  return opened;
}

cublasLtHandle_t cublaslt_handle(const Call& call) {
  static std::mutex mutex;
  static std::map<int, cublasLtHandle_t> known;
  const std::lock_guard lock(mutex);
  const int ordinal = call.device().ordinal;
  if (const auto found = known.find(ordinal); found != known.end()) return found->second;
  refuse_while_captured(call.stream(), "cuBLASLt has to be opened");
  cublasLtHandle_t made = nullptr;
  succeed(cublaslt().create(&made), "opening");
  return known[ordinal] = made;
}

}  // namespace dropless::cuda
