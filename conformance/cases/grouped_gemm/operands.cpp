// SPDX-License-Identifier: Apache-2.0
// Operands, plain or MXFP8, and the buffers of a grouped GEMM call.
#include "conformance/cases/grouped_gemm/operands.h"

#include <algorithm>

#include "reference/mxfp8.h"
#include "reference/mxfp8_layout.h"

namespace dropless::conformance {

Blocks operand_blocks(const GemmProblem& problem, bool left) {
  Blocks blocks;
  const bool weights = !left && problem.by_rows();
  // Blocks run along the contraction (MXFP8-1): rows for wgrad, columns of dy, and the rows of W in
  // dgrad.
  if (problem.product == Product::wgrad || (problem.product == Product::dgrad && weights)) {
    blocks.direction = DROPLESS_BLOCKS_COLUMN_WISE;
  }
  blocks.rows = left ? problem.zones.length : problem.right_rows();
  blocks.columns = left ? problem.left_columns() : problem.in;
  blocks.offsets =
      weights ? reference::weight_offsets(problem.experts, problem.out) : problem.zones.offsets;
  if (!weights) blocks.counts = problem.zones.counts;
  return blocks;
}

dropless_dtype operand_format(const GemmProblem& problem, bool left) {
  return left && problem.operands == "e5m2" ? DROPLESS_E5M2 : DROPLESS_E4M3;
}

void for_each_scale(const Blocks& blocks, int scale_layout,
                    const std::function<void(Index, Index, Index)>& visit) {
  const reference::ScaleLayout layout(blocks.direction, scale_layout, blocks.rows, blocks.columns,
                                      blocks.groups());
  const bool row_wise = blocks.direction == DROPLESS_BLOCKS_ROW_WISE;
  const Index row_step = row_wise ? 1 : reference::kBlock;
  const Index column_step = row_wise ? reference::kBlock : 1;
  for (const reference::ScaleGroup& group : layout.groups()) {
    for (Index row = group.zone.first; row < group.zone.real_end; row += row_step) {
      for (Index column = 0; column < blocks.columns; column += column_step) {
        const Index along = row_wise ? column : row - group.zone.first;
        visit(layout.position(group, row, column), along / reference::kBlock,
              row_wise ? row : column);
      }
    }
  }
}

Index scale_bytes(const Blocks& blocks, int scale_layout) {
  return reference::scale_tensor_bytes(blocks.direction, scale_layout, blocks.rows, blocks.columns,
                                       blocks.groups());
}

namespace {

std::string label_of(const GemmProblem& problem, bool left) {
  if (left) return problem.product == Product::fprop ? "x" : "dy";
  return problem.by_rows() ? "w" : "x";
}

Shape scale_shape(const GemmProblem& problem, const Blocks& blocks, bool left, Index bytes) {
  if (problem.scale_layout == DROPLESS_SCALES_PACKED) return {bytes};
  const bool row_wise = blocks.direction == DROPLESS_BLOCKS_ROW_WISE;
  const Index wide = (blocks.columns + reference::kBlock - 1) / reference::kBlock;
  if (left || !problem.by_rows()) {
    const Index width = row_wise ? wide : blocks.columns;
    return {width == 0 ? 0 : bytes / width, width};
  }
  const Index high = (problem.out + reference::kBlock - 1) / reference::kBlock;
  return row_wise ? Shape{problem.experts, problem.out, wide}
                  : Shape{problem.experts, high, problem.in};
}

GemmOperand quantised(CaseRun& run, const GemmProblem& problem, bool left) {
  const Blocks blocks = operand_blocks(problem, left);
  reference::QuantizeSettings settings;
  settings.row_format = settings.column_format = operand_format(problem, left);
  settings.scale_layout = problem.scale_layout;
  auto result = reference::quantize(settings, run.profile(), blocks.rows, blocks.columns,
                                    left ? problem.left : problem.right, blocks.groups());
  const bool row_wise = blocks.direction == DROPLESS_BLOCKS_ROW_WISE;
  return coded_operand(run, problem, left,
                       std::move(row_wise ? result.row_codes : result.column_codes),
                       std::move(row_wise ? result.row_scales : result.column_scales));
}

GemmOperand make_operand(CaseRun& run, const GemmProblem& problem, bool left) {
  if (problem.quantised()) return quantised(run, problem, left);
  GemmOperand out;
  out.values = left ? problem.left : problem.right;
  out.operand.struct_size = sizeof out.operand;
  out.operand.struct_version = DROPLESS_STRUCT_VERSION;
  out.memory = &run.buffers().input(label_of(problem, left), plain_dtype(problem.operands),
                                    left ? problem.left_shape() : problem.right_shape(), out.values,
                                    problem.layout);
  out.operand.values = out.memory->tensor();
  return out;
}

}  // namespace

GemmOperand coded_operand(CaseRun& run, const GemmProblem& problem, bool left,
                          std::vector<std::uint8_t> codes, std::vector<std::uint8_t> scales) {
  const Blocks blocks = operand_blocks(problem, left);
  const dropless_dtype format = operand_format(problem, left);
  const std::string label = label_of(problem, left);
  GemmOperand out;
  out.values = reference::dequantize(blocks.direction, problem.scale_layout, format, blocks.rows,
                                     blocks.columns, codes, scales, blocks.groups());
  // Nobody may look at what follows (GROUPED_GEMM-2a, 7a).
  if (left || !problem.by_rows()) {
    const auto kinds = problem.zones.kinds();
    for (std::size_t row = 0; row < kinds.size(); ++row) {
      if (kinds[row] == reference::RowKind::real) continue;
      std::fill_n(codes.begin() + static_cast<Index>(row) * blocks.columns, blocks.columns,
                  problem.stray_code);
    }
  }
  Random random = run.random("stray scales of " + label);
  std::vector<std::uint8_t> stray(scales.size(), static_cast<std::uint8_t>(problem.stray_scale));
  if (problem.stray_scale < 0) {
    for (std::uint8_t& byte : stray) byte = static_cast<std::uint8_t>(random.below(256));
  }
  for_each_scale(blocks, problem.scale_layout, [&](Index position, Index, Index) {
    const std::uint8_t byte = scales[static_cast<std::size_t>(position)];
    stray[static_cast<std::size_t>(position)] = byte;
    out.scales.push_back(byte);
  });
  Buffers& buffers = run.buffers();
  const Shape shape = left ? problem.left_shape() : problem.right_shape();
  out.operand.struct_size = sizeof out.operand;
  out.operand.struct_version = DROPLESS_STRUCT_VERSION;
  out.operand.scale_layout = problem.scale_layout;
  out.operand.values = buffers.input(label, format, shape, codes, problem.layout).tensor();
  const Index bytes = static_cast<Index>(stray.size());
  out.operand.scales = buffers
                           .input(label + " scales", DROPLESS_E8M0,
                                  scale_shape(problem, blocks, left, bytes), stray, problem.layout)
                           .tensor();
  return out;
}

GemmCall gemm_call(CaseRun& run, const GemmProblem& problem, GemmOperand left, GemmOperand right) {
  Buffers& buffers = run.buffers();
  const RowZones& zones = problem.zones;
  GemmCall call{};
  call.product = problem.product;
  call.left = std::move(left), call.right = std::move(right);
  call.offsets = &buffers.input("offsets", DROPLESS_I64, {problem.experts + 1}, zones.offsets);
  if (zones.counted) {
    call.counts = &buffers.input("counts", DROPLESS_I64, {problem.experts}, zones.counts);
  }
  const char* output = problem.by_rows() ? (problem.product == Product::fprop ? "y" : "dx") : "dw";
  if (problem.in_place) {
    call.output =
        &buffers.in_out(output, problem.output, problem.output_shape(), problem.c, problem.layout);
    call.c = call.output;
  } else {
    call.output = &buffers.output(output, problem.output, problem.output_shape(), problem.layout);
    if (!problem.c.empty()) {
      call.c =
          &buffers.input("c", problem.c_dtype, problem.output_shape(), problem.c, problem.layout);
    }
  }
  if (!problem.bias.empty()) {
    call.bias =
        &buffers.input("bias", problem.bias_dtype, {problem.experts, problem.output_columns()},
                       problem.bias, problem.layout);
  }
  const auto common = [&](auto& args) {
    args.alpha = problem.alpha;
    args.offsets = call.offsets->tensor();
    args.counts = call.counts == nullptr ? nullptr : call.counts->tensor();
  };
  call.fprop = make_args<dropless_gemm_fprop_args>();
  call.dgrad = make_args<dropless_gemm_dgrad_args>();
  call.wgrad = make_args<dropless_gemm_wgrad_args>();
  common(call.fprop), common(call.dgrad), common(call.wgrad);
  call.fprop.bias = call.bias == nullptr ? nullptr : call.bias->tensor();
  call.wgrad.beta = problem.beta;
  call.wgrad.c = call.c == nullptr ? nullptr : call.c->tensor();
  call.fprop.y = call.dgrad.dx = call.wgrad.dw = call.output->tensor();
  return call;
}

GemmCall gemm_call(CaseRun& run, const GemmProblem& problem) {
  GemmOperand left = make_operand(run, problem, true);
  return gemm_call(run, problem, std::move(left), make_operand(run, problem, false));
}

void perform(CaseRun& run, GemmCall& call, std::string_view clause) {
  with_entry(run, call, [&](std::string_view operation, auto entry, auto& args) {
    run.perform(operation, entry, args, clause);
  });
}

}  // namespace dropless::conformance
