// SPDX-License-Identifier: Apache-2.0
// What quantise and dequantise must refuse (GENERAL-3), each beside a control that succeeds.
#include "conformance/cases/data.h"
#include "conformance/cases/mxfp8/setup.h"

namespace dropless::conformance {
namespace {

struct Request {
  std::vector<Index> offsets = {0, 3, 8}, counts = {3, 4};
  dropless_dtype codes = DROPLESS_E4M3;
  Index code_rows = 8, scale_columns = 2;
};

dropless_quantize_args quantize_args(CaseRun& run, const Request& request) {
  Buffers& buffers = run.buffers();
  Random random = run.random("values");
  auto args = make_args<dropless_quantize_args>();
  args.x = buffers.input("x", DROPLESS_FP32, {8, 64}, blockwise(DROPLESS_FP32, 8, 64, 4, random))
               .tensor();
  args.offsets = buffers.input("offsets", DROPLESS_I64, {3}, request.offsets).tensor();
  args.counts = buffers.input("counts", DROPLESS_I64, {2}, request.counts).tensor();
  args.row_codes = buffers.output("row_codes", request.codes, {request.code_rows, 64}).tensor();
  args.row_scales =
      buffers.output("row_scales", DROPLESS_E8M0, {8, request.scale_columns}).tensor();
  return args;
}

void run_quantize_refusals(CaseRun& run) {
  const std::string& what = run.word("what");
  Request request;
  if (what == "falling_offsets") request.offsets = {0, 5, 3}, request.counts = {3, 0};
  if (what == "offsets_beyond_buffer") request.offsets = {0, 3, 9};
  if (what == "offsets_not_from_zero") request.offsets = {1, 3, 8}, request.counts = {2, 4};
  if (what == "count_above_zone") request.counts = {4, 4};
  if (what == "negative_count") request.counts = {-1, 4};
  if (what == "codes_of_wrong_dtype") request.codes = DROPLESS_U8;
  if (what == "codes_of_wrong_shape") request.code_rows = 7;
  if (what == "scales_of_wrong_shape") request.scale_columns = 1;
  auto good = quantize_args(run, {});
  run.perform("quantize", run.implementation().quantize, good);
  auto bad = quantize_args(run, request);
  run.refused("GENERAL-3", what, "quantize", run.implementation().quantize, bad);
}

void run_no_elements(CaseRun& run) {
  GroupedMatrix matrix;
  matrix.rows = 0, matrix.columns = 64;
  matrix.offsets = {0, 0, 0}, matrix.counts = {0, 0};
  reference::QuantizeSettings settings;
  settings.scale_layout = layout_of(run.word("layout"));
  const QuantizeCall call = quantize_call(run, matrix, DROPLESS_BF16, settings, "both");
  auto args = call.args;
  run.perform("quantize", run.implementation().quantize, args, "GENERAL-4");
  // All outputs are empty: that the call came back with OK and wrote nowhere is all there is to
  // see.
  run.judge().holds("GENERAL-4", "status of a call with no rows", true, "OK", "OK");
}

}  // namespace

void add_mxfp8_refusals(Registry& registry) {
  const std::vector<std::string> whats = {
      "falling_offsets", "offsets_beyond_buffer", "offsets_not_from_zero", "count_above_zone",
      "negative_count",  "codes_of_wrong_dtype",  "codes_of_wrong_shape",  "scales_of_wrong_shape"};
  registry.add({"mxfp8.refusals",
                "Proves that an illegal quantise request is refused and nothing is written.",
                {"GENERAL-3"},
                {{"what", whats, 0, 0, "what is wrong with the request"}},
                [whats](Tier tier) {
                  if (tier != Tier::smoke) return std::vector<Values>{};
                  return product({{"what", whats}});
                },
                run_quantize_refusals});
  registry.add({"mxfp8.no_elements",
                "Proves that no rows, with null pointers, is a legal request.",
                {"GENERAL-4"},
                {{"layout", {"linear", "packed"}, 0, 0, "of the scales"}},
                [](Tier tier) {
                  if (tier != Tier::smoke) return std::vector<Values>{};
                  return product({{"layout", {"linear", "packed"}}});
                },
                run_no_elements});
}

}  // namespace dropless::conformance
