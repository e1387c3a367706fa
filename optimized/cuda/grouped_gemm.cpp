// SPDX-License-Identifier: Apache-2.0
// Grouped GEMM: fprop, dgrad and wgrad over zones of rows whose sizes never leave the device.
// GROUPED_GEMM-1 to 9. MXFP8 operands become bf16 first; groups with values that bf16 does not hold
// are computed from the codes in fp32 instead (GROUPED_GEMM-7c).
#include "optimized/cuda/grouped_gemm_mxfp8.h"
#include "optimized/cuda/operations.h"

namespace dropless::cuda {
namespace {

constexpr Dtypes operand_dtypes = {DROPLESS_FP32, DROPLESS_BF16, DROPLESS_E4M3, DROPLESS_E5M2};

bool has_codes(dropless_dtype dtype) {
  return dtype == DROPLESS_E4M3 || dtype == DROPLESS_E5M2;
}

Index blocks_of(Index extent) {
  return (extent + DROPLESS_BLOCK_SIZE - 1) / DROPLESS_BLOCK_SIZE;
}

struct Values {
  dropless_operand given;
  Tensor tensor;
};

Values read_values(const dropless_operand* given, const char* name,
                   std::initializer_list<Index> shape) {
  Values values{read_struct(given, name), {}};
  values.tensor = tensor(values.given.values, name, operand_dtypes, shape);
  if (has_codes(values.tensor.dtype) != (values.given.scales != nullptr)) {
    refuse(std::string(name) + (values.given.scales != nullptr ? ": scales on plain values"
                                                               : ": codes without scales"));
  }
  if (values.given.scale_layout != DROPLESS_SCALES_LINEAR &&
      values.given.scale_layout != DROPLESS_SCALES_PACKED) {
    refuse(std::string(name) + ": unknown scale layout");
  }
  return values;
}

Index stride(const Tensor& x, int axis) {
  return x.shape[axis] <= 1 ? 1 : x.strides[axis];
}

// The scales of an operand: `along` is the axis of the matrix (0 or 1) that blocks run along.
// Returns how many bytes (packed) or rows (column-wise) were given.
Index read_scales(const Values& values, const char* operand, int along, bool weights,
                  GemmScales& scales) {
  const std::string name = std::string(operand) + " scales";
  const Tensor& x = values.tensor;
  const int matrix = weights ? 1 : 0;  // first axis of a matrix
  const Index rows = x.shape[matrix], columns = x.shape[matrix + 1];
  scales.packed = values.given.scale_layout == DROPLESS_SCALES_PACKED;
  if (scales.packed) {
    const Tensor given = tensor(values.given.scales, name.c_str(), {DROPLESS_E8M0}, {any});
    scales.data = reinterpret_cast<const std::uint8_t*>(given.data);
    scales.element_stride = given.strides[0];
    return given.shape[0];
  }
  const Index first = along == 1 ? rows : blocks_of(rows);
  const Index second = along == 1 ? blocks_of(columns) : columns;
  const Tensor given = weights ? tensor(values.given.scales, name.c_str(), {DROPLESS_E8M0},
                                        {x.shape[0], first, second})
                               : tensor(values.given.scales, name.c_str(), {DROPLESS_E8M0},
                                        {along == 1 ? first : any, second});
  scales.data = reinterpret_cast<const std::uint8_t*>(given.data);
  scales.group_stride = weights ? given.strides[0] : 0;
  scales.outer_stride = given.strides[along == 1 ? matrix : matrix + 1];
  scales.block_stride = given.strides[along == 1 ? matrix + 1 : matrix];
  return given.shape[0];
}

// An operand in the terms of the product, and what must be known about its scales.
struct Read {
  GemmOperand operand;
  Index scales_given = 0;
};

// k_axis: the axis of a matrix (0 or 1) that is contracted.
Read read_operand(const Values& values, const char* name, int k_axis, bool weights) {
  const Tensor& x = values.tensor;
  Read read;
  GemmOperand& operand = read.operand;
  const int matrix = weights ? 1 : 0;
  operand.data = x.data, operand.dtype = x.dtype;
  operand.ragged = weights       ? GemmRagged::none
                   : k_axis == 0 ? GemmRagged::contraction
                                 : GemmRagged::outer;
  operand.k_stride = stride(x, matrix + k_axis);
  operand.outer_stride = stride(x, matrix + 1 - k_axis);
  operand.group_stride = weights ? x.strides[0] : 0;
  if (!weights) {  // zones are found by this stride even in a buffer of one row
    (k_axis == 0 ? operand.k_stride : operand.outer_stride) = x.strides[0];
  }
  if (has_codes(x.dtype)) {
    read.scales_given = read_scales(values, name, k_axis, weights, operand.scales);
  }
  return read;
}

GemmMatrix matrix_of(const Tensor& x) {
  GemmMatrix matrix;
  if (!x.given) return matrix;
  matrix.data = x.data, matrix.dtype = x.dtype;
  matrix.column_stride = stride(x, x.rank - 1);
  matrix.row_stride = x.strides[x.rank - 2];
  matrix.group_stride = x.rank == 3 ? x.strides[0] : 0;
  return matrix;
}

void run_plain(Call& call, const GroupedProduct& product) {
  if (grouped_gemm_hopper_takes(product, call.device())) {
    grouped_gemm_hopper(product, call.device(), call.stream());
    return call.ran("wgmma");
  }
  grouped_gemm_simple(product, call.stream());
  call.ran(product.a.dtype == DROPLESS_BF16 && product.b.dtype == DROPLESS_BF16 ? "mma" : "fma");
}

void run(Call& call, GroupedProduct product, const Read& a, const Read& b) {
  product.refusal = call.refusal_word();
  product.a = a.operand, product.b = b.operand;
  const bool a_codes = has_codes(product.a.dtype), b_codes = has_codes(product.b.dtype);
  if (a_codes) plan_scales(call, product, product.a, product.m, a.scales_given);
  if (b_codes) plan_scales(call, product, product.b, product.n, b.scales_given);
  const bool fp32 = product.a.dtype == DROPLESS_FP32 || product.b.dtype == DROPLESS_FP32;
  if (fp32 || !(a_codes || b_codes)) return run_plain(call, product);

  const Index words = product.zones.groups + 1;
  int* flags = call.scratch<int>(words);
  check(cudaMemsetAsync(flags, 0, static_cast<std::size_t>(words) * sizeof(int), call.stream()),
        "clearing the flags of inexact groups");
  GroupedProduct wide = product;
  if (a_codes) wide.a = upcast(call, product, product.a, product.m, flags);
  if (b_codes) wide.b = upcast(call, product, product.b, product.n, flags);
  product.flags = wide.flags = flags;
  product.wanted_flag = 1, product.needed = flags + product.zones.groups;
  grouped_gemm_simple(product, call.stream());
  run_plain(call, wide);
}

// fprop and dgrad: rows times W, contracted along axis k_axis of a matrix of W.
GroupedProduct row_product(Call& call, const dropless_tensor* offsets,
                           const dropless_tensor* counts, const Tensor& rows, const Tensor& w,
                           int k_axis, double alpha) {
  GroupedProduct product;
  refuse_if(offsets == nullptr, "offsets: null pointer");
  product.zones = read_zones(call, offsets, counts, rows.shape[0], w.shape[0]);
  product.n = w.shape[2 - k_axis], product.k = w.shape[1 + k_axis];
  product.alpha = alpha;
  return product;
}

}  // namespace

void gemm_fprop(Call& call, const dropless_gemm_fprop_args& args) {
  const Values w = read_values(args.w, "w", {any, any, any});
  const Index experts = w.tensor.shape[0], out = w.tensor.shape[1], in = w.tensor.shape[2];
  const Values x = read_values(args.x, "x", {any, in});
  const Tensor bias = optional_tensor(args.bias, "bias", floats, {experts, out});
  const Tensor y = tensor(args.y, "y", floats, {x.tensor.shape[0], out});
  const Read a = read_operand(x, "x", 1, false), b = read_operand(w, "w", 1, true);
  GroupedProduct product =
      row_product(call, args.offsets, args.counts, x.tensor, w.tensor, 1, args.alpha);
  product.out = matrix_of(y);
  if (bias) {
    product.bias = matrix_of(bias);
    product.bias.group_stride = bias.strides[0];
  }
  if (y.size() == 0) return call.ran("nothing");
  run(call, product, a, b);
}

void gemm_dgrad(Call& call, const dropless_gemm_dgrad_args& args) {
  const Values w = read_values(args.w, "w", {any, any, any});
  const Index out = w.tensor.shape[1], in = w.tensor.shape[2];
  const Values dy = read_values(args.dy, "dy", {any, out});
  const Tensor dx = tensor(args.dx, "dx", floats, {dy.tensor.shape[0], in});
  const Read a = read_operand(dy, "dy", 1, false), b = read_operand(w, "w", 0, true);
  GroupedProduct product =
      row_product(call, args.offsets, args.counts, dy.tensor, w.tensor, 0, args.alpha);
  product.out = matrix_of(dx);
  if (dx.size() == 0) return call.ran("nothing");
  run(call, product, a, b);
}

void gemm_wgrad(Call& call, const dropless_gemm_wgrad_args& args) {
  const Tensor dw = tensor(args.dw, "dw", floats, {any, any, any});
  const Index experts = dw.shape[0], out = dw.shape[1], in = dw.shape[2];
  const Values dy = read_values(args.dy, "dy", {any, out});
  const Values x = read_values(args.x, "x", {dy.tensor.shape[0], in});
  refuse_if(args.beta != 0 && args.c == nullptr, "c: missing although beta is not 0");
  refuse_if(args.offsets == nullptr, "offsets: null pointer");
  GroupedProduct product;
  const Read a = read_operand(dy, "dy", 0, false), b = read_operand(x, "x", 0, false);
  if (args.beta != 0) product.c = matrix_of(tensor(args.c, "c", floats, {experts, out, in}));
  product.zones = read_zones(call, args.offsets, args.counts, dy.tensor.shape[0], experts);
  product.m = out, product.n = in;
  product.alpha = args.alpha, product.beta = args.beta;
  product.out = matrix_of(dw);
  product.in_place = product.c.data == product.out.data && product.c.dtype == product.out.dtype;
  if (dw.size() == 0) return call.ran("nothing");
  run(call, product, a, b);
}

}  // namespace dropless::cuda
