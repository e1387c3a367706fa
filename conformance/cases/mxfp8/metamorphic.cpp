// SPDX-License-Identifier: Apache-2.0
// Relations that need no oracle, square tiles, and repetition: MXFP8-9c, 6c, GENERAL-5.
#include <cmath>
#include <limits>

#include "conformance/cases/data.h"
#include "conformance/cases/mxfp8/setup.h"
#include "conformance/judge/trust.h"

namespace dropless::conformance {
namespace {

constexpr Index kRows = 64, kColumns = 128, kBlocks = kColumns / 32;

struct RowResult {
  std::vector<std::uint8_t> codes, scales;
};

RowResult quantize_rows(CaseRun& run, const std::vector<double>& values, dropless_dtype format) {
  GroupedMatrix matrix;
  matrix.rows = kRows, matrix.columns = kColumns, matrix.values = values;
  reference::QuantizeSettings settings;
  settings.row_format = format;
  const QuantizeCall call = quantize_call(run, matrix, DROPLESS_BF16, settings, "row");
  auto args = call.args;
  run.perform("quantize", run.implementation().quantize, args);
  return {call.row_codes->bytes(), call.row_scales->bytes()};
}

// Counts where `got` differs from `expected` and judges that it never does.
void judge_equal(CaseRun& run, const char* what, const std::vector<std::uint8_t>& got,
                 const std::vector<std::uint8_t>& expected) {
  for (std::size_t i = 0; i < got.size(); ++i) {
    run.judge().holds("MXFP8-9c", what, got[i] == expected[i], std::to_string(expected[i]),
                      std::to_string(got[i]), "[" + std::to_string(i) + "]");
  }
}

void run_metamorphic(CaseRun& run) {
  const dropless_dtype format = element_format(run.word("format"));
  const std::string& relation = run.word("relation");
  Random random = run.random("values");
  const auto values = blockwise(DROPLESS_BF16, kRows, kColumns, 20, random);
  const RowResult plain = quantize_rows(run, values, format);
  // Outputs that nobody wrote would satisfy every relation.
  const Index codes = trust::distinct(std::span<const std::uint8_t>(plain.codes));
  run.judge().holds("MXFP8-9c", "distinct codes", codes > 16, "more than 16",
                    std::to_string(codes));
  std::vector<double> changed = values;
  RowResult expected = plain;
  if (relation == "negate") {
    for (double& x : changed) x = -x;
    for (auto& code : expected.codes) code = static_cast<std::uint8_t>(code ^ 0x80);
  } else if (relation == "power_of_two") {
    const int j = static_cast<int>(random.between(1, 20)) * (random.chance(0.5) ? 1 : -1);
    for (double& x : changed) x = std::ldexp(x, j);
    for (auto& byte : expected.scales) byte = static_cast<std::uint8_t>(byte + j);
    run.judge().require(representable(DROPLESS_BF16, changed), "scaled values are exact");
  } else {  // permute_blocks
    const auto order = random.permutation(kRows * kBlocks);
    for (Index to = 0; to < kRows * kBlocks; ++to) {
      const auto from = static_cast<std::size_t>(order[static_cast<std::size_t>(to)]);
      for (std::size_t i = 0; i < 32; ++i) {
        changed[static_cast<std::size_t>(to) * 32 + i] = values[from * 32 + i];
        expected.codes[static_cast<std::size_t>(to) * 32 + i] = plain.codes[from * 32 + i];
      }
      expected.scales[static_cast<std::size_t>(to)] = plain.scales[from];
    }
  }
  const RowResult got = quantize_rows(run, changed, format);
  judge_equal(run, "codes", got.codes, expected.codes);
  judge_equal(run, "scales", got.scales, expected.scales);
  Index moved = 0;
  for (std::size_t i = 0; i < got.codes.size(); ++i) moved += changed[i] != values[i] ? 1 : 0;
  run.judge().require(moved > kRows, "the relation changes the values");
}

void run_square_tiles(CaseRun& run) {
  GroupedMatrix matrix;
  matrix.rows = 77, matrix.columns = 100;
  matrix.offsets = {0, 40, 40, 74}, matrix.counts = {37, 0, 34};
  Random random = run.random("values");
  matrix.values = blockwise(DROPLESS_BF16, matrix.rows, matrix.columns, 12, random);
  const std::vector<bool> real = matrix.real_rows();
  for (Index row = 0; row < matrix.rows; ++row) {
    if (real[static_cast<std::size_t>(row)]) continue;
    std::fill_n(matrix.values.begin() + row * matrix.columns, matrix.columns,
                std::numeric_limits<double>::infinity());
  }
  reference::QuantizeSettings settings;
  settings.row_format = settings.column_format = element_format(run.word("format"));
  settings.scale_layout = layout_of(run.word("layout"));
  settings.square_tiles = true;
  const QuantizeCall call = quantize_call(run, matrix, DROPLESS_BF16, settings, "both");
  auto args = call.args;
  run.perform("quantize", run.implementation().quantize, args, "MXFP8-6c");
  const auto expected = reference::quantize(settings, run.profile(), matrix.rows, matrix.columns,
                                            matrix.values, matrix.groups());
  Judged zone(expected.row_codes.size());
  for (std::size_t i = 0; i < zone.size(); ++i) {
    zone[i] = static_cast<Index>(i) < matrix.used_rows() * matrix.columns && expected.row_judged[i];
  }
  Judge& judge = run.judge();
  judge.exact_codes("MXFP8-6c", "row-wise codes", *call.row_codes, expected.row_codes, zone);
  judge.exact_codes("MXFP8-6c", "column-wise codes", *call.column_codes, expected.column_codes,
                    zone);
  Judged scale_rows;
  if (settings.scale_layout == DROPLESS_SCALES_LINEAR) {
    scale_rows.assign(expected.row_scales.size(), false);
    const Index width = static_cast<Index>(expected.row_scales.size()) / matrix.rows;
    std::fill_n(scale_rows.begin(), matrix.used_rows() * width, true);
  }
  judge.exact_bytes("MXFP8-6c", "row-wise scales", *call.row_scales, expected.row_scales,
                    scale_rows);
  judge.exact_bytes("MXFP8-6c", "column-wise scales", *call.column_scales, expected.column_scales);
  settings.square_tiles = false;
  const auto plain = reference::quantize(settings, run.profile(), matrix.rows, matrix.columns,
                                         matrix.values, matrix.groups());
  judge.require(plain.row_codes != expected.row_codes, "tiles change the codes");
}

void run_repeat(CaseRun& run) {
  GroupedMatrix matrix;
  matrix.rows = 1000, matrix.columns = 224;
  Random random = run.random("values");
  matrix.values = blockwise(DROPLESS_BF16, matrix.rows, matrix.columns, 12, random);
  const QuantizeCall call = quantize_call(run, matrix, DROPLESS_BF16, {}, "both");
  auto args = call.args;
  run.perform("quantize", run.implementation().quantize, args);
  judge_quantized(run, matrix, {}, call);
  const Buffer* outputs[] = {call.row_codes, call.row_scales, call.column_codes,
                             call.column_scales};
  std::vector<std::vector<std::uint8_t>> first;
  for (const Buffer* output : outputs) first.push_back(output->bytes());
  // Quantisation is exact: whatever determinism is declared, it can only give these bits.
  for (const int threads : {1, 2, 3}) {
    run.buffers().poison_outputs();
    run.perform_with_threads(threads, "quantize", run.implementation().quantize, args);
    for (std::size_t i = 0; i < first.size(); ++i) {
      run.judge().same_bytes("GENERAL-5",
                             outputs[i]->label() + " with " + std::to_string(threads) + " threads",
                             *outputs[i], first[i]);
    }
  }
}

}  // namespace

void add_mxfp8_metamorphic(Registry& registry) {
  const Parameter format{"format", {"e4m3", "e5m2"}, 0, 0, "element format"};
  const Parameter seed{"seed", {}, 0, std::int64_t{1} << 62, "of the random numbers"};
  const std::vector<std::string> relations = {"negate", "power_of_two", "permute_blocks"};
  registry.add({"mxfp8.metamorphic",
                "Proves three relations between two runs that hold whatever the scale rule is.",
                {"MXFP8-9c"},
                {{"relation", relations, 0, 0, "what is done to the values"}, format, seed},
                [relations](Tier tier) {
                  const auto cases = [&](std::vector<std::string> seeds) {
                    return product({{"relation", relations},
                                    {"format", {"e4m3", "e5m2"}},
                                    {"seed", std::move(seeds)}});
                  };
                  if (tier == Tier::smoke) return cases({"1"});
                  return tier == Tier::standard ? cases({"2"}) : cases({"3", "4", "5"});
                },
                run_metamorphic});
  registry.add({"mxfp8.square_tiles",
                "Proves the 32 x 32 option on groups that end inside a tile.",
                {"MXFP8-6c"},
                {format, {"layout", {"linear", "packed"}, 0, 0, "of the scales"}, seed},
                [](Tier tier) {
                  if (tier != Tier::standard) return std::vector<Values>{};
                  return product({{"format", {"e4m3", "e5m2"}},
                                  {"layout", {"linear", "packed"}},
                                  {"seed", {"1"}}});
                },
                run_square_tiles});
  std::vector<std::string> repeat_clauses = mxfp8_judged_clauses();
  repeat_clauses.emplace_back("GENERAL-5");
  registry.add({"mxfp8.repeat",
                "Proves that quantise gives the same bits again, with any number of threads.",
                repeat_clauses,
                {seed},
                [](Tier tier) {
                  if (tier != Tier::standard) return std::vector<Values>{};
                  return product({{"seed", {"1"}}});
                },
                run_repeat});
}

}  // namespace dropless::conformance
