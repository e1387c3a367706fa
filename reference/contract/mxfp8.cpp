// SPDX-License-Identifier: Apache-2.0
// quantize and dequantize behind the contract.
#include "reference/mxfp8.h"

#include "reference/checks.h"
#include "reference/contract/call.h"
#include "reference/contract/operations.h"
#include "reference/contract/rows.h"
#include "reference/contract/scales.h"

namespace dropless::reference::contract {
namespace {

void check_choice(int value, const char* name) {
  if (value != 0 && value != 1) {
    throw Refused(std::string(name) + " = " + std::to_string(value) + " is neither 0 nor 1");
  }
}

// One direction of the outputs; both tensors are absent when it is not wanted.
struct Outputs {
  std::optional<TensorView> codes, scales;

  Outputs(const dropless_tensor* codes_argument, const char* codes_name,
          const dropless_tensor* scales_argument, const char* scales_name,
          const ScaleMatrix& matrix) {
    check_pair(codes_argument, codes_name, scales_argument, scales_name);
    codes =
        optional_tensor(codes_argument, codes_name, Element::code, {matrix.rows, matrix.columns});
    if (scales_argument != nullptr) scales = scale_tensor(scales_argument, scales_name, matrix);
  }
  [[nodiscard]] dropless_dtype format() const { return codes ? codes->dtype() : DROPLESS_E4M3; }

  // MXFP8-8: rows beyond the last zone stay untouched.
  void write(const std::vector<std::uint8_t>& code_bytes,
             const std::vector<std::uint8_t>& scale_bytes, const ScaleMatrix& matrix,
             Index end) const {
    if (!codes) return;
    for (Index i = 0; i < end * matrix.columns; ++i)
      codes->store_integer_flat(code_bytes[at(i)], i);
    const Index written = used_scales(matrix, end);
    for (Index i = 0; i < written; ++i) scales->store_integer_flat(scale_bytes[at(i)], i);
  }
};

}  // namespace

void quantize(const dropless_profile& profile, dropless_quantize_args* args) {
  const dropless_quantize_args a = completed(args, "arguments");
  check_choice(a.scale_layout, "scale_layout");
  check_choice(a.square_tiles, "square_tiles");
  const TensorView x = tensor(a.x, "x", Element::real, {kAny, kAny});
  const Index rows = x.shape(0), columns = x.shape(1);
  const CallGroups groups(a.offsets, a.counts, kAny, rows);
  const ScaleMatrix row_wise{DROPLESS_BLOCKS_ROW_WISE, a.scale_layout, rows, columns,
                             groups.groups()};
  const ScaleMatrix column_wise{DROPLESS_BLOCKS_COLUMN_WISE, a.scale_layout, rows, columns,
                                groups.groups()};
  const Outputs row(a.row_codes, "row_codes", a.row_scales, "row_scales", row_wise);
  const Outputs column(a.column_codes, "column_codes", a.column_scales, "column_scales",
                       column_wise);
  if (!row.codes && !column.codes) throw Refused("row_codes and column_codes are both null");

  const QuantizeSettings settings{row.format(), column.format(), a.scale_layout,
                                  a.square_tiles == 1};
  const Quantized q =
      reference::quantize(settings, profile, rows, columns, read_values(x), groups.groups());
  row.write(q.row_codes, q.row_scales, row_wise, groups.end());
  column.write(q.column_codes, q.column_scales, column_wise, groups.end());
}

void dequantize(const dropless_profile& profile, dropless_dequantize_args* args) {
  const dropless_dequantize_args a = completed(args, "arguments");
  check_choice(a.direction, "direction");
  check_choice(a.scale_layout, "scale_layout");
  const TensorView codes = tensor(a.codes, "codes", Element::code, {kAny, kAny});
  const Index rows = codes.shape(0), columns = codes.shape(1);
  const CallGroups groups(a.offsets, a.counts, kAny, rows);
  const ScaleMatrix matrix{a.direction, a.scale_layout, rows, columns, groups.groups()};
  const TensorView scales = scale_tensor(a.scales, "scales", matrix);
  const TensorView y = tensor(a.y, "y", Element::real, {rows, columns});

  const Doubles values =
      reference::dequantize(a.direction, a.scale_layout, codes.dtype(), rows, columns,
                            read_bytes(codes), read_bytes(scales), groups.groups());
  write_rows(y, values, groups.kinds(), profile);
}

}  // namespace dropless::reference::contract
