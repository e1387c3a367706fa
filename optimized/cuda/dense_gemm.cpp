// SPDX-License-Identifier: Apache-2.0
// Dense products. cuBLASLt thinks in columns: a row-major product out = a b is asked for as
// out^T = b^T a^T.
#include "optimized/cuda/dense_gemm.h"

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "optimized/cuda/cublaslt.h"

namespace dropless::cuda {
namespace {

constexpr std::size_t scratch_bytes = std::size_t{32} << 20;

cudaDataType type_of(dropless_dtype dtype) {
  return dtype == DROPLESS_FP32   ? CUDA_R_32F
         : dtype == DROPLESS_BF16 ? CUDA_R_16BF
         : dtype == DROPLESS_E4M3 ? CUDA_R_8F_E4M3
                                  : CUDA_R_8F_E5M2;
}

// Descriptions of one product; freed at the end of the scope. Columns: `rows` is the extent that is
// dense in memory. The question sums up all that an algorithm depends on.
class Plan {
 public:
  explicit Plan(const Call& call) : question{call.device().ordinal} {
    succeed(cublaslt().desc_create(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "a description");
  }
  ~Plan() {
    for (cublasLtMatrixLayout_t layout : layouts_) cublaslt().layout_destroy(layout);
    cublaslt().desc_destroy(operation);
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  cublasLtMatrixLayout_t layout(dropless_dtype dtype, Index rows, Index columns, Index stride) {
    cublasLtMatrixLayout_t made = nullptr;
    succeed(cublaslt().layout_create(&made, type_of(dtype), static_cast<std::uint64_t>(rows),
                                     static_cast<std::uint64_t>(columns), stride),
            "a layout");
    layouts_.push_back(made);
    question.insert(question.end(), {dtype, rows, columns, stride});
    return made;
  }
  template <class Value>
  void set(cublasLtMatmulDescAttributes_t attribute, Value value) {
    succeed(cublaslt().desc_set(operation, attribute, &value, sizeof value), "an attribute");
    if constexpr (!std::is_pointer_v<Value>) {
      question.insert(question.end(), {attribute, static_cast<Index>(value)});
    }
  }

  cublasLtMatmulDesc_t operation = nullptr;
  std::vector<Index> question;

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

struct DestroyPreference {
  void operator()(cublasLtMatmulPreference_t preference) const {
    cublaslt().preference_destroy(preference);
  }
};
using Preference =
    std::unique_ptr<std::remove_pointer_t<cublasLtMatmulPreference_t>, DestroyPreference>;

// None when no algorithm takes the product. Throws Refusal when the library does not say.
std::optional<cublasLtMatmulAlgo_t> ask(const Call& call, const Plan& plan, const Operands& x) {
  const cublasLtHandle_t handle = cublaslt_handle(call);
  cublasLtMatmulPreference_t made = nullptr;
  succeed(cublaslt().preference_create(&made), "a preference");
  const Preference preference(made);
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    succeed(cublaslt().preference_set(made, attribute, &value, sizeof value), "a preference");
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, scratch_bytes);
  // Split sums are added in fp32, by the order of the algorithm: the same bits in every run.
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
         std::uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  cublasLtMatmulHeuristicResult_t best = {};
  int found = 0;
  const cublasStatus_t answer =
      cublaslt().heuristic(handle, plan.operation, x.a_layout, x.b_layout, x.out_layout,
                           x.out_layout, made, 1, &best, &found);
  if (answer == CUBLAS_STATUS_NOT_SUPPORTED) return std::nullopt;
  succeed(answer, "a choice");
  if (found == 0) return std::nullopt;
  return best.algo;
}

// The same answer for the same question as long as the process lives: a captured call computes what
// the call before it did, and nothing is asked twice.
std::optional<cublasLtMatmulAlgo_t> choose(const Call& call, const Plan& plan, const Operands& x) {
  static std::mutex mutex;
  static std::map<std::vector<Index>, std::optional<cublasLtMatmulAlgo_t>> known;
  const std::lock_guard lock(mutex);
  if (const auto found = known.find(plan.question); found != known.end()) return found->second;
  return known[plan.question] = ask(call, plan, x);
}

// False when no algorithm takes the product.
bool multiply(Call& call, const Plan& plan, const Operands& x) {
  const auto algorithm = choose(call, plan, x);
  if (!algorithm) return false;
  ScratchScope scope(call);
  auto* scratch = call.scratch<std::byte>(static_cast<Index>(scratch_bytes));
  succeed(cublaslt().matmul(cublaslt_handle(call), plan.operation, &x.alpha, x.a, x.a_layout, x.b,
                            x.b_layout, &x.beta, x.out, x.out_layout, x.out, x.out_layout,
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
  Plan plan(call);
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
  // A product that every library with block scales takes.
  constexpr Index extent = 128;
  const ScratchScope scope(call);
  ScaledProduct p;
  p.m = p.n = p.k = extent;
  p.a = p.b = call.scratch<std::uint8_t>(extent * extent);
  p.a_scales = p.b_scales = call.scratch<std::uint8_t>(extent * extent / DROPLESS_BLOCK_SIZE);
  p.out = {call.scratch<std::uint16_t>(extent * extent), DROPLESS_BF16, extent};
  try {
    Plan plan(call);
    const Operands operands = with_block_scales(plan, p);
    return choose(call, plan, operands).has_value();
  } catch (const Refusal& refusal) {
    if (refusal.status != DROPLESS_NOT_SUPPORTED) throw;
    return false;  // no library, or one that does not know the modes
  }
}

bool scaled_gemm(Call& call, const ScaledProduct& p) {
  if (p.m == 0 || p.n == 0) return true;
  if (p.k == 0 || !has_block_scales(call)) return false;
  Plan plan(call);
  const Operands operands = with_block_scales(plan, p);
  return multiply(call, plan, operands);
}

}  // namespace dropless::cuda
