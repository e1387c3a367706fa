// SPDX-License-Identifier: Apache-2.0
// Classification of drawn cases, and required shares.
#include "fuzz/labels.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "fuzz/drawing.h"
#include "fuzz/simpler.h"

namespace dropless::fuzz {
namespace {

using conformance::Parameter;
using Strings = std::vector<std::string>;

bool contains(const Strings& list, std::string_view word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

// One below, at, and one above a multiple of 16 that is a power of two.
bool at_tile_edge(Index size) {
  for (const Index tile : {16, 32, 64, 128, 256}) {
    if (size >= tile - 1 && size <= tile + 1) return true;
  }
  return false;
}

struct Load {
  bool list = false, empty_expert = false, one_expert = false, nothing = false, tile_edge = false;
};

Load load_of_list(const std::vector<Index>& counts, Index experts) {
  Load load;
  const auto busy = std::count_if(counts.begin(), counts.end(), [](Index n) { return n > 0; });
  load.list = true;
  load.empty_expert = busy < experts;
  load.one_expert = busy == 1;
  load.nothing = busy == 0;
  load.tile_edge = std::any_of(counts.begin(), counts.end(), at_tile_edge);
  return load;
}

Load load_of_word(const std::string& word, Index experts, Index rows) {
  Load load;
  load.nothing = word == "all_empty" || (rows == 0 && word != "one_row_each");
  load.empty_expert = load.nothing || word.starts_with("empty_") ||
                      (experts > 1 && (word == "alternating" || word == "one_hot")) ||
                      (rows < experts && word != "one_row_each");
  load.one_expert = word == "one_hot" && rows > 0;
  load.tile_edge = word == "tile_edge" && rows >= 17;
  return load;
}

void add_load(const Family& family, const CaseId& id, Strings& labels) {
  const auto parameter = std::find_if(family.parameters.begin(), family.parameters.end(),
                                      [](const Parameter& p) { return p.longest > 0; });
  if (parameter == family.parameters.end()) return;
  const std::string& value = *find_value(id.values, parameter->name);
  const Shape shape = shape_of(id);
  const Index rows = rows_parameter(id) == "tokens" ? shape.tokens * shape.top_k : shape.tokens;
  const std::vector<Index> list = numbers_of(value);
  const Load load =
      list.empty() ? load_of_word(value, shape.experts, rows) : load_of_list(list, shape.experts);
  labels.emplace_back("with a load");
  if (load.list) labels.emplace_back("a load vector of its own");
  if (load.empty_expert) labels.emplace_back("an expert without rows");
  if (load.one_expert) labels.emplace_back("one expert has all rows");
  if (load.nothing) labels.emplace_back("no expert has rows");
  if (load.tile_edge) labels.emplace_back("an expert at a tile edge");
}

void add_sizes(const Family& family, const CaseId& id, Strings& labels) {
  const std::string_view rows = rows_parameter(id);
  for (const Parameter& parameter : family.parameters) {
    if (parameter.name != rows || parameter.least > 0 || parameter.most < largest_size) continue;
    const Index size = integer_of(id, rows, 0);
    labels.emplace_back("with any number of rows");
    if (size == 0) labels.emplace_back("0 rows or tokens");
    if (size == 1) labels.emplace_back("1 row or token");
    // Of a rank there are few, so that the case takes milliseconds.
    if (find_value(id.values, "ranks") != nullptr) continue;
    labels.emplace_back("with any number of rows of one rank");
    if (at_tile_edge(size)) labels.emplace_back("rows or tokens at a tile edge");
  }
}

void add_words(const Family& family, const CaseId& id, Strings& labels) {
  const auto once = [&](const std::string& label) {
    if (!contains(labels, label)) labels.push_back(label);
  };
  for (const Parameter& parameter : family.parameters) {
    const std::string& value = *find_value(id.values, parameter.name);
    if (contains(parameter.words, "bf16") && contains(parameter.words, "fp32")) {
      once("with a choice of dtype");
    }
    for (const char* dtype : {"bf16", "fp32", "fp16", "e4m3", "e5m2"}) {
      if (value == dtype) once(dtype);
    }
    if (contains(parameter.words, "e4m3")) once("with an 8-bit format");
    if (parameter.name == "strides") once("with a choice of strides");
    if (value == "gaps") once("rows with gaps");
    if (parameter.name == "zones" && contains(parameter.words, "padded")) once("with zones");
    if (value == "padded") once("padded zones");
    if (parameter.name == "data" && contains(parameter.words, "cancelling")) {
      once("with a data regime");
      once("data " + value);
    }
    if (parameter.name == "what" || family.name.find("refus") != std::string::npos) {
      once("special or illegal requests");
    }
  }
}

}  // namespace

std::vector<std::string> labels_of(const Family& family, const CaseId& id) {
  Strings labels = {"cases", "stage " + family.stage(), family.name};
  add_load(family, id, labels);
  add_sizes(family, id, labels);
  add_words(family, id, labels);
  return labels;
}

std::vector<Requirement> requirements_for(const std::vector<const Family*>& families) {
  std::vector<Requirement> all = {
      {"a load vector of its own", "with a load", 0.25},
      {"an expert without rows", "with a load", 0.40},
      {"one expert has all rows", "with a load", 0.05},
      {"no expert has rows", "with a load", 0.03},
      {"an expert at a tile edge", "with a load", 0.10},
      {"0 rows or tokens", "with any number of rows", 0.03},
      {"1 row or token", "with any number of rows", 0.03},
      {"rows or tokens at a tile edge", "with any number of rows of one rank", 0.15},
      {"bf16", "with a choice of dtype", 0.30},
      {"fp32", "with a choice of dtype", 0.30},
      {"e4m3", "with an 8-bit format", 0.15},
      {"rows with gaps", "with a choice of strides", 0.35},
      {"padded zones", "with zones", 0.25},
      {"data exact", "with a data regime", 0.10},
      {"data same_sign", "with a data regime", 0.10},
      {"data zero_mean", "with a data regime", 0.10},
      {"data cancelling", "with a data regime", 0.10}};
  double sum = 0;
  std::map<std::string, double> fair;
  for (const Family* family : families) {
    const double weight = weight_of(*family);
    sum += weight;
    fair[family->name] += weight;
    fair["stage " + family->stage()] += weight;
    if (std::any_of(family->parameters.begin(), family->parameters.end(),
                    [](const Parameter& p) { return p.longest > 0; })) {
      fair["with a load"] += weight;
    }
  }
  for (const auto& [label, weight] : fair) all.push_back({label, "cases", weight / sum / 2});
  return all;
}

void Tally::add(const Family& family, const CaseId& id) {
  for (const std::string& label : labels_of(family, id)) ++counts_[label];
}

std::int64_t Tally::count(const std::string& label) const {
  const auto found = counts_.find(label);
  return found == counts_.end() ? 0 : found->second;
}

bool Tally::meets(const Requirement& requirement) const {
  const auto among = static_cast<double>(count(requirement.among));
  const double expected = among * requirement.share;
  const double deviation = std::sqrt(expected * (1 - requirement.share));
  return static_cast<double>(count(requirement.label)) >= expected - 4 * deviation;
}

}  // namespace dropless::fuzz
