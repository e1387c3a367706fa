// SPDX-License-Identifier: Apache-2.0
// A layer in which every number is exact in fp32 and bf16, so that the output has one right value:
// LAYER-1d. The expected output is made here from integers; the reference plays no part.
//
// x holds one small power of two per token, all logits saturate the sigmoid at exactly 1, K is a
// power of two, so renormalised weights are exactly 1 / K; relu2 squares integers up to 15; every
// row of the second matrix has one element.
#include <cmath>

#include "conformance/cases/layer/setup.h"
#include "conformance/cases/loads.h"
#include "conformance/judge/trust.h"
#include "tolerances/interval.h"

namespace dropless::conformance {
namespace {

std::size_t at(Index i) {
  return static_cast<std::size_t>(i);
}

// Rows with one element each: which column, and which value.
struct Sparse {
  std::vector<Index> column;
  std::vector<double> value;
};

void fill_exact(CaseRun& run, LayerData& data, Sparse& x, Sparse& down, Sparse& shared_down) {
  Random random = run.random("layer");
  data.tokens = run.integer("tokens");
  data.hidden = 64, data.intermediate = 32;
  data.shared_intermediate = run.word("shared") == "yes" ? 32 : 0;
  data.dtype = run.word("dtype") == "fp32" ? DROPLESS_FP32 : DROPLESS_BF16;
  data.route.struct_size = sizeof data.route;
  data.route.struct_version = DROPLESS_STRUCT_VERSION;
  data.route.num_experts = run.integer("experts"), data.route.top_k = 4;
  data.route.score_function = DROPLESS_SCORE_SIGMOID;
  data.route.renormalize = 1, data.route.renormalize_eps = 1e-20;
  data.route.scaling_factor = 2;
  data.activation.struct_size = sizeof data.activation;
  data.activation.struct_version = DROPLESS_STRUCT_VERSION;
  data.activation.kind = DROPLESS_RELU2;
  data.connect();
  data.settings.weight_placement =
      run.word("placement") == "early" ? DROPLESS_WEIGHTS_EARLY : DROPLESS_WEIGHTS_LATE;
  const Index e = data.experts(), h = data.hidden, i = data.intermediate;
  data.router_weight.assign(at(e * h), 1024.0);
  data.given_ids = ids_for_load(run.word("load"), data.tokens, e, 4, random, 0);
  data.x.assign(at(data.tokens * h), 0.0);
  for (Index t = 0; t < data.tokens; ++t) {
    x.column.push_back(random.below(h));
    x.value.push_back(1);
    data.x[at(t * h + x.column.back())] = x.value.back();
  }
  const auto integers = [&](Index count) {
    std::vector<double> values(at(count));
    for (double& v : values) v = static_cast<double>(random.between(-15, 15));
    return values;
  };
  const auto one_each = [&](Index rows, Index columns, Sparse& sparse) {
    std::vector<double> values(at(rows * columns), 0.0);
    for (Index r = 0; r < rows; ++r) {
      sparse.column.push_back(random.below(columns));
      sparse.value.push_back(random.chance(0.5) ? 1 : -1);
      values[at(r * columns + sparse.column.back())] = sparse.value.back();
    }
    return values;
  };
  data.gate_up = integers(e * i * h);
  data.down = one_each(e * h, i, down);
  if (data.shared_intermediate > 0) {
    data.shared_gate_up = integers(data.shared_intermediate * h);
    data.shared_down = one_each(h, data.shared_intermediate, shared_down);
  }
}

double relu2(double v) {
  return v > 0 ? v * v : 0;
}

void run_exact(CaseRun& run) {
  LayerData data;
  Sparse x, down, shared_down;
  fill_exact(run, data, x, down, shared_down);
  const Index h = data.hidden, i = data.intermediate, k = data.route.top_k;
  std::vector<double> expected(at(data.tokens * h), 0.0);
  for (Index t = 0; t < data.tokens; ++t) {
    Index chosen = 0;  // the weights are shared among the slots in use
    for (Index j = 0; j < k; ++j) chosen += data.given_ids[at(t * k + j)] >= 0 ? 1 : 0;
    for (Index o = 0; o < h; ++o) {
      double y = 0;
      for (Index j = 0; j < k; ++j) {
        const Index e = data.given_ids[at(t * k + j)];
        if (e < 0) continue;
        const Index unit = down.column[at(e * h + o)];
        const double gate = data.gate_up[at((e * i + unit) * h + x.column[at(t)])];
        y += data.route.scaling_factor / static_cast<double>(chosen) * relu2(gate) *
             down.value[at(e * h + o)];
      }
      if (data.shared_intermediate > 0) {
        const Index unit = shared_down.column[at(o)];
        y += relu2(data.shared_gate_up[at(unit * h + x.column[at(t)])]) * shared_down.value[at(o)];
      }
      expected[at(t * h + o)] = tolerances::round_to(data.dtype, y);
    }
    run.judge().require(chosen == 0 || chosen == 1 || chosen == 2 || chosen == 4,
                        "weights are powers of two");
  }
  LayerCall call(run, data);
  call.forward(false);
  run.judge().exact("LAYER-1d", "y", *call.y, expected);
  run.judge().exact("LAYER-1a", "ids", *call.ids, data.given_ids);
  // The 64 outputs of a token are zero where relu2 meets a negative gate, for a quarter of them and
  // more: it takes some tokens to say that few are, and that 50 differ.
  if (data.tokens >= 8) {
    run.judge().require(trust::share_of_zeros(expected) < 0.3, "few outputs are zero");
    run.judge().require(trust::distinct(expected) > 50, "outputs differ from each other");
  }
}

}  // namespace

void add_layer_exact(Registry& registry) {
  registry.add({"layer.exact",
                "Proves the order of stages, weights, ids and the shared expert on exact numbers.",
                {"LAYER-1a", "LAYER-1d"},
                {{"experts", {}, 4, 1024, "experts E"},
                 {"tokens", {}, 1, 1 << 16, "tokens T"},
                 {"load", {"balanced", "zipf", "one_hot", "ragged", "empty_first"}, 0, 0, "load"},
                 {"dtype", {"bf16", "fp32"}, 0, 0, "of the layer"},
                 {"placement", {"late", "early"}, 0, 0, "of the routing weight"},
                 {"shared", {"yes", "no"}, 0, 0, "with a shared expert"},
                 {"seed", {}, 0, std::int64_t{1} << 62, "of the random numbers"}},
                [](Tier tier) {
                  const auto cases = [](std::vector<std::string> experts,
                                        std::vector<std::string> tokens,
                                        std::vector<std::string> loads) {
                    return pairwise({{"experts", std::move(experts)},
                                     {"tokens", std::move(tokens)},
                                     {"load", std::move(loads)},
                                     {"dtype", {"bf16", "fp32"}},
                                     {"placement", {"late", "early"}},
                                     {"shared", {"yes", "no"}},
                                     {"seed", {"1"}}});
                  };
                  const auto smoke = cases({"16"}, {"33"}, {"balanced"});
                  if (tier == Tier::smoke) return smoke;
                  if (tier == Tier::full) return std::vector<Values>{};
                  return without(cases({"16", "64", "4"}, {"1", "33", "130"},
                                       {"balanced", "zipf", "ragged", "empty_first"}),
                                 smoke);
                },
                run_exact});
}

}  // namespace dropless::conformance
