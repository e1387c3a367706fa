// SPDX-License-Identifier: Apache-2.0
// MXFP8 quantise in both directions at once, packed scales, zones of 32 experts.
#include <fmt/format.h>

#include "conformance/benchmarks/device/benchmark.h"
#include "conformance/cases/case_run.h"
#include "conformance/cases/loads.h"

namespace dropless::conformance {
namespace {

constexpr Index block = DROPLESS_BLOCK_SIZE, tile_outer = 128, tile_blocks = 4;

Index ceil_div(Index a, Index b) {
  return (a + b - 1) / b;
}

// Bytes of one group's packed scales (MXFP8-7).
Index packed_bytes(Index outer, Index blocks) {
  return ceil_div(outer, tile_outer) * ceil_div(blocks, tile_blocks) * tile_outer * tile_blocks;
}

OperandSet quantize_set(DeviceBench& bench, Index rows, Index columns,
                        const std::vector<Index>& zones) {
  const auto groups = static_cast<Index>(zones.size()) - 1;
  Index row_blocks = 0, column_blocks = 0, row_bytes = 0, column_bytes = 0;
  for (std::size_t g = 1; g < zones.size(); ++g) {
    const Index zone = zones[g] - zones[g - 1];
    row_blocks += zone * ceil_div(columns, block);
    column_blocks += ceil_div(zone, block) * columns;
    row_bytes += packed_bytes(zone, ceil_div(columns, block));
    column_bytes += packed_bytes(columns, ceil_div(zone, block));
  }
  const DeviceTensor x = bench.normal(DROPLESS_BF16, {rows, columns});
  const DeviceTensor offsets = bench.integers({groups + 1}, zones);
  const DeviceTensor row_codes = bench.tensor(DROPLESS_E4M3, {rows, columns});
  const DeviceTensor column_codes = bench.tensor(DROPLESS_E4M3, {rows, columns});
  const DeviceTensor row_scales = bench.tensor(DROPLESS_E8M0, {row_bytes});
  const DeviceTensor column_scales = bench.tensor(DROPLESS_E8M0, {column_bytes});
  OperandSet set;
  set.call = [=, &bench] {
    auto args = make_args<dropless_quantize_args>();
    args.scale_layout = DROPLESS_SCALES_PACKED;
    args.x = x->get(), args.offsets = offsets->get();
    args.row_codes = row_codes->get(), args.row_scales = row_scales->get();
    args.column_codes = column_codes->get(), args.column_scales = column_scales->get();
    bench.call("quantize", bench.table().quantize, args);
  };
  // What pads a packed tile is the profile's choice.
  set.outputs = {{"row_codes", row_codes, row_codes->size()},
                 {"column_codes", column_codes, column_codes->size()},
                 {"row_scales", row_scales, row_blocks},
                 {"column_scales", column_scales, column_blocks}};
  return set;
}

}  // namespace

void add_mxfp8(std::vector<DeviceBenchmark>& all, const dropless_implementation& table,
               const DeviceSizes& sizes) {
  const Index rows = sizes.rows(), columns = sizes.hidden;
  Random random(Random::key_of("bench mxfp8"));
  const auto zones =
      aligned_offsets(rows_per_expert("ragged", sizes.local_experts, rows, random), 1);
  DeviceBenchmark quantize;
  quantize.name = "mxfp8.quantize_row_and_column";
  quantize.what = fmt::format("bf16 [{},{}] to E4M3, packed, {} ragged zones", rows, columns,
                              sizes.local_experts);
  // The peer writes one direction only.
  quantize.request = fmt::format("quantize_row rows={} columns={}", rows, columns);
  quantize.bytes = static_cast<double>(rows * columns) * (2 + 2 + 2.0 / block);
  quantize.mark = {MarkKind::microseconds_at_most, 300};
  if (table.quantize == nullptr) quantize.missing = {"quantize"};
  quantize.make_set = [rows, columns, zones](DeviceBench& bench) {
    return quantize_set(bench, rows, columns, zones);
  };
  all.push_back(quantize);
}

}  // namespace dropless::conformance
