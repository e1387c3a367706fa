// SPDX-License-Identifier: Apache-2.0
// Typical cases: the first case of the plain families, its parameters turned to the ordinary.
#include "tests/museum/typical.h"

#include <algorithm>

namespace dropless::museum {
namespace {

using conformance::CaseId;
using conformance::Family;
using conformance::Parameter;
using conformance::Tier;
using conformance::Values;

// One plain question per operation; families about ties, masks, NaN, edges, strides and refusals
// are what typical tests do not have.
const std::vector<std::string>& plain_families() {
  static const std::vector<std::string> names = {"routing.model",
                                                 "routing.backward_model",
                                                 "routing.bias_update",
                                                 "permutation.plan",
                                                 "permutation.copy",
                                                 "permutation.unpermute",
                                                 "permutation.permute_backward",
                                                 "permutation.unpermute_backward",
                                                 "mxfp8.quantize",
                                                 "mxfp8.dequantize",
                                                 "grouped_gemm.fprop",
                                                 "grouped_gemm.dgrad",
                                                 "grouped_gemm.wgrad",
                                                 "grouped_gemm.mxfp8",
                                                 "activation.forward",
                                                 "activation.backward",
                                                 "losses.balance",
                                                 "losses.z",
                                                 "losses.cross_entropy",
                                                 "optimizer.adamw",
                                                 "layer.bounded",
                                                 "exchange.dispatch",
                                                 "exchange.combine",
                                                 "exchange.dispatch_backward",
                                                 "exchange.combine_backward"};
  return names;
}

// What is taken where the parameter allows it, the first that does.
const std::vector<std::pair<std::string, std::vector<std::string>>>& ordinary() {
  static const std::vector<std::pair<std::string, std::vector<std::string>>> values = {
      {"load", {"balanced"}},     {"data", {"zero_mean"}},    {"zones", {"tight", "none"}},
      {"strides", {"dense"}},     {"mask", {"no", "none"}},   {"kind", {"ordinary"}},
      {"widths", {"even"}},       {"scope", {"micro_batch"}}, {"labels", {"all"}},
      {"columns", {"hidden"}},    {"accumulate", {"none"}},   {"alpha", {"one"}},
      {"scale_padding", {"ones"}}};
  return values;
}

void make_ordinary(const Family& family, Values& values) {
  for (auto& [key, value] : values) {
    for (const auto& [name, wanted] : ordinary()) {
      if (name != key) continue;
      const auto known = std::find_if(family.parameters.begin(), family.parameters.end(),
                                      [&](const Parameter& p) { return p.name == name; });
      for (const std::string& word : wanted) {
        const bool allowed =
            known != family.parameters.end() &&
            std::find(known->words.begin(), known->words.end(), word) != known->words.end();
        if (!allowed) continue;
        value = word;
        break;
      }
    }
  }
}

// One rank alone exchanges nothing.
bool has_one_rank(const Values& values) {
  return std::find(values.begin(), values.end(), Values::value_type{"ranks", "1"}) != values.end();
}

}  // namespace

std::vector<CaseId> typical_cases(const std::string& stage) {
  std::vector<CaseId> cases;
  for (const std::string& name : plain_families()) {
    const Family* family = conformance::registry().find(name);
    if (family == nullptr || family->stage() != stage) continue;
    std::vector<Values> all = family->select(Tier::smoke);
    std::erase_if(all, has_one_rank);
    if (all.size() > 4) all.resize(4);
    for (Values& values : all) {
      make_ordinary(*family, values);
      const CaseId id{name, values};
      const bool legal = !family->objection || family->objection(values).empty();
      if (legal && std::find(cases.begin(), cases.end(), id) == cases.end()) cases.push_back(id);
    }
  }
  return cases;
}

}  // namespace dropless::museum
