// SPDX-License-Identifier: Apache-2.0
// MXFP8 operands of a grouped GEMM, made from values or from codes.
#pragma once

#include <functional>
#include <vector>

#include "conformance/cases/grouped_gemm/setup.h"

namespace dropless::conformance {

// An operand seen as a matrix in blocks: which way they run, and the groups of rows that blocks and
// packed scales respect.
struct Blocks {
  int direction = DROPLESS_BLOCKS_ROW_WISE;
  Index rows = 0, columns = 0;
  std::vector<Index> offsets, counts;

  [[nodiscard]] reference::Groups groups() const { return {offsets, counts}; }
};
Blocks operand_blocks(const GemmProblem& problem, bool left);
dropless_dtype operand_format(const GemmProblem& problem, bool left);

// Every scale of a real element once: its position in the scale tensor, the index of its block
// along the contraction, and its row (column for column-wise blocks).
void for_each_scale(const Blocks& blocks, int scale_layout,
                    const std::function<void(Index position, Index block, Index outer)>& visit);
Index scale_bytes(const Blocks& blocks, int scale_layout);

// Codes [rows,columns] and scales in the problem's layout; what no real element needs is replaced
// by the problem's stray bytes.
GemmOperand coded_operand(CaseRun& run, const GemmProblem& problem, bool left,
                          std::vector<std::uint8_t> codes, std::vector<std::uint8_t> scales);

}  // namespace dropless::conformance
