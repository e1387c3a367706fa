// SPDX-License-Identifier: Apache-2.0
// cuBLASLt, opened at run time. It thinks in columns: a row-major product out = a b is asked for as
// out^T = b^T a^T.
#include "optimized/cuda/dense_gemm.h"

#include <cublasLt.h>
#include <dlfcn.h>

#include <map>
#include <mutex>
#include <optional>

namespace dropless::cuda {
namespace {

constexpr std::size_t scratch_bytes = std::size_t{32} << 20;

// The functions that are used.
struct Library {
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

void succeed(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Refusal{
      status == CUBLAS_STATUS_ALLOC_FAILED       ? DROPLESS_OUT_OF_MEMORY
      : status == CUBLAS_STATUS_NOT_SUPPORTED    ? DROPLESS_NOT_SUPPORTED
      : status == CUBLAS_STATUS_EXECUTION_FAILED ? DROPLESS_DEVICE_ERROR
                                                 : DROPLESS_INTERNAL_ERROR,
      std::string("cuBLASLt, ") + what + ": status " + std::to_string(static_cast<int>(status))};
}

Library open_library() {
  void* file = nullptr;
  const std::string major = std::to_string(CUBLAS_VER_MAJOR);
  for (const std::string& name : {"libcublasLt.so." + major, std::string("libcublasLt.so")}) {
    if (file == nullptr) file = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  }
  if (file == nullptr) not_supported("dense products need libcublasLt.so." + major);
  Library library;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(file, name));
    if (function == nullptr) not_supported(std::string("libcublasLt has no ") + name);
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

// Opened once a process, or found missing once.
const Library& library() {
  static Refusal trouble{DROPLESS_OK, ""};
  static const Library opened = [] {
    try {
      return open_library();
    } catch (const Refusal& refusal) {
      trouble = refusal;
      return Library{};
    }
  }();
  if (trouble.status != DROPLESS_OK) throw trouble;
  return opened;
}

// Handles live as long as the process.
cublasLtHandle_t handle(int device) {
  static std::mutex mutex;
  static std::map<int, cublasLtHandle_t> known;
  const std::lock_guard lock(mutex);
  auto [place, made] = known.try_emplace(device, nullptr);
  if (made) {
    const cublasStatus_t status = library().create(&place->second);
    if (status != CUBLAS_STATUS_SUCCESS) known.erase(place);
    succeed(status, "opening");
  }
  return known.at(device);
}

cudaDataType type_of(dropless_dtype dtype) {
  return dtype == DROPLESS_FP32   ? CUDA_R_32F
         : dtype == DROPLESS_BF16 ? CUDA_R_16BF
         : dtype == DROPLESS_E4M3 ? CUDA_R_8F_E4M3
                                  : CUDA_R_8F_E5M2;
}

// Descriptions of one product; freed at the end of the scope. Columns: `rows` is the extent that is
// dense in memory.
class Plan {
 public:
  Plan() {
    succeed(library().desc_create(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "a description");
  }
  ~Plan() {
    for (cublasLtMatrixLayout_t layout : layouts_) library().layout_destroy(layout);
    library().desc_destroy(operation);
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  cublasLtMatrixLayout_t layout(dropless_dtype dtype, Index rows, Index columns, Index stride) {
    cublasLtMatrixLayout_t made = nullptr;
    succeed(library().layout_create(&made, type_of(dtype), static_cast<std::uint64_t>(rows),
                                    static_cast<std::uint64_t>(columns), stride),
            "a layout");
    layouts_.push_back(made);
    return made;
  }
  template <class Value>
  void set(cublasLtMatmulDescAttributes_t attribute, Value value) {
    succeed(library().desc_set(operation, attribute, &value, sizeof value), "an attribute");
  }

  cublasLtMatmulDesc_t operation = nullptr;

 private:
  std::vector<cublasLtMatrixLayout_t> layouts_;
};

// What a plan multiplies; layouts as cuBLASLt sees them.
struct Operands {
  const void *a, *b;
  void* out;
  cublasLtMatrixLayout_t a_layout, b_layout, out_layout;
  float alpha, beta;
};

// The largest power of two that divides an address, at most that of scratch memory.
std::uint32_t alignment_of(const void* data) {
  const auto address = reinterpret_cast<std::uintptr_t>(data) | 256;
  return static_cast<std::uint32_t>(address & (~address + 1));
}

// None when no algorithm takes the product.
std::optional<cublasLtMatmulAlgo_t> choose(Call& call, const Plan& plan, const Operands& x) {
  cublasLtMatmulPreference_t preference = nullptr;
  succeed(library().preference_create(&preference), "a preference");
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    library().preference_set(preference, attribute, &value, sizeof value);
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, scratch_bytes);
  // Split sums are added in fp32, by the order of the algorithm: the same bits in every run.
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
         std::uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(x.a));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(x.b));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_of(x.out));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_of(x.out));
  cublasLtMatmulHeuristicResult_t best = {};
  int found = 0;
  const cublasStatus_t status =
      library().heuristic(handle(call.device().ordinal), plan.operation, x.a_layout, x.b_layout,
                          x.out_layout, x.out_layout, preference, 1, &best, &found);
  library().preference_destroy(preference);
  if (status != CUBLAS_STATUS_SUCCESS || found == 0) return std::nullopt;
  return best.algo;
}

// False when no algorithm takes the product.
bool multiply(Call& call, const Plan& plan, const Operands& x) {
  const auto algorithm = choose(call, plan, x);
  if (!algorithm) return false;
  ScratchScope scope(call);
  auto* scratch = call.scratch<std::byte>(static_cast<Index>(scratch_bytes));
  succeed(library().matmul(handle(call.device().ordinal), plan.operation, &x.alpha, x.a, x.a_layout,
                           x.b, x.b_layout, &x.beta, x.out, x.out_layout, x.out, x.out_layout,
                           &*algorithm, scratch, scratch_bytes, call.stream()),
          "a product");
  return true;
}

// Operands of a product with block scales; the plan gets its modes.
Operands with_block_scales(Plan& plan, const ScaledProduct& p) {
  plan.set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
  plan.set(CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N);
  const cublasLtMatmulMatrixScale_t blocks = CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0;
  plan.set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, blocks);
  plan.set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, blocks);
  plan.set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, p.b_scales);
  plan.set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, p.a_scales);
  Operands x = {};
  x.a = p.b, x.b = p.a, x.out = p.out.data;
  x.a_layout = plan.layout(p.b_dtype, p.k, p.n, p.k);
  x.b_layout = plan.layout(p.a_dtype, p.k, p.m, p.k);
  x.out_layout = plan.layout(p.out.dtype, p.n, p.m, p.out.stride);
  x.alpha = 1;
  return x;
}

}  // namespace

void dense_gemm(Call& call, const DenseProduct& p) {
  if (p.m == 0 || p.n == 0) return;
  Plan plan;
  plan.set(CUBLASLT_MATMUL_DESC_TRANSA, p.b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  plan.set(CUBLASLT_MATMUL_DESC_TRANSB, p.a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  Operands x = {};
  x.a = p.b.data, x.b = p.a.data, x.out = p.out.data;
  x.a_layout = p.b_transposed ? plan.layout(p.b.dtype, p.k, p.n, p.b.stride)
                              : plan.layout(p.b.dtype, p.n, p.k, p.b.stride);
  x.b_layout = p.a_transposed ? plan.layout(p.a.dtype, p.m, p.k, p.a.stride)
                              : plan.layout(p.a.dtype, p.k, p.m, p.a.stride);
  x.out_layout = plan.layout(p.out.dtype, p.n, p.m, p.out.stride);
  x.alpha = p.alpha, x.beta = p.beta;
  if (!multiply(call, plan, x)) not_supported("cuBLASLt takes no product of these shapes");
}

bool has_block_scales(Call& call) {
  static std::mutex mutex;
  static std::map<int, bool> known;
  const std::lock_guard lock(mutex);
  const int ordinal = call.device().ordinal;
  if (const auto found = known.find(ordinal); found != known.end()) return found->second;
  // A product that every library with block scales takes.
  constexpr Index extent = 128;
  const ScratchScope scope(call);
  ScaledProduct p;
  p.m = p.n = p.k = extent;
  p.a = p.b = call.scratch<std::uint8_t>(extent * extent);
  p.a_scales = p.b_scales = call.scratch<std::uint8_t>(extent * extent / DROPLESS_BLOCK_SIZE);
  p.out = {call.scratch<std::uint16_t>(extent * extent), DROPLESS_BF16, extent};
  bool taken = false;
  try {
    Plan plan;
    const Operands operands = with_block_scales(plan, p);
    taken = choose(call, plan, operands).has_value();
  } catch (const Refusal& refusal) {
    if (refusal.status != DROPLESS_NOT_SUPPORTED) throw;  // may pass: to be asked again
  }
  return known[ordinal] = taken;
}

bool scaled_gemm(Call& call, const ScaledProduct& p) {
  if (p.m == 0 || p.n == 0) return true;
  if (p.k == 0 || !has_block_scales(call)) return false;
  Plan plan;
  const Operands operands = with_block_scales(plan, p);
  return multiply(call, plan, operands);
}

}  // namespace dropless::cuda
