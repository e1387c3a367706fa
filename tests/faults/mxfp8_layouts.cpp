// SPDX-License-Identifier: Apache-2.0
// Faults of blocks, groups, padding and scale layouts.
#include <algorithm>
#include <cmath>

#include "tests/faults/quantisers.h"
#include "tests/faults/refusals.h"

namespace dropless::faults {
namespace {

std::size_t at(Index i) {
  return static_cast<std::size_t>(i);
}

// Moves every byte of packed scales from its right place to place(block coordinates); bytes that
// land nowhere are lost.
struct PackedPlace {
  Index base, outer, block, blocks;  // group base, row or column in the group, block
};
template <class Place>
void place_packed(Planted& planted, Place place) {
  planted.after<&Table::quantize>([place](auto& a) {
    if (a.scale_layout != DROPLESS_SCALES_PACKED) return;
    const Index rows = view(a.x).shape(0), columns = view(a.x).shape(1);
    for (const Direction& d : directions_of(a)) {
      const std::vector<Index> right = integers_of(d.scales);
      std::vector<Index> placed(right.size(), 0);
      const bool row_wise = d.direction == DROPLESS_BLOCKS_ROW_WISE;
      Index base = 0;
      for (const Zone& zone : zones_of(a.offsets, a.counts, rows)) {
        const Index size = zone.end - zone.first;
        if (size == 0 || columns == 0) continue;
        const Index outers = row_wise ? size : columns;
        const Index blocks = ((row_wise ? columns : size) + 31) / 32;
        for (Index outer = 0; outer < outers; ++outer) {
          for (Index block = 0; block < blocks; ++block) {
            const Index from = base + reference::packed_offset(outer, block, blocks);
            const Index to = place(PackedPlace{base, outer, block, blocks});
            if (to >= 0 && to < static_cast<Index>(placed.size())) placed[at(to)] = right[at(from)];
          }
        }
        base += reference::packed_bytes(outers, blocks);
      }
      each_integer(d.scales, [&](Index byte, Index i) { return i < base ? placed[at(i)] : byte; });
    }
  });
}

Index tile_offset(Index outer, Index block, Index tiles_per_row) {
  return 512 * (outer / 128 * tiles_per_row + block / 4) + outer % 32 * 16 + outer % 128 / 32 * 4 +
         block % 4;
}

void add_blocks(std::vector<Fault>& faults) {
  faults.push_back({.name = "mxfp8.blocks_over_the_flat_tensor",
                    .provenance = "mase 321",
                    .symptom = "the tail of one row shares a scale with the next row",
                    .trigger = "a row length that is no multiple of 32",
                    .clauses = {"MXFP8-1a"},
                    .plant = [](Planted& planted) {
                      planted.after<&Table::quantize>([](auto& a) {
                        if (a.row_codes == nullptr || a.square_tiles != 0) return;
                        const Direction rows = directions_of(a).front();
                        const std::vector<Block> blocks = blocks_of(a, rows);
                        for (std::size_t i = 1; i < blocks.size(); ++i) {
                          const Block& tail = blocks[i - 1];
                          if (tail.x.size() == 32) continue;
                          // The short block is filled up with the first elements of the next row.
                          double amax = tail.amax;
                          for (std::size_t j = 0; j < blocks[i].x.size() && tail.x.size() + j < 32;
                               ++j) {
                            amax = std::max(amax, std::fabs(blocks[i].x[j]));
                          }
                          const std::uint8_t byte =
                              reference::scale_byte(amax, tail.format, DROPLESS_SCALE_RCEIL);
                          view(rows.scales).store_integer_flat(byte, tail.scale_position);
                          for (std::size_t j = 0; j < tail.x.size(); ++j) {
                            view(rows.codes)
                                .store_integer_flat(reference::encode(tail.x[j], byte, tail.format),
                                                    tail.positions[j]);
                          }
                        }
                      });
                    }});
  faults.push_back(
      {.name = "mxfp8.columns_cross_groups",
       .provenance = "torchao 3603",
       .symptom = "the total is padded, not each group",
       .trigger = "a group whose rows are no multiple of 32",
       .clauses = {"MXFP8-1b", "MXFP8-3c", "MXFP8-6b"},
       .plant = [](Planted& planted) {
         planted.around<&Table::quantize>([](const auto& next, auto& a) -> dropless_status {
           const dropless_status status = next(a);
           const bool grouped = a.offsets != nullptr && a.column_codes != nullptr &&
                                a.scale_layout == DROPLESS_SCALES_LINEAR;
           if (status != DROPLESS_OK || !grouped || a.square_tiles != 0) {
             return status;
           }
           const std::vector<Index> offsets = integers_of(a.offsets);
           std::vector<Index> whole = {0, offsets.back()};
           dropless_tensor one_group = *a.offsets;
           one_group.data = whole.data();
           one_group.shape[0] = 2;
           one_group.strides[0] = 1;
           Copy codes(a.column_codes), scales(a.column_scales);
           dropless_quantize_args b = a;
           b.offsets = &one_group;
           b.counts = nullptr;
           b.row_codes = b.row_scales = nullptr;
           b.column_codes = codes.tensor();
           b.column_scales = scales.tensor();
           if (next(b) != DROPLESS_OK) return status;
           // Real rows and their scales as if the groups were one.
           const Index columns = view(a.x).shape(1);
           for (const Zone& zone : zones_of(a.offsets, a.counts, view(a.x).shape(0))) {
             for (Index row = zone.first; row < zone.real_end; ++row) {
               for (Index c = 0; c < columns; ++c) {
                 view(a.column_codes).store_integer(codes.elements().load_integer(row, c), row, c);
                 view(a.column_scales)
                     .store_integer_flat(scales.elements().load_integer(row / 32, c),
                                         scale_position(a, DROPLESS_BLOCKS_COLUMN_WISE, row, c));
               }
             }
           }
           return status;
         });
       }});
  faults.push_back({.name = "mxfp8.scale_of_the_next_row",
                    .provenance = "numerics: scale taken from next row; vllm 53345",
                    .symptom = "every row has the scales of its neighbour",
                    .trigger = "neighbouring rows of different size",
                    .clauses = {"MXFP8-2", "MXFP8-1a"},
                    .plant = [](Planted& planted) {
                      planted.after<&Table::quantize>([](auto& a) {
                        if (a.row_codes == nullptr || a.scale_layout != DROPLESS_SCALES_LINEAR) {
                          return;
                        }
                        for (const Zone& zone : zones_of(a.offsets, a.counts, view(a.x).shape(0))) {
                          for (Index row = zone.first; row + 1 < zone.real_end; ++row) {
                            for (Index c = 0; c < view(a.row_scales).shape(1); ++c) {
                              view(a.row_scales)
                                  .store_integer(view(a.row_scales).load_integer(row + 1, c), row,
                                                 c);
                            }
                          }
                        }
                      });
                    }});
  faults.push_back({.name = "mxfp8.one_scale_doubled_per_row",
                    .provenance = "numerics: one block scale x2 per row",
                    .symptom = "one block of each row is twice too large",
                    .trigger = "always",
                    .clauses = {"MXFP8-2", "MXFP8-6b"},
                    .plant = [](Planted& planted) {
                      planted.after<&Table::quantize>([](auto& a) {
                        for (const Direction& d : directions_of(a)) {
                          for (const Block& b : blocks_of(a, d)) {
                            if (b.positions.front() % 7 != 0 || b.byte >= 254) continue;
                            view(d.scales).store_integer_flat(b.byte + 1, b.scale_position);
                          }
                        }
                      });
                    }});
  faults.push_back({.name = "mxfp8.square_tiles_ignored",
                    .provenance = "flashinfer 2889: settings that never reach the kernel",
                    .symptom = "the scale is that of the block, not of the 32 x 32 tile",
                    .trigger = "square tiles",
                    .clauses = {"MXFP8-6c"},
                    .plant = [](Planted& planted) {
                      planted.before<&Table::quantize>([](auto& a) { a.square_tiles = 0; });
                    }});
}

void add_groups(std::vector<Fault>& faults) {
  faults.push_back({.name = "mxfp8.padding_enters_the_maximum",
                    .provenance = "sglang 26133",
                    .symptom = "real rows change because of padding rows",
                    .trigger = "groups with padding rows",
                    .clauses = {"MXFP8-6a"},
                    .plant = [](Planted& planted) {
                      planted.before<&Table::quantize>([](auto& a) { a.counts = nullptr; });
                    }});
  faults.push_back(
      {.name = "mxfp8.padding_codes_unwritten",
       .provenance = "Primus-Turbo 401",
       .symptom = "padding rows of the codes hold what the buffer held",
       .trigger = "groups with padding rows",
       .clauses = {"MXFP8-6a"},
       .plant = [](Planted& planted) {
         planted.around<&Table::quantize>([](const auto& next, auto& a) {
           Copy rows(a.row_codes), columns(a.column_codes);
           const dropless_status status = next(a);
           if (status != DROPLESS_OK) return status;
           for (const Zone& zone : zones_of(a.offsets, a.counts, view(a.x).shape(0))) {
             for (Index row = zone.real_end; row < zone.end; ++row) {
               for (Index c = 0; c < view(a.x).shape(1); ++c) {
                 if (a.row_codes != nullptr) {
                   view(a.row_codes).store_integer(rows.elements().load_integer(row, c), row, c);
                 }
                 if (a.column_codes != nullptr) {
                   view(a.column_codes)
                       .store_integer(columns.elements().load_integer(row, c), row, c);
                 }
               }
             }
           }
           return status;
         });
       }});
  faults.push_back({.name = "mxfp8.padding_scales_one",
                    .provenance = "aiter 2900: 1.0 for the neutral scale",
                    .symptom = "scale bytes of padding rows are 127",
                    .trigger = "groups with padding rows",
                    .clauses = {"MXFP8-8"},
                    .plant = [](Planted& planted) {
                      planted.after<&Table::quantize>([](auto& a) {
                        if (a.row_codes == nullptr) return;
                        const Index columns = view(a.x).shape(1);
                        for (const Zone& zone : zones_of(a.offsets, a.counts, view(a.x).shape(0))) {
                          for (Index row = zone.real_end; row < zone.end; ++row) {
                            for (Index c = 0; c < columns; c += 32) {
                              view(a.row_scales)
                                  .store_integer_flat(
                                      127, scale_position(a, DROPLESS_BLOCKS_ROW_WISE, row, c));
                            }
                          }
                        }
                      });
                    }});
  faults.push_back({.name = "mxfp8.rows_beyond_the_end_cleared",
                    .provenance = "operator O17: undeclared tail rule (pytorch 193633)",
                    .symptom = "codes beyond the last group are overwritten",
                    .trigger = "a buffer longer than the rows in use",
                    .clauses = {"MXFP8-8"},
                    .plant = [](Planted& planted) {
                      planted.after<&Table::quantize>([](auto& a) {
                        if (a.offsets == nullptr) return;
                        const Index end = integers_of(a.offsets).back();
                        for (const Direction& d : directions_of(a)) {
                          each_integer(d.codes, [&](Index code, Index i) {
                            return i >= end * view(a.x).shape(1) ? 0 : code;
                          });
                        }
                      });
                    }});
  faults.push_back(
      {.name = "mxfp8.column_scales_from_floor_of_rows",
       .provenance = "torchao 4627",
       .symptom = "scales of one group overwrite another's",
       .trigger = "groups whose rows are no multiple of 32",
       .clauses = {"MXFP8-6b"},
       .plant = [](Planted& planted) {
         planted.after<&Table::quantize>([](auto& a) {
           const bool linear = a.scale_layout == DROPLESS_SCALES_LINEAR;
           if (a.column_codes == nullptr || !linear) return;
           const Index columns = view(a.x).shape(1);
           const std::vector<Index> right = integers_of(a.column_scales);
           for (const Zone& zone : zones_of(a.offsets, a.counts, view(a.x).shape(0))) {
             for (Index first = zone.first; first < zone.end; first += 32) {
               const Index row_of_scales = zone.first / 32 + (first - zone.first) / 32;
               for (Index c = 0; c < columns; ++c) {
                 const Index from = scale_position(a, DROPLESS_BLOCKS_COLUMN_WISE, first, c);
                 view(a.column_scales).store_integer(right[at(from)], row_of_scales, c);
               }
             }
           }
         });
       }});
}

void add_packed(std::vector<Fault>& faults) {
  faults.push_back({.name = "mxfp8.packed_stride_of_valid_blocks",
                    .provenance = "aiter 2900; flashinfer 2025",
                    .symptom = "scales beyond row 128 are displaced",
                    .trigger = "packed scales and a number of blocks that is no multiple of 4",
                    .clauses = {"MXFP8-7a"},
                    .plant = [](Planted& planted) {
                      place_packed(planted, [](const PackedPlace& p) {
                        // A row of tiles takes 128 bytes for each valid block.
                        return p.base + p.outer / 128 * 128 * p.blocks +
                               tile_offset(p.outer % 128, p.block, 1);
                      });
                    }});
  faults.push_back(
      {.name = "mxfp8.packed_over_the_concatenation",
       .provenance = "Transformer Engine 2924",
       .symptom = "scales of later experts are wrong",
       .trigger = "packed scales and rows per expert that are no multiple of 128",
       .clauses = {"MXFP8-7a"},
       .plant = [](Planted& planted) {
         planted.around<&Table::quantize>([](const auto& next, auto& a) {
           const dropless_status status = next(a);
           const bool packed = a.scale_layout == DROPLESS_SCALES_PACKED;
           if (status != DROPLESS_OK || !packed || a.offsets == nullptr || a.row_codes == nullptr) {
             return status;
           }
           const Index columns = view(a.x).shape(1), blocks = (columns + 31) / 32;
           const std::vector<Index> right = integers_of(a.row_scales);
           std::vector<Index> placed = right;
           for (const Zone& zone : zones_of(a.offsets, a.counts, view(a.x).shape(0))) {
             for (Index row = zone.first; row < zone.end; ++row) {
               for (Index c = 0; c < blocks; ++c) {
                 const Index from = scale_position(a, DROPLESS_BLOCKS_ROW_WISE, row, c * 32);
                 const Index to = tile_offset(row, c, (blocks + 3) / 4);
                 if (to < static_cast<Index>(placed.size())) {
                   placed[at(to)] = right[at(from)];
                 }
               }
             }
           }
           each_integer(a.row_scales, [&](Index, Index i) { return placed[at(i)]; });
           return status;
         });
       }});
  faults.push_back({.name = "mxfp8.packed_rows_of_tile_swapped",
                    .provenance = "operator O3: swapped index spaces (applied-ai 33)",
                    .symptom = "rows of a tile are stored in plain order",
                    .trigger = "packed scales and more than 32 rows",
                    .clauses = {"MXFP8-7a"},
                    .plant = [](Planted& planted) {
                      place_packed(planted, [](const PackedPlace& p) {
                        const Index tile = p.outer / 128 * ((p.blocks + 3) / 4) + p.block / 4;
                        return p.base + 512 * tile + p.outer % 128 * 4 + p.block % 4;
                      });
                    }});
  faults.push_back(
      {.name = "mxfp8.packed_padding_unwritten",
       .provenance = "Transformer Engine 3070, 1945",
       .symptom = "padding bytes of the tiles hold what the buffer held",
       .trigger = "packed scales that do not fill their tiles",
       .clauses = {"MXFP8-7b"},
       .plant = [](Planted& planted) {
         planted.around<&Table::quantize>([](const auto& next, auto& a) {
           Copy rows(a.row_scales), columns(a.column_scales);
           const dropless_status status = next(a);
           if (status != DROPLESS_OK || a.scale_layout != DROPLESS_SCALES_PACKED) {
             return status;
           }
           for (const Direction& d : directions_of(a)) {
             std::vector<char> used(at(view(d.scales).size()), 0);
             for (const Zone& zone : zones_of(a.offsets, nullptr, view(a.x).shape(0))) {
               for (Index row = zone.first; row < zone.end; ++row) {
                 for (Index c = 0; c < view(a.x).shape(1); ++c) {
                   used[at(scale_position(a, d.direction, row, c))] = 1;
                 }
               }
             }
             const Copy& before = d.direction == DROPLESS_BLOCKS_ROW_WISE ? rows : columns;
             each_integer(d.scales, [&](Index byte, Index i) {
               return used[at(i)] != 0 ? byte : before.elements().load_integer_flat(i);
             });
           }
           return status;
         });
       }});
  faults.push_back({.name = "mxfp8.packed_padding_is_one",
                    .provenance = "aiter 2900",
                    .symptom = "padding bytes of the tiles are 127",
                    .trigger = "packed scales that do not fill their tiles",
                    .clauses = {"MXFP8-7b"},
                    .plant = [](Planted& planted) {
                      planted.behave_as([](dropless_profile& p) { p.scale_padding_byte = 127; });
                    }});
  faults.push_back({.name = "mxfp8.strides_ignored",
                    .provenance = "flashinfer 3103; pytorch 159620",
                    .symptom = "rows with gaps are read as if they were dense",
                    .trigger = "rows with gaps",
                    .clauses = {"MXFP8-3a", "MXFP8-1b", "MXFP8-3c", "MXFP8-1a"},
                    .plant = [](Planted& planted) {
                      planted.around<&Table::quantize>([](const auto& next, auto& a) {
                        if (!is_readable(a.x)) return next(a);
                        const dropless_tensor dense = without_strides(*a.x);
                        a.x = &dense;
                        return next(a);
                      });
                    }});
  faults.push_back({.name = "mxfp8.refusals_swallowed",
                    .provenance = "DeepGEMM 403; Transformer Engine 3114",
                    .symptom = "shapes and formats that do not fit are accepted",
                    .trigger = "an illegal request",
                    .clauses = {"GENERAL-3"},
                    .plant = [](Planted& planted) {
                      swallow_refusals<&Table::quantize>(planted);
                      swallow_refusals<&Table::dequantize>(planted);
                    }});
  faults.push_back({.name = "mxfp8.no_rows_refused",
                    .provenance = "pytorch 192497; Transformer Engine 2779",
                    .symptom = "a matrix without elements is rejected",
                    .trigger = "no rows",
                    .clauses = {"GENERAL-4"},
                    .plant = [](Planted& planted) {
                      refuse_empty<&Table::quantize>(planted, [](auto& a) { return a.x; });
                    }});
}

}  // namespace

void add_mxfp8_layouts(std::vector<Fault>& faults) {
  add_blocks(faults);
  add_groups(faults);
  add_packed(faults);
}

}  // namespace dropless::faults
