// SPDX-License-Identifier: Apache-2.0
// MXFP8 codes back to values: exact in fp32 but for overflow, then rounded to bf16 where that is
// asked for. MXFP8-5 to 8.
#include "optimized/cpu/gemm_operand.h"
#include "optimized/cpu/operations.h"
#include "optimized/cpu/values.h"

namespace dropless::cpu {
namespace {

constexpr Index most_values = 16384;  // of one step, in fp32

}  // namespace

void dequantize(Call& call, const dropless_dequantize_args& args) {
  const Tensor given = tensor(args.codes, "codes", code_dtypes, {any, any});
  const Index rows = given.shape[0], columns = given.shape[1];
  const Zones zones = read_zones(args.offsets, args.counts, rows);
  refuse_if(
      args.direction != DROPLESS_BLOCKS_ROW_WISE && args.direction != DROPLESS_BLOCKS_COLUMN_WISE,
      "direction: unknown");
  dropless_operand operand = {};
  operand.struct_size = sizeof operand;
  operand.struct_version = DROPLESS_STRUCT_VERSION;
  operand.values = args.codes;
  operand.scales = args.scales;
  operand.scale_layout = args.scale_layout;
  const GemmOperand source = GemmOperand::rows(
      &operand, "codes", args.direction == DROPLESS_BLOCKS_COLUMN_WISE, rows, columns, zones);
  const Tensor y = tensor(args.y, "y", floats, {rows, columns});

  // Along the memory where scales allow it: column-wise ones are shared by 32 rows.
  const Index step = args.direction == DROPLESS_BLOCKS_ROW_WISE ? 1 : DROPLESS_BLOCK_SIZE;
  const Index piece = most_values / step;
  const Index grain = ceil_div(rows_per_task(columns * y.element), step) * step;
  for (Index g = 0; g < zones.groups(); ++g) {
    const Index first = zones.first(g), real = zones.real(g) - first;
    parallel_ranges(call.threads(), zones.end(g) - first, grain, [&](Index begin, Index end) {
      float values[most_values];
      for (Index row = begin; row < end; row += step) {
        const Index count = std::min(step, end - row);
        const Index real_count = std::clamp<Index>(real - row, 0, count);
        for (Index column = 0; column < columns; column += piece) {
          const Index n = std::min(piece, columns - column);
          source.load(g, row, column, real_count, n, values, piece);
          std::fill(values + real_count * piece, values + count * piece, 0.0F);
          with_simd([&]() DROPLESS_INLINE_LAMBDA {
            for (Index i = 0; i < count; ++i) {
              store_run(values + i * piece, n, y.at(first + row + i, column), y.dtype,
                        y.inner_stride());
            }
          });
        }
      }
    });
  }
  call.ran_simd();
}

}  // namespace dropless::cpu
