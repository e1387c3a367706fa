// SPDX-License-Identifier: Apache-2.0
// Faults of the way back from codes to values.
#include <cmath>
#include <limits>

#include "tests/faults/quantisers.h"
#include "tests/faults/refusals.h"

namespace dropless::faults {
namespace {

std::size_t at(Index i) {
  return static_cast<std::size_t>(i);
}

// y = change(y, code, byte), for every element of a real row.
template <class Change>
void change_values(Planted& planted, Change change) {
  planted.after<&Table::dequantize>([change](auto& a) {
    const TensorView codes = view(a.codes);
    const Index rows = codes.shape(0), columns = codes.shape(1);
    const std::vector<Index> offsets = integers_of(a.offsets), counts = integers_of(a.counts);
    for (const Zone& zone : zones_of(a.offsets, a.counts, rows)) {
      for (Index row = zone.first; row < zone.real_end; ++row) {
        for (Index c = 0; c < columns; ++c) {
          const Index position = reference::scale_position(a.direction, a.scale_layout, rows,
                                                           columns, row, c, {offsets, counts});
          const auto byte = static_cast<std::uint8_t>(view(a.scales).load_integer_flat(position));
          const auto code = static_cast<std::uint8_t>(codes.load_integer(row, c));
          view(a.y).store(change(view(a.y).load(row, c), code, byte), row, c);
        }
      }
    }
  });
}

}  // namespace

void add_mxfp8_dequantize(std::vector<Fault>& faults) {
  faults.push_back({.name = "mxfp8.byte_zero_is_zero",
                    .provenance = "Transformer Engine 3262",
                    .symptom = "blocks with scale byte 0 come back as 0",
                    .trigger = "the byte is shifted into an exponent field",
                    .clauses = {"MXFP8-5", "MXFP8-9b"},
                    .plant = [](Planted& planted) {
                      change_values(planted, [](double y, std::uint8_t, std::uint8_t byte) {
                        return byte == 0 && !std::isnan(y) ? std::copysign(0.0, y) : y;
                      });
                    }});
  faults.push_back({.name = "mxfp8.byte_255_is_infinity",
                    .provenance = "Transformer Engine 3262",
                    .symptom = "blocks with scale byte 255 come back as Inf",
                    .trigger = "the byte is shifted into an exponent field",
                    .clauses = {"MXFP8-5", "MXFP8-9b"},
                    .plant = [](Planted& planted) {
                      change_values(planted, [](double y, std::uint8_t code, std::uint8_t byte) {
                        if (byte != 255 || (code & 0x7F) == 0) return y;
                        const double most = std::numeric_limits<double>::infinity();
                        return (code & 0x80) != 0 ? -most : most;
                      });
                    }});
  faults.push_back({.name = "mxfp8.byte_zero_clamped_on_one_side",
                    .provenance = "torchao 1104",
                    .symptom = "one side uses 2^-126, the other 2^-127",
                    .trigger = "blocks near the bottom of the range",
                    .clauses = {"MXFP8-5", "MXFP8-9b"},
                    .plant = [](Planted& planted) {
                      change_values(planted, [](double y, std::uint8_t, std::uint8_t byte) {
                        return byte == 0 ? 2 * y : y;
                      });
                    }});
  faults.push_back({.name = "mxfp8.small_results_flushed",
                    .provenance = "numerics: flush-to-zero builds",
                    .symptom = "subnormal results become zero",
                    .trigger = "bytes near 0",
                    .clauses = {"MXFP8-5", "MXFP8-9b"},
                    .plant = [](Planted& planted) {
                      change_values(planted, [](double y, std::uint8_t, std::uint8_t) {
                        return std::fabs(y) < 0x1p-126 ? std::copysign(0.0, y) : y;
                      });
                    }});
  faults.push_back({.name = "mxfp8.large_results_clamped",
                    .provenance = "numerics: bytes from 247 on overflow to Inf",
                    .symptom = "a code that stands for more than fp32 holds stays finite",
                    .trigger = "large codes under bytes near 254",
                    .clauses = {"MXFP8-9b", "MXFP8-5"},
                    .plant = [](Planted& planted) {
                      change_values(planted, [](double y, std::uint8_t code, std::uint8_t) {
                        const bool nan_or_infinite_code = (code & 0x7F) >= 0x7C;
                        return std::isinf(y) && !nan_or_infinite_code ? std::copysign(0x1p127, y)
                                                                      : y;
                      });
                    }});
  faults.push_back({.name = "mxfp8.nan_code_is_a_number",
                    .provenance = "operator O11: type reinterpreted, E4M3 with 480 as its largest",
                    .symptom = "the NaN code comes back as a number",
                    .trigger = "a NaN",
                    .clauses = {"MXFP8-9b", "MXFP8-5", "MXFP8-4b"},
                    .plant = [](Planted& planted) {
                      change_values(planted, [](double y, std::uint8_t code, std::uint8_t byte) {
                        const bool nan_code = (code & 0x7F) == 0x7F && byte != 255;
                        return nan_code ? std::ldexp(480.0, byte - 127) : y;
                      });
                    }});
  faults.push_back({.name = "mxfp8.gradients_read_as_e4m3",
                    .provenance = "Transformer Engine 3342: byte 0x7B is 57344 or 352",
                    .symptom = "MoE trains far too slowly, the forward pass is right",
                    .trigger = "E5M2 gradients",
                    .clauses = {"MXFP8-5", "MXFP8-9b", "MXFP8-3c"},
                    .plant = [](Planted& planted) {
                      planted.around<&Table::dequantize>([](const auto& next, auto& a) {
                        if (!is_readable(a.codes)) return next(a);
                        dropless_tensor codes = *a.codes;
                        if (codes.dtype == DROPLESS_E5M2) codes.dtype = DROPLESS_E4M3;
                        a.codes = &codes;
                        return next(a);
                      });
                    }});
  faults.push_back({.name = "mxfp8.packed_reader_sees_padding",
                    .provenance = "triton 10772; vllm 47303; Transformer Engine 3070",
                    .symptom = "NaN when the padding of the scales is dirty",
                    .trigger = "packed scales whose last tile is not full",
                    .clauses = {"MXFP8-7c"},
                    .plant = [](Planted& planted) {
                      planted.after<&Table::dequantize>([](auto& a) {
                        if (a.scale_layout != DROPLESS_SCALES_PACKED) return;
                        const Index columns = view(a.y).shape(1), rows = view(a.y).shape(0);
                        const Index blocks = (columns + 31) / 32;
                        if (a.direction != DROPLESS_BLOCKS_ROW_WISE || blocks % 4 == 0) return;
                        // The last load of a row takes four bytes, whatever is valid of them.
                        const std::vector<Index> offsets = integers_of(a.offsets);
                        for (const Zone& zone : zones_of(a.offsets, a.counts, rows)) {
                          for (Index row = zone.first; row < zone.real_end; ++row) {
                            const Index valid = reference::scale_position(
                                a.direction, a.scale_layout, rows, columns, row, (blocks - 1) * 32,
                                {offsets, {}});
                            const Index beyond = valid + 1;
                            if (view(a.scales).load_integer_flat(beyond) != 255) continue;
                            view(a.y).store(std::nan(""), row, columns - 1);
                          }
                        }
                      });
                    }});
  faults.push_back({.name = "mxfp8.dequantise_reads_padding_rows",
                    .provenance = "Transformer Engine 3484",
                    .symptom = "padding rows come back as what they hold",
                    .trigger = "groups with padding rows",
                    .clauses = {"MXFP8-6a", "MXFP8-5"},
                    .plant = [](Planted& planted) {
                      planted.before<&Table::dequantize>([](auto& a) { a.counts = nullptr; });
                    }});
  faults.push_back({.name = "mxfp8.scales_taken_as_linear",
                    .provenance = "DeepGEMM 403; PaddleFleet 1474",
                    .symptom = "packed scales are read as if they were linear",
                    .trigger = "packed scales",
                    .clauses = {"MXFP8-7c", "MXFP8-7a"},
                    .plant = [](Planted& planted) {
                      planted.after<&Table::dequantize>([](auto& a) {
                        if (a.scale_layout != DROPLESS_SCALES_PACKED) return;
                        if (a.direction != DROPLESS_BLOCKS_ROW_WISE) return;
                        const std::vector<Index> bytes = integers_of(a.scales);
                        const Index rows = view(a.y).shape(0), columns = view(a.y).shape(1);
                        for (const Zone& zone : zones_of(a.offsets, a.counts, rows)) {
                          for (Index row = zone.first; row < zone.real_end; ++row) {
                            for (Index c = 0; c < columns; ++c) {
                              const Index i = row * ((columns + 31) / 32) + c / 32;
                              view(a.y).store(
                                  reference::decode(
                                      static_cast<std::uint8_t>(view(a.codes).load_integer(row, c)),
                                      static_cast<std::uint8_t>(bytes[at(i) % bytes.size()]),
                                      a.codes->dtype),
                                  row, c);
                            }
                          }
                        }
                      });
                    }});
  faults.push_back({.name = "mxfp8.dequantise_clears_the_tail",
                    .provenance = "operator O17: undeclared tail rule (pytorch 193633)",
                    .symptom = "values beyond the last group are overwritten",
                    .trigger = "a buffer longer than the rows in use",
                    .clauses = {"MXFP8-8", "GROUPED_GEMM-4", "PERMUTATION-8"},
                    .plant = [](Planted& planted) {
                      planted.behave_as(
                          [](dropless_profile& p) { p.tail_rows = DROPLESS_TAIL_ZERO; });
                    }});
}

}  // namespace dropless::faults
