// SPDX-License-Identifier: Apache-2.0
// Quantise on real shapes and on hostile values: MXFP8-1 to 4 and 6 to 8.
#include <algorithm>
#include <cmath>
#include <limits>

#include "conformance/cases/mxfp8/setup.h"
#include "conformance/judge/trust.h"
#include "tolerances/interval.h"

namespace dropless::conformance {
namespace {

reference::QuantizeSettings settings_of(const CaseRun& run) {
  reference::QuantizeSettings settings;
  settings.row_format = settings.column_format = element_format(run.word("format"));
  settings.scale_layout = layout_of(run.word("layout"));
  return settings;
}

void run_quantize(CaseRun& run) {
  const GroupedMatrix matrix = grouped_matrix(run);
  reference::QuantizeSettings settings = settings_of(run);
  const std::string& directions = run.word("directions");
  // Gradients may be E5M2 beside E4M3 of the other direction: the formats are independent.
  if (run.word("format") == "mixed") settings.column_format = DROPLESS_E5M2;
  const QuantizeCall call =
      quantize_call(run, matrix, value_dtype(run.word("input")), settings, directions,
                    {.row_gap = run.word("strides") == "gaps" ? 7 : 0});
  auto args = call.args;
  run.perform("quantize", run.implementation().quantize, args);
  judge_quantized(run, matrix, settings, call);

  const auto expected = reference::quantize(settings, run.profile(), matrix.rows, matrix.columns,
                                            matrix.values, matrix.groups());
  const Index elements = matrix.real_row_count() * matrix.columns;
  const Index blocks = matrix.real_row_count() * ((matrix.columns + 31) / 32);
  run.judge().require(trust::distinct(expected.row_scales) >= std::min<Index>(4, (blocks + 2) / 4),
                      "at least 4 distinct scale bytes row-wise, fewer of less than 14 blocks");
  // A column-wise block has the largest of up to 32 amplitudes, times the gain of its column.
  run.judge().require(elements < 4096 || trust::distinct(expected.column_scales) >= 4,
                      "at least 4 distinct scale bytes column-wise");
}

// Other values at the same address: codes that were kept of the first ones are worth nothing.
void run_changed_input(CaseRun& run) {
  GroupedMatrix matrix = grouped_matrix(run);
  const reference::QuantizeSettings settings = settings_of(run);
  const QuantizeCall call =
      quantize_call(run, matrix, value_dtype(run.word("input")), settings, "both");
  auto args = call.args;
  run.perform("quantize", run.implementation().quantize, args);
  judge_quantized(run, matrix, settings, call);

  std::vector<std::uint8_t> bytes = call.x->bytes();  // every sign is turned, and nothing else
  const std::size_t size = dtype_bytes(call.x->dtype());
  for (std::size_t i = size - 1; i < bytes.size(); i += size) bytes[i] ^= 0x80;
  call.x->overwrite(bytes);
  for (double& value : matrix.values) value = -value;
  run.buffers().poison_outputs();
  run.perform("quantize", run.implementation().quantize, args);
  judge_quantized(run, matrix, settings, call);
}

// One element in every row-wise block is so large that the others keep at most two bits of it
// beside them: below the normal range of the format, whatever the scale rule. In their columns they
// keep all. (Gains of columns differ by up to 2^6.)
void raise_outliers(GroupedMatrix& matrix, dropless_dtype format) {
  const double factor = format == DROPLESS_E5M2 ? 0x1p37 : 0x1p23;
  for (Index row = 0; row < matrix.rows; ++row) {
    for (Index column = 0; column < matrix.columns; column += reference::kBlock) {
      matrix.values[static_cast<std::size_t>(row * matrix.columns + column)] *= factor;
    }
  }
}

std::string no_rows_objection(const Values& values) {
  const std::string& load = value_of(values, "load");
  const Index rows = std::stoll(value_of(values, "rows"));
  const bool none = rows == 0 || load == "all_empty" || (load == "tile_edge" && rows < 15) ||
                    load.find_first_not_of("0.") == std::string::npos;
  return none ? "no row is left to compare" : "";
}

// MXFP8-1c: values for which column codes made from row-wise results differ from the right ones.
void run_both_directions(CaseRun& run) {
  GroupedMatrix matrix = grouped_matrix(run);
  const reference::QuantizeSettings settings = settings_of(run);
  raise_outliers(matrix, settings.row_format);
  const QuantizeCall call =
      quantize_call(run, matrix, value_dtype(run.word("input")), settings, "both");
  auto args = call.args;
  run.perform("quantize", run.implementation().quantize, args);

  const auto right = reference::quantize(settings, run.profile(), matrix.rows, matrix.columns,
                                         matrix.values, matrix.groups());
  GroupedMatrix again = matrix;
  again.values = reference::dequantize(DROPLESS_BLOCKS_ROW_WISE, settings.scale_layout,
                                       settings.row_format, matrix.rows, matrix.columns,
                                       right.row_codes, right.row_scales, matrix.groups());
  const auto twice = reference::quantize(settings, run.profile(), again.rows, again.columns,
                                         again.values, again.groups());
  Index different = 0;
  for (std::size_t i = 0; i < right.column_codes.size(); ++i) {
    different += right.column_codes[i] != twice.column_codes[i] ? 1 : 0;
  }
  const Index small_elements =
      matrix.real_row_count() * (matrix.columns - (matrix.columns + 31) / 32);
  run.judge().require(different * 4 > small_elements || small_elements == 0,
                      "quantising the row-wise result again changes a quarter of the column codes");
  run.judge().exact_codes("MXFP8-1c", "column-wise codes", *call.column_codes, right.column_codes,
                          right.column_judged);
}

std::vector<double> special_block(const std::string& what, Random& random) {
  std::vector<double> block(32);
  for (double& x : block) x = (random.chance(0.5) ? 1 : -1) * (0.5 + random.uniform());
  const std::size_t at = static_cast<std::size_t>(random.below(32));
  const std::size_t other = (at + 1 + static_cast<std::size_t>(random.below(31))) % 32;
  const double inf = std::numeric_limits<double>::infinity();
  const auto scale_all = [&](double factor) {
    for (double& x : block) x *= factor;
  };
  if (what == "zeros") {
    for (double& x : block) x = random.chance(0.5) ? 0.0 : -0.0;
  } else if (what == "one_tiny") {
    for (double& x : block) x = random.chance(0.5) ? 0.0 : -0.0;
    block[at] = 0x1p-133;
  } else if (what == "nan") {
    block[at] = std::nan("");
  } else if (what == "all_nan") {
    for (double& x : block) x = std::nan("");
  } else if (what == "infinity") {
    block[at] = random.chance(0.5) ? inf : -inf;
  } else if (what == "infinity_and_nan") {
    block[at] = inf, block[other] = std::nan("");
  } else if (what == "subnormal") {
    scale_all(0x1p-130);
  } else if (what == "smallest") {
    scale_all(0x1p-126);
    block[at] = 0x1.cp-119;  // 448 * 2^-127: the last amax of byte 0 under RCEIL
  } else if (what == "largest") {
    scale_all(0x1p125);
    block[at] = 0x1.fep127;
  } else if (what == "near_limit") {
    block[at] = 448 * 0x1p-3, block[other] = -0x1.cp5 * 0.9375;
  } else if (what == "negative_underflow") {
    scale_all(0x1p-20);
    block[at] = 1.0;
  }
  return block;
}

void run_special(CaseRun& run) {
  const std::string& what = run.word("what");
  const dropless_dtype input = value_dtype(run.word("input"));
  GroupedMatrix matrix;
  matrix.rows = 32, matrix.columns = 96;
  matrix.values.resize(static_cast<std::size_t>(matrix.rows * matrix.columns));
  Random random = run.random("values");
  // Special blocks row by row in the middle third, ordinary neighbours on both sides: nothing
  // leaks.
  for (Index row = 0; row < matrix.rows; ++row) {
    for (Index b = 0; b < 3; ++b) {
      const auto block = special_block(b == 1 ? what : "ordinary", random);
      for (Index i = 0; i < 32; ++i) {
        matrix.values[static_cast<std::size_t>(row * 96 + b * 32 + i)] =
            tolerances::round_to(input, block[static_cast<std::size_t>(i)]);
      }
    }
  }
  reference::QuantizeSettings settings = settings_of(run);
  const QuantizeCall call = quantize_call(run, matrix, input, settings, "both");
  auto args = call.args;
  run.perform("quantize", run.implementation().quantize, args);

  const auto expected = reference::quantize(settings, run.profile(), matrix.rows, matrix.columns,
                                            matrix.values, matrix.groups());
  const bool not_a_number = what == "nan" || what == "all_nan";
  const bool infinite = what == "infinity" || what == "infinity_and_nan";
  const std::string clause = not_a_number                   ? "MXFP8-4b"
                             : infinite                     ? "MXFP8-4c"
                             : what == "zeros"              ? "MXFP8-4a"
                             : what == "one_tiny"           ? "MXFP8-3b"
                             : what == "negative_underflow" ? "MXFP8-3b"
                                                            : "MXFP8-2";
  Judge& judge = run.judge();
  judge.exact_bytes(clause, "row-wise scales", *call.row_scales, expected.row_scales);
  judge.exact_codes(clause, "row-wise codes", *call.row_codes, expected.row_codes,
                    expected.row_judged);
  judge.exact_bytes(clause, "column-wise scales", *call.column_scales, expected.column_scales);
  judge.exact_codes(clause, "column-wise codes", *call.column_codes, expected.column_codes,
                    expected.column_judged);
  // Under either policy: NaN stays NaN, and Inf never becomes an ordinary number.
  const auto back = reference::dequantize(DROPLESS_BLOCKS_ROW_WISE, settings.scale_layout,
                                          settings.row_format, matrix.rows, matrix.columns,
                                          call.row_codes->bytes(), call.row_scales->bytes());
  for (std::size_t i = 0; i < back.size(); ++i) {
    const double x = matrix.values[i];
    const std::string element = element_name(matrix.shape(), static_cast<Index>(i));
    if (std::isnan(x)) {
      judge.holds("MXFP8-4b", "dequantised NaN", std::isnan(back[i]), "NaN",
                  std::to_string(back[i]), element);
    } else if (std::isinf(x)) {
      judge.holds("MXFP8-4c", "dequantised infinity", !std::isfinite(back[i]), "Inf or NaN",
                  std::to_string(back[i]), element);
    }
  }
}

// The one fp32 amax for which shortcuts of RCEIL disagree: both bytes are accepted (MXFP8-2).
void run_lucky_amax(CaseRun& run) {
  GroupedMatrix matrix;
  matrix.rows = 1, matrix.columns = 32;
  matrix.values.assign(32, 0.0);
  matrix.values[5] = 0x1.c00002p-119;
  const QuantizeCall call = quantize_call(run, matrix, DROPLESS_FP32, {}, "row");
  auto args = call.args;
  run.perform("quantize", run.implementation().quantize, args);
  const int byte = call.row_scales->bytes()[0];
  const int expected =
      reference::scale_byte(matrix.values[5], DROPLESS_E4M3, run.profile().scale_rule);
  const bool rceil = run.profile().scale_rule == DROPLESS_SCALE_RCEIL;
  run.judge().holds("MXFP8-2", "scale of amax 0x1.c00002p-119",
                    byte == expected || (rceil && byte == 0),
                    rceil ? "1, or 0" : std::to_string(expected), std::to_string(byte));
}

std::vector<Axis> quantize_axes(std::vector<std::string> models, std::vector<std::string> rows,
                                std::vector<std::string> loads) {
  return {{"model", std::move(models)},
          {"divisor", {"64"}},
          {"rows", std::move(rows)},
          {"load", std::move(loads)},
          {"columns", {"hidden", "intermediate", "odd"}},
          {"zones", {"padded", "tight"}},
          {"input", {"bf16", "fp32"}},
          {"format", {"e4m3", "e5m2", "mixed"}},
          {"layout", {"linear", "packed"}},
          {"directions", {"both", "row", "column"}},
          {"strides", {"dense", "gaps"}},
          {"seed", {"1"}}};
}

std::vector<Values> select_quantize(Tier tier) {
  const auto smoke =
      pairwise(quantize_axes({"deepseek-v3", "mixtral-8x7b"}, {"193"}, {"zipf", "empty_middle"}));
  if (tier == Tier::smoke) return smoke;
  const auto standard =
      without(pairwise(quantize_axes({"deepseek-v3", "mixtral-8x7b", "qwen3-30b-a3b", "gpt-oss-20b",
                                      "grok-1", "llama-4-scout"},
                                     {"0", "1", "97", "300"}, load_names())),
              smoke);
  if (tier == Tier::standard) return standard;
  std::vector<std::string> all;
  for (const Model& model : models()) all.push_back(model.name);
  return without(pairwise(quantize_axes(all, {"1000"}, load_names())), standard);
}

std::vector<Parameter> quantize_parameters() {
  std::vector<std::string> names;
  for (const Model& model : models()) names.push_back(model.name);
  return {
      {"model", names, 0, 0, "published model: experts and widths"},
      {"divisor", {}, 1, 1024, "widths are divided by this"},
      {"rows", {}, 0, 1 << 20, "real rows over all groups"},
      load_parameter("how the rows spread over the groups"),
      {"columns", {"hidden", "intermediate", "odd"}, 0, 0, "width; odd: no multiple of 32"},
      {"zones", {"padded", "tight"}, 0, 0, "zones rounded up to 16 rows, or exact"},
      {"input", {"bf16", "fp32"}, 0, 0, "dtype of the values"},
      {"format", {"e4m3", "e5m2", "mixed"}, 0, 0, "element format; mixed: e4m3 rows, e5m2 columns"},
      {"layout", {"linear", "packed"}, 0, 0, "of the scales"},
      {"directions", {"both", "row", "column"}, 0, 0, "asked for in one call"},
      {"strides", {"dense", "gaps"}, 0, 0, "gaps between rows"},
      {"seed", {}, 0, std::int64_t{1} << 62, "of the random numbers"}};
}

}  // namespace

void add_mxfp8_quantize(Registry& registry) {
  registry.add({"mxfp8.quantize",
                "Proves codes and scales on the ragged matrices of real models, with NaN wherever "
                "no real row is; amplitudes differ from block to block.",
                mxfp8_judged_clauses(), quantize_parameters(), select_quantize, run_quantize});
  registry.add({"mxfp8.changed_input",
                "Proves that other values at the same address have their own codes.",
                mxfp8_judged_clauses(), quantize_parameters(),
                [](Tier tier) {
                  auto axes = quantize_axes({"mixtral-8x7b"}, {"193"}, {"zipf"});
                  for (Axis& axis : axes) axis.values.resize(1);
                  return tier == Tier::standard ? product(axes) : std::vector<Values>{};
                },
                run_changed_input});
  registry.add({"mxfp8.both_directions",
                "Proves that column-wise codes come from the tensor, not from the row-wise codes.",
                {"MXFP8-1c"},
                quantize_parameters(),
                [](Tier tier) {
                  if (tier == Tier::full) return std::vector<Values>{};
                  auto axes = quantize_axes({"deepseek-v3"}, {"193"}, {"balanced"});
                  axes[4].values = {"hidden"}, axes[7].values = {"e4m3"};
                  axes[8].values = {"linear"}, axes[9].values = {"both"};
                  axes[10].values = {"dense"};
                  const auto smoke = pairwise(axes);
                  if (tier == Tier::smoke) return smoke;
                  axes[0].values = {"mixtral-8x7b", "gpt-oss-20b"};
                  axes[7].values = {"e4m3", "e5m2"}, axes[8].values = {"linear", "packed"};
                  return pairwise(axes);
                },
                run_both_directions,
                no_rows_objection});
  const std::vector<std::string> whats = {
      "zeros",     "one_tiny", "nan",     "all_nan",    "infinity",          "infinity_and_nan",
      "subnormal", "smallest", "largest", "near_limit", "negative_underflow"};
  registry.add({"mxfp8.special",
                "Proves blocks of zeros, NaN, infinities, subnormals and limits under the declared "
                "policy, and that they do not leak into their neighbours.",
                {"MXFP8-2", "MXFP8-3b", "MXFP8-4a", "MXFP8-4b", "MXFP8-4c"},
                {{"what", whats, 0, 0, "what the special blocks hold"},
                 {"input", {"bf16", "fp32"}, 0, 0, "dtype of the values"},
                 {"format", {"e4m3", "e5m2"}, 0, 0, "element format"},
                 {"layout", {"linear"}, 0, 0, "of the scales"},
                 {"seed", {}, 0, std::int64_t{1} << 62, "of the random numbers"}},
                [whats](Tier tier) {
                  const auto axes = [&](std::vector<std::string> inputs) {
                    return std::vector<Axis>{{"what", whats},
                                             {"input", std::move(inputs)},
                                             {"format", {"e4m3", "e5m2"}},
                                             {"layout", {"linear"}},
                                             {"seed", {"1"}}};
                  };
                  if (tier == Tier::smoke) return product(axes({"bf16"}));
                  if (tier == Tier::standard) return product(axes({"fp32"}));
                  return std::vector<Values>{};
                },
                run_special});
  registry.add({"mxfp8.lucky_amax",
                "Accepts both bytes that public round-up shortcuts give for one fp32 amax, and no "
                "other.",
                {"MXFP8-2"},
                {},
                [](Tier tier) {
                  return tier == Tier::standard ? std::vector<Values>{{}} : std::vector<Values>{};
                },
                run_lucky_amax});
}

}  // namespace dropless::conformance
