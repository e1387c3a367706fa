// SPDX-License-Identifier: Apache-2.0
// Faults of MXFP8 quantisation: scales in this file, codes, layouts and the way back in others.
#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/faults/quantisers.h"
#include "tests/faults/refusals.h"

namespace dropless::faults {
namespace {

// A rule that is followed without being declared.
void add_rule(std::vector<Fault>& faults, const char* name, const char* provenance,
              const char* symptom, void (*plant)(Planted&)) {
  faults.push_back({.name = name,
                    .provenance = provenance,
                    .symptom = symptom,
                    .trigger = "blocks whose amax is no power of two times the format's largest",
                    .clauses = {"MXFP8-2", "MXFP8-3c"},
                    .plant = plant});
}

void add_rules(std::vector<Fault>& faults) {
  add_rule(faults, "mxfp8.floor_rule_undeclared", "numerics: A scaled FLOOR, not RCEIL",
           "the largest elements of a block saturate", [](Planted& planted) {
             planted.behave_as([](dropless_profile& p) { p.scale_rule = DROPLESS_SCALE_FLOOR; });
           });
  add_rule(faults, "mxfp8.ceil_rule_undeclared",
           "operator O17: the neighbouring mode (torchao 2035)", "codes use half of their range",
           [](Planted& planted) {
             planted.behave_as([](dropless_profile& p) { p.scale_rule = DROPLESS_SCALE_CEIL; });
           });
  add_rule(faults, "mxfp8.even_rule_undeclared",
           "operator O17: the neighbouring mode (torchao 2035)", "some blocks saturate",
           [](Planted& planted) {
             planted.behave_as([](dropless_profile& p) { p.scale_rule = DROPLESS_SCALE_EVEN; });
           });
  add_rule(faults, "mxfp8.quotient_truncated", "sglang 39193; vllm 43557",
           "the mantissa of the fp32 scale is dropped", [](Planted& planted) {
             change_bytes(planted, [](const Block& b) {
               if (b.amax == 0 || std::isinf(b.amax)) return b.byte;
               return clamped_byte(std::floor(std::log2(b.amax / largest(b.format))));
             });
           });
  add_rule(faults, "mxfp8.log_truncated_below_one", "compressed-tensors 630",
           "scales below 1 are twice too large", [](Planted& planted) {
             change_bytes(planted, [](const Block& b) {
               if (b.amax == 0 || std::isinf(b.amax)) return b.byte;
               const double log = std::log2(b.amax / largest(b.format));
               return log == std::trunc(log) ? b.byte : clamped_byte(std::trunc(log) + 1);
             });
           });
  add_rule(faults, "mxfp8.amax_in_bf16", "torchao 4725", "the exponent is one too high",
           [](Planted& planted) {
             change_bytes(planted, [](const Block& b) {
               return std::isinf(b.amax)
                          ? b.byte
                          : reference::scale_byte(bf16(b.amax), b.format, DROPLESS_SCALE_RCEIL);
             });
           });
  add_rule(faults, "mxfp8.rounded_logarithm", "microxcaling 4; torchao 4725",
           "values just above a limit are taken for the limit", [](Planted& planted) {
             change_bytes(planted, [](const Block& b) {
               if (b.amax == 0 || std::isinf(b.amax)) return b.byte;
               const float quotient =
                   static_cast<float>(b.amax) / static_cast<float>(largest(b.format));
               return clamped_byte(std::ceil(std::log2(quotient)));
             });
           });
  add_rule(faults, "mxfp8.amax_of_signed_values", "operator O18: the absolute value is left out",
           "negative elements saturate", [](Planted& planted) {
             change_bytes(planted, [](const Block& b) {
               double most = 0;
               for (const double x : b.x) most = std::max(most, std::isnan(x) ? 0 : x);
               return reference::scale_byte(most, b.format, DROPLESS_SCALE_RCEIL);
             });
           });
  add_rule(faults, "mxfp8.scale_of_the_other_format", "Primus-Turbo 349: one format tag for both",
           "E5M2 tensors are scaled like E4M3", [](Planted& planted) {
             change_bytes(planted, [](const Block& b) {
               return reference::scale_byte(b.amax, DROPLESS_E4M3, DROPLESS_SCALE_RCEIL);
             });
           });
  faults.back().trigger = "E5M2";
  faults.back().clauses = {"MXFP8-3c", "MXFP8-2"};
}

void add_limits(std::vector<Fault>& faults) {
  faults.push_back({.name = "mxfp8.tiny_quotient_flushed",
                    .provenance = "numerics: flush-to-zero builds",
                    .symptom = "values up to 896 clip to 448",
                    .trigger = "an amax between 448 * 2^-127 and 448 * 2^-126",
                    .clauses = {"MXFP8-9a", "MXFP8-2"},
                    .plant = [](Planted& planted) {
                      change_bytes(planted, [](const Block& b) {
                        return b.amax / largest(b.format) < 0x1p-126 ? std::uint8_t{0} : b.byte;
                      });
                    }});
  faults.push_back({.name = "mxfp8.exponent_wraps_below_zero",
                    .provenance = "operator O2: narrow an index (numerics: amax of 2^-149)",
                    .symptom = "the byte of a tiny block wraps around",
                    .trigger = "an amax below 448 * 2^-127",
                    .clauses = {"MXFP8-9a", "MXFP8-2"},
                    .plant = [](Planted& planted) {
                      change_bytes(planted, [](const Block& b) {
                        if (b.amax == 0 || b.amax >= 0x1p-119) return b.byte;
                        const double k = std::ceil(std::log2(b.amax / largest(b.format)));
                        return static_cast<std::uint8_t>(static_cast<int>(k) + 127);
                      });
                    }});
  faults.push_back({.name = "mxfp8.amax_of_one_binade_wrong",
                    .provenance = "operator O18: a table with one wrong entry",
                    .symptom = "one scale byte of all is never produced",
                    .trigger = "an amax near 2^100",
                    .clauses = {"MXFP8-9a"},
                    .plant = [](Planted& planted) {
                      change_bytes(planted, [](const Block& b) {
                        return b.byte == 219 ? std::uint8_t{220} : b.byte;
                      });
                    }});
  faults.push_back({.name = "mxfp8.zero_block_scale_one",
                    .provenance = "aiter 2900: 1.0 for the neutral scale",
                    .symptom = "a block of zeros has the byte of 1.0",
                    .trigger = "a block of zeros",
                    .clauses = {"MXFP8-4a", "MXFP8-4b"},
                    .plant = [](Planted& planted) {
                      change_bytes(planted, [](const Block& b) {
                        return b.amax == 0 ? std::uint8_t{127} : b.byte;
                      });
                    }});
  faults.push_back({.name = "mxfp8.zero_block_divides_by_zero",
                    .provenance = "torchao 4713; lmdeploy 3652; flashinfer 2440",
                    .symptom = "a block of zeros becomes NaN",
                    .trigger = "a block of zeros",
                    .clauses = {"MXFP8-4a"},
                    .plant = [](Planted& planted) {
                      change_codes(planted, [](double, const Block& b, std::uint8_t right) {
                        return b.amax == 0 ? std::uint8_t{0x7F} : right;
                      });
                    }});
  faults.push_back({.name = "mxfp8.block_policy_undeclared",
                    .provenance = "Transformer Engine 3550; torchao 4725",
                    .symptom = "one NaN makes the whole block NaN",
                    .trigger = "a block with a NaN",
                    .clauses = {"MXFP8-4b", "MXFP8-4c"},
                    .plant = [](Planted& planted) {
                      planted.behave_as(
                          [](dropless_profile& p) { p.special_values = DROPLESS_SPECIAL_BLOCK; });
                    }});
  faults.push_back({.name = "mxfp8.declared_block_policy_not_kept",
                    .provenance = "Transformer Engine 3550: the maximum drops NaN",
                    .symptom = "a NaN gives a finite scale",
                    .trigger = "a block with a NaN",
                    .clauses = {"MXFP8-4b", "MXFP8-4c"},
                    .plant = [](Planted& planted) {
                      planted.declare(
                          [](dropless_profile& p) { p.special_values = DROPLESS_SPECIAL_BLOCK; });
                      planted.behave_as(
                          [](dropless_profile& p) { p.special_values = DROPLESS_SPECIAL_ELEMENT; });
                    }});
  faults.push_back({.name = "mxfp8.nan_coded_as_zero",
                    .provenance = "torchao 4201; cosmos-rl: nan_to_num as a cure",
                    .symptom = "a NaN disappears",
                    .trigger = "a block with a NaN",
                    .clauses = {"MXFP8-4b"},
                    .plant = [](Planted& planted) {
                      change_codes(planted, [](double x, const Block&, std::uint8_t right) {
                        return std::isnan(x) ? std::uint8_t{0} : right;
                      });
                    }});
  faults.push_back({.name = "mxfp8.infinity_taken_for_largest_number",
                    .provenance = "torchao 4201: one Inf in a block",
                    .symptom = "an infinity comes back as an ordinary number",
                    .trigger = "a block with an infinity",
                    .clauses = {"MXFP8-4c"},
                    .plant = [](Planted& planted) {
                      change_input(planted, [](double v) {
                        const double most = 0x1p119;
                        return std::isinf(v) ? std::copysign(most, v) : v;
                      });
                    }});
  faults.push_back({.name = "mxfp8.infinity_left_out_of_the_maximum",
                    .provenance = "Transformer Engine 3550, for infinities",
                    .symptom = "an infinity saturates under the scale of the others",
                    .trigger = "a block with an infinity",
                    .clauses = {"MXFP8-4c"},
                    .plant = [](Planted& planted) {
                      change_bytes(planted, [](const Block& b) {
                        if (!std::isinf(b.amax)) return b.byte;
                        double most = 0;
                        for (const double x : b.x) {
                          if (std::isfinite(x)) most = std::max(most, std::fabs(x));
                        }
                        return reference::scale_byte(most, b.format, DROPLESS_SCALE_RCEIL);
                      });
                    }});
}

void add_elsewhere(std::vector<Fault>& faults) {
  const auto gpu = [&](const char* name, const char* provenance, const char* symptom,
                       const char* trigger, const char* reason) {
    faults.push_back({.name = name,
                      .provenance = provenance,
                      .symptom = symptom,
                      .trigger = trigger,
                      .clauses = {},
                      .visibility = Visibility::gpu,
                      .reason = reason});
  };
  gpu("mxfp8.descriptor_of_an_empty_group", "Transformer Engine 2779", "illegal address",
      "a group without rows", "a TMA descriptor with extent 0 exists on a device only");
  gpu("mxfp8.scale_offset_outside_the_window", "Transformer Engine 3447",
      "wrong scales on the zero-copy dispatch path", "a tensor inside a registered window",
      "registered windows exist on a device only");
  gpu("mxfp8.scale_pipeline_not_awaited", "flashinfer 4409, 4396, 3944",
      "one output row is wrong now and then", "m <= 32", "a race of asynchronous copies");
  gpu("mxfp8.output_scale_pointer_ignored", "cuBLAS 13.2U1 [6059292]",
      "the output scale has no effect", "NVFP4 output", "a device library's epilogue");
}

}  // namespace

void add_mxfp8(std::vector<Fault>& faults) {
  add_rules(faults);
  add_limits(faults);
  add_mxfp8_codes(faults);
  add_mxfp8_layouts(faults);
  add_mxfp8_dequantize(faults);
  add_elsewhere(faults);
}

}  // namespace dropless::faults
