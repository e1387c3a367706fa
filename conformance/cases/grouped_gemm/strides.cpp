// SPDX-License-Identifier: Apache-2.0
// Strides of every kind: GROUPED_GEMM-8.
#include <algorithm>
#include <cmath>
#include <limits>

#include "conformance/cases/grouped_gemm/setup.h"
#include "conformance/judge/elements.h"
#include "conformance/judge/memory.h"
#include "tolerances/interval.h"

namespace dropless::conformance {
namespace {

GemmProblem strided_problem(CaseRun& run, bool exact) {
  GemmProblem problem;
  problem.product = product_of(run.word("product"));
  problem.operands = run.word("operands"), problem.output = DROPLESS_FP32;
  problem.experts = 5, problem.out = 37, problem.in = 58;
  Random random = run.random("zones");
  problem.zones = row_zones(run, rows_per_expert("empty_middle", 5, 90, random), true);
  problem.data = exact ? "exact" : bitwise_data(run, problem);
  fill_operands(run, problem, problem.product == Product::fprop, false);
  return problem;
}

void run_gaps(CaseRun& run) {
  GemmProblem problem = strided_problem(run, false);
  GemmCall dense = gemm_call(run, problem);
  perform(run, dense);
  judge_gemm(run, problem, dense);
  for (const Index gap : {1, 6}) {
    problem.layout = {.row_gap = gap, .offset_bytes = 4 * gap};
    GemmCall spread = gemm_call(run, problem);
    perform(run, spread, "GROUPED_GEMM-8");
    run.judge().same_bytes("GROUPED_GEMM-8", "gaps of " + std::to_string(gap), *spread.output,
                           dense.output->bytes(), computed_elements(problem));
  }
}

// W, or dW, as a view into a larger tensor: `more` rows that nobody may touch behind every expert.
void run_expert_gaps(CaseRun& run) {
  constexpr Index more = 3;
  const GemmProblem problem = strided_problem(run, true);
  GemmCall call = gemm_call(run, problem);
  Buffers& buffers = run.buffers();
  const Shape shape = {problem.experts, problem.out + more, problem.in};
  const Index matrix = problem.out * problem.in, spread = (problem.out + more) * problem.in;
  const std::size_t size = static_cast<std::size_t>(element_count(shape));
  const Buffer* larger = nullptr;
  if (problem.by_rows()) {
    std::vector<double> weights(size, std::numeric_limits<double>::quiet_NaN());
    for (Index e = 0; e < problem.experts; ++e) {
      std::copy_n(problem.right.begin() + e * matrix, matrix, weights.begin() + e * spread);
    }
    larger = &buffers.input("larger w", plain_dtype(problem.operands), shape, weights);
  } else {
    larger = &buffers.output("larger dw", problem.output, shape);
  }
  dropless_tensor view = *larger->tensor();
  view.shape[1] = problem.out;
  if (problem.by_rows()) {
    call.right.operand.values = &view;
    perform(run, call, "GROUPED_GEMM-8");
    return judge_gemm(run, problem, call, "GROUPED_GEMM-8");
  }
  call.wgrad.dw = &view;
  perform(run, call, "GROUPED_GEMM-8");
  const auto inner = gemm_expected(problem, call);
  const auto inner_errors = gemm_errors(run, problem, inner);
  std::vector<double> expected(size), errors(size);
  Judged inside(size), outside(size, true);
  for (Index e = 0; e < problem.experts; ++e) {
    for (Index i = 0; i < matrix; ++i) {
      const auto at = static_cast<std::size_t>(e * spread + i);
      expected[at] = inner.value[static_cast<std::size_t>(e * matrix + i)];
      errors[at] = inner_errors[static_cast<std::size_t>(e * matrix + i)];
      inside[at] = true, outside[at] = false;
    }
  }
  run.judge().bounded("GROUPED_GEMM-8", "dw", *larger, expected, errors, inside);
  run.judge().untouched("GROUPED_GEMM-8", "rows behind an expert's dw", *larger, outside);
}

// W stored as [E,I,O].
void run_transposed(CaseRun& run) {
  const GemmProblem problem = strided_problem(run, true);
  GemmCall call = gemm_call(run, problem);
  std::vector<double> turned(problem.right.size());
  for (Index e = 0; e < problem.experts; ++e) {
    for (Index o = 0; o < problem.out; ++o) {
      for (Index i = 0; i < problem.in; ++i) {
        turned[static_cast<std::size_t>((e * problem.in + i) * problem.out + o)] =
            problem.right[static_cast<std::size_t>((e * problem.out + o) * problem.in + i)];
      }
    }
  }
  const Buffer& stored = run.buffers().input("w as [E,I,O]", plain_dtype(problem.operands),
                                             {problem.experts, problem.in, problem.out}, turned);
  dropless_tensor view = *stored.tensor();
  std::swap(view.shape[1], view.shape[2]), std::swap(view.strides[1], view.strides[2]);
  call.right.operand.values = &view;
  perform(run, call, "GROUPED_GEMM-8");
  judge_gemm(run, problem, call, "GROUPED_GEMM-8");
}

// A tensor whose lines lie so far apart that only they can be copied and compared.
class Sparse {
 public:
  Sparse(dropless_memory_space space, dropless_dtype dtype, const Shape& shape, Index line_stride)
      : memory_(memory_of(space)) {
    tensor_.struct_size = sizeof tensor_, tensor_.struct_version = DROPLESS_STRUCT_VERSION;
    tensor_.dtype = dtype, tensor_.memory_space = space;
    tensor_.rank = static_cast<std::int32_t>(shape.size());
    std::copy(shape.begin(), shape.end(), tensor_.shape);
    line_ = element_count(shape) / shape[0];
    for (std::size_t d = shape.size() - 1, stride = 1; d > 0; --d) {
      tensor_.strides[d] = static_cast<Index>(stride);
      stride *= static_cast<std::size_t>(shape[d]);
    }
    tensor_.strides[0] = line_stride;
    bytes_ = static_cast<std::size_t>((shape[0] - 1) * line_stride + line_) * dtype_bytes(dtype);
    data_ = memory_->allocate_span(bytes_);
    if (data_ == nullptr) throw NotSupported{"there is no room for elements so far apart"};
    tensor_.data = data_;
  }
  ~Sparse() { memory_->release_span(data_, bytes_); }
  Sparse(const Sparse&) = delete;
  Sparse& operator=(const Sparse&) = delete;

  [[nodiscard]] const dropless_tensor* tensor() const { return &tensor_; }
  void fill(const std::vector<double>& values) {
    std::vector<std::uint8_t> bytes(line_bytes());
    for (Index line = 0; line < tensor_.shape[0]; ++line) {
      encode(tensor_.dtype, std::span(values).subspan(at(line), at(1)), bytes.data());
      memory_->copy_in(place(line), bytes.data(), bytes.size());
    }
  }
  [[nodiscard]] std::vector<double> values() const {
    std::vector<std::uint8_t> bytes(line_bytes());
    std::vector<double> all(at(tensor_.shape[0]));
    for (Index line = 0; line < tensor_.shape[0]; ++line) {
      memory_->copy_out(bytes.data(), place(line), bytes.size());
      decode(tensor_.dtype, bytes.data(), std::span(all).subspan(at(line), at(1)));
    }
    return all;
  }

 private:
  [[nodiscard]] std::size_t at(Index line) const { return static_cast<std::size_t>(line * line_); }
  [[nodiscard]] std::size_t line_bytes() const { return at(1) * dtype_bytes(tensor_.dtype); }
  [[nodiscard]] std::uint8_t* place(Index line) const {
    return static_cast<std::uint8_t*>(data_) +
           static_cast<std::size_t>(line * tensor_.strides[0]) * dtype_bytes(tensor_.dtype);
  }

  std::shared_ptr<Memory> memory_;
  dropless_tensor tensor_{};
  Index line_ = 0;
  std::size_t bytes_ = 0;
  void* data_ = nullptr;
};

// The last rows, and the last expert, lie beyond 2^31 elements.
void run_far(CaseRun& run) {
  const dropless_memory_space space = run.implementation().memory_space;
  constexpr Index kStride = (Index{1} << 30) + 8;
  GemmProblem problem;
  problem.product = product_of(run.word("product"));
  problem.operands = run.word("operands"), problem.output = DROPLESS_BF16;
  problem.experts = 3, problem.out = 12, problem.in = 20;
  const Index a = std::max(run.profile().gemm_alignment, 1);
  problem.zones = row_zones(run, {a, 0, 3 * a}, false, 0);
  fill_operands(run, problem, false, false);
  const dropless_dtype dtype = plain_dtype(problem.operands);
  Sparse left(space, dtype, problem.left_shape(), kStride);
  Sparse right(space, dtype, problem.right_shape(), kStride);
  Sparse output(space, problem.output, problem.output_shape(), kStride);
  left.fill(problem.left), right.fill(problem.right);
  const std::vector<double> poison(static_cast<std::size_t>(element_count(problem.output_shape())),
                                   std::numeric_limits<double>::quiet_NaN());
  output.fill(poison);

  GemmOperand left_operand, right_operand;
  const auto describe = [](GemmOperand& operand, const Sparse& memory,
                           const std::vector<double>& values) {
    operand.operand.struct_size = sizeof operand.operand;
    operand.operand.struct_version = DROPLESS_STRUCT_VERSION;
    operand.operand.values = memory.tensor();
    operand.values = values;
  };
  describe(left_operand, left, problem.left), describe(right_operand, right, problem.right);
  GemmCall call = gemm_call(run, problem, std::move(left_operand), std::move(right_operand));
  call.fprop.y = call.dgrad.dx = call.wgrad.dw = output.tensor();
  perform(run, call, "GROUPED_GEMM-8");
  const auto expected = gemm_expected(problem, call);
  const auto errors = gemm_errors(run, problem, expected);
  const std::vector<double> values = output.values();
  for (std::size_t i = 0; i < errors.size(); ++i) {
    const double got = values[i];
    const auto interval =
        tolerances::rounded_interval(problem.output, expected.value[i], errors[i]);
    run.judge().holds("GROUPED_GEMM-8", "output beyond 2^31 elements",
                      tolerances::contains(interval, got), print(expected.value[i]), print(got),
                      element_name(problem.output_shape(), static_cast<Index>(i)));
  }
}

void run_strides(CaseRun& run) {
  const std::string& kind = run.word("kind");
  if (kind == "gaps") return run_gaps(run);
  if (kind == "expert_gaps") return run_expert_gaps(run);
  if (kind == "transposed") return run_transposed(run);
  run_far(run);
}

std::vector<Values> select_strides(Tier tier) {
  const auto rows = [](const char* operands) {
    std::vector<Values> out;
    for (const char* kind : {"gaps", "expert_gaps", "transposed", "far"}) {
      for (const std::string& product : product_words()) {
        if (product == "wgrad" && std::string(kind) == "transposed") continue;
        out.push_back(
            {{"product", product}, {"kind", kind}, {"operands", operands}, {"seed", "1"}});
      }
    }
    return out;
  };
  if (tier == Tier::smoke) return {rows("bf16").front()};
  if (tier == Tier::standard) return without(rows("bf16"), {rows("bf16").front()});
  return rows("fp32");
}

}  // namespace

void add_grouped_gemm_strides(Registry& registry) {
  registry.add(
      {"grouped_gemm.strides",
       "Proves that strides are honoured: the bits do not depend on gaps, gaps stay as they "
       "are, and positions beyond 2^31 elements are reached.",
       judged_clauses({"GROUPED_GEMM-8"}),
       {product_parameter(),
        {"kind", {"gaps", "expert_gaps", "transposed", "far"}, 0, 0, "what is not dense"},
        {"operands", {"bf16", "fp32"}, 0, 0, "dtype of both operands"},
        {"seed", {}, 0, std::int64_t{1} << 62, "of the random numbers"}},
       select_strides,
       run_strides,
       [](const Values& values) {
         const bool none =
             value_of(values, "product") == "wgrad" && value_of(values, "kind") == "transposed";
         return std::string(none ? "wgrad has no W to transpose" : "");
       }});
}

}  // namespace dropless::conformance
