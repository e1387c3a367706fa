// SPDX-License-Identifier: Apache-2.0
// Faults of element codes.
#include <cmath>

#include "tests/faults/quantisers.h"

namespace dropless::faults {
namespace {

double scale_of(std::uint8_t byte) {
  return std::ldexp(1.0, byte - 127);
}

// The next code towards zero where the right code is further away from zero than the value.
std::uint8_t towards_zero(double x, const Block& block, std::uint8_t right) {
  if (!std::isfinite(x) || (right & 0x7F) == 0) return right;
  const double value = std::fabs(decode_bits(block.format, right)) * scale_of(block.byte);
  return value > std::fabs(x) ? static_cast<std::uint8_t>(right - 1) : right;
}

// The code away from zero where the value lies in the middle of two.
std::uint8_t halves_away(double x, const Block& block, std::uint8_t right) {
  if (!std::isfinite(x)) return right;
  const auto up = static_cast<std::uint8_t>(right + 1);
  const double here = std::fabs(decode_bits(block.format, right));
  const double above = std::fabs(decode_bits(block.format, up));
  const double wanted = std::fabs(x) / scale_of(block.byte);
  return std::isfinite(above) && (here + above) / 2 == wanted ? up : right;
}

void add_rounding(std::vector<Fault>& faults) {
  faults.push_back({.name = "mxfp8.codes_truncated",
                    .provenance = "numerics: A codes RZ not RNE; tt-metal 51971",
                    .symptom = "codes are rounded towards zero",
                    .trigger = "always",
                    .clauses = {"MXFP8-3a", "MXFP8-3c"},
                    .plant = [](Planted& planted) { change_codes(planted, towards_zero); }});
  faults.push_back({.name = "mxfp8.halves_rounded_away",
                    .provenance = "tt-metal 51971: midpoints",
                    .symptom = "values in the middle of two codes are not rounded to even",
                    .trigger = "midpoints",
                    .clauses = {"MXFP8-3a", "MXFP8-3c"},
                    .plant = [](Planted& planted) { change_codes(planted, halves_away); }});
  faults.push_back({.name = "mxfp8.small_codes_flushed",
                    .provenance = "tt-metal 51971: subnormal codes",
                    .symptom = "subnormal codes become zero",
                    .trigger = "elements far below the largest of their block",
                    .clauses = {"MXFP8-3a", "MXFP8-1b"},
                    .plant = [](Planted& planted) {
                      change_codes(planted, [](double, const Block& b, std::uint8_t right) {
                        const int mantissa_bits = b.format == DROPLESS_E5M2 ? 2 : 3;
                        const bool subnormal = (right & 0x7F) < 1 << mantissa_bits;
                        return subnormal ? static_cast<std::uint8_t>(right & 0x80) : right;
                      });
                    }});
  faults.push_back({.name = "mxfp8.small_inputs_flushed",
                    .provenance = "numerics: flush-to-zero builds",
                    .symptom = "fp32 subnormals become zero",
                    .trigger = "blocks near the bottom of the fp32 range",
                    .clauses = {"MXFP8-3a", "MXFP8-9a", "MXFP8-3c"},
                    .plant = [](Planted& planted) {
                      change_input(planted, [](double v) {
                        return std::fabs(v) < 0x1p-126 ? std::copysign(0.0, v) : v;
                      });
                    }});
  faults.push_back({.name = "mxfp8.input_rounded_to_bf16_first",
                    .provenance = "torchao 4725: fp32 to bf16 before the conversion",
                    .symptom = "codes are rounded twice",
                    .trigger = "fp32 input",
                    .clauses = {"MXFP8-3a", "MXFP8-2", "MXFP8-3c"},
                    .plant = [](Planted& planted) { change_input(planted, bf16); }});
  faults.push_back({.name = "mxfp8.one_code_off_per_row",
                    .provenance = "numerics: one code +1 ulp per row",
                    .symptom = "one code of each row is one too large",
                    .trigger = "always; invisible to every common tolerance",
                    .clauses = {"MXFP8-3a", "MXFP8-3c"},
                    .plant = [](Planted& planted) {
                      planted.after<&Table::quantize>([](auto& a) {
                        for (const Direction& d : directions_of(a)) {
                          const Index columns = view(d.codes).shape(1);
                          for (const Block& b : blocks_of(a, d)) {
                            for (const Index i : b.positions) {
                              const Index code = view(d.codes).load_integer_flat(i);
                              const bool chosen = i % columns == i / columns % columns;
                              if (!chosen || (code & 0x7F) == 0 || (code & 0x7F) >= 0x7A) continue;
                              view(d.codes).store_integer_flat(code + 1, i);
                            }
                          }
                        }
                      });
                    }});
  faults.push_back({.name = "mxfp8.negative_zero_lost",
                    .provenance = "operator O1: neutral element (numerics: signed zeros survive)",
                    .symptom = "-0 is coded as +0",
                    .trigger = "negative zeros",
                    .clauses = {"MXFP8-3b", "MXFP8-4a", "MXFP8-4c"},
                    .plant = [](Planted& planted) {
                      change_codes(planted, [](double, const Block&, std::uint8_t right) {
                        return right == 0x80 ? std::uint8_t{0} : right;
                      });
                    }});
  faults.push_back(
      {.name = "mxfp8.overflow_becomes_nan",
       .provenance = "torchao 4713: no saturation",
       .symptom = "large elements become NaN",
       .trigger = "the FLOOR rule and elements beyond the largest code",
       .clauses = {"MXFP8-3a", "MXFP8-3c"},
       .plant = [](Planted& planted) {
         planted.declare([](dropless_profile& p) { p.scale_rule = DROPLESS_SCALE_FLOOR; });
         change_codes(planted, [](double x, const Block& b, std::uint8_t right) {
           const double most = largest(b.format) * scale_of(b.byte);
           const double ulp = b.format == DROPLESS_E5M2 ? 8192 : 32;
           const bool beyond = std::fabs(x) >= most + ulp / 2 * scale_of(b.byte);
           return std::isfinite(x) && beyond ? static_cast<std::uint8_t>((right & 0x80) | 0x7F)
                                             : right;
         });
       }});
  faults.push_back({.name = "mxfp8.reciprocal_of_largest_scale_flushed",
                    .provenance = "numerics: the reciprocal of byte 254 is subnormal",
                    .symptom = "an infinity is coded as zero",
                    .trigger = "byte 254",
                    .clauses = {"MXFP8-4c"},
                    .plant = [](Planted& planted) {
                      change_codes(planted, [](double x, const Block& b, std::uint8_t right) {
                        return b.byte == 254 && !std::isnan(x)
                                   ? static_cast<std::uint8_t>(right & 0x80)
                                   : right;
                      });
                    }});
}

void add_formats(std::vector<Fault>& faults) {
  faults.push_back({.name = "mxfp8.gradients_coded_as_e4m3",
                    .provenance = "Transformer Engine 3342, 3352",
                    .symptom = "E5M2 bytes are E4M3 codes",
                    .trigger = "the hybrid recipe",
                    .clauses = {"MXFP8-3c"},
                    .plant = [](Planted& planted) {
                      planted.around<&Table::quantize>([](const auto& next, auto& a) {
                        dropless_tensor codes[2];
                        const dropless_tensor** outputs[] = {&a.row_codes, &a.column_codes};
                        for (int i = 0; i < 2; ++i) {
                          if (*outputs[i] == nullptr) continue;
                          codes[i] = **outputs[i];
                          if (codes[i].dtype == DROPLESS_E5M2) codes[i].dtype = DROPLESS_E4M3;
                          *outputs[i] = &codes[i];
                        }
                        return next(a);
                      });
                    }});
  faults.push_back({.name = "mxfp8.column_format_of_the_rows",
                    .provenance = "operator O10: value of the wrong twin (Primus-Turbo 349)",
                    .symptom = "both directions have the format of the rows",
                    .trigger = "different formats of the two directions",
                    .clauses = {"MXFP8-3c"},
                    .plant = [](Planted& planted) {
                      planted.around<&Table::quantize>([](const auto& next, auto& a) {
                        if (!is_readable(a.row_codes) || !is_readable(a.column_codes)) {
                          return next(a);
                        }
                        dropless_tensor codes = *a.column_codes;
                        codes.dtype = a.row_codes->dtype;
                        a.column_codes = &codes;
                        return next(a);
                      });
                    }});
  faults.push_back({.name = "mxfp8.columns_from_coded_rows",
                    .provenance = "mcore-bridge 125; Transformer Engine 1593",
                    .symptom = "column-wise codes are made from the row-wise ones: rounded twice",
                    .trigger = "both directions",
                    .clauses = {"MXFP8-1c"},
                    .plant = [](Planted& planted) {
                      planted.around<&Table::quantize>(
                          [](const auto& next, auto& a) -> dropless_status {
                            const dropless_status status = next(a);
                            const bool both = a.row_codes != nullptr && a.column_codes != nullptr;
                            if (status != DROPLESS_OK || !both) return status;
                            Copy x(a.x, DROPLESS_FP32);
                            for (const Block& b : blocks_of(a, directions_of(a).front())) {
                              for (const Index i : b.positions) {
                                const double code = view(a.row_codes).load_flat(i);
                                x.elements().store_flat(code * scale_of(b.byte), i);
                              }
                            }
                            dropless_quantize_args columns = a;
                            columns.x = x.tensor();
                            columns.row_codes = columns.row_scales = nullptr;
                            return next(columns);
                          });
                    }});
}

}  // namespace

void add_mxfp8_codes(std::vector<Fault>& faults) {
  add_rounding(faults);
  add_formats(faults);
}

}  // namespace dropless::faults
