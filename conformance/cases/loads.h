// SPDX-License-Identifier: Apache-2.0
// Loads: how rows or tokens spread over experts. First-class inputs, with a fixed taxonomy.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "conformance/cases/family.h"
#include "conformance/cases/random.h"

namespace dropless::conformance {

using Index = std::int64_t;

// balanced, zipf, one_hot, one_row_each, empty_first, empty_middle, empty_last, all_empty,
// tile_edge (sizes -1, 0, +1 around 16, 32, 64, 128, 256), alternating (empty, full), ragged.
const std::vector<std::string>& load_names();
// The parameter "load": one of them, or the rows of the first experts as a list, "3.0.17".
Parameter load_parameter(std::string meaning);

// Rows of each expert, [E]; they add up to `rows`, except for one_row_each (E), all_empty (0),
// tile_edge (as the edges demand, never more than rows) and a list (as it says until `rows` are
// used up; what it has no number for gets nothing).
std::vector<Index> rows_per_expert(std::string_view load, Index experts, Index rows,
                                   Random& random);

// K distinct experts for each of T tokens so that the demand follows the load as closely as
// "distinct" allows; ids [T,K] in random slot order. all_empty gives -1 everywhere. missing = share
// of single entries set to -1.
std::vector<Index> ids_for_load(std::string_view load, Index tokens, Index experts, Index top_k,
                                Random& random, double missing = 0);

// Offsets [E+1] of zones rounded up to `alignment`; empty zones stay empty unless one_block.
std::vector<Index> aligned_offsets(const std::vector<Index>& counts, Index alignment,
                                   bool empty_gets_block = false);

}  // namespace dropless::conformance
