// SPDX-License-Identifier: Apache-2.0
// Pairwise covering by a deterministic greedy.
#include "conformance/cases/selection.h"

#include <algorithm>
#include <set>
#include <stdexcept>
#include <tuple>

namespace dropless::conformance {
namespace {

using Choice = std::vector<std::size_t>;  // one value index per axis
// (axis a, value, axis b, value) with a < b
using Pair = std::tuple<std::size_t, std::size_t, std::size_t, std::size_t>;

std::vector<Choice> every_choice(const std::vector<Axis>& axes) {
  std::vector<Choice> all = {{}};
  for (const Axis& axis : axes) {
    std::vector<Choice> longer;
    for (const Choice& choice : all) {
      for (std::size_t v = 0; v < axis.values.size(); ++v) {
        longer.push_back(choice);
        longer.back().push_back(v);
      }
    }
    all = std::move(longer);
  }
  return all;
}

Values named(const std::vector<Axis>& axes, const Choice& choice) {
  Values out;
  for (std::size_t a = 0; a < axes.size(); ++a) {
    out.emplace_back(axes[a].name, axes[a].values[choice[a]]);
  }
  return out;
}

template <class Visit>
void each_pair(const Choice& choice, Visit visit) {
  for (std::size_t a = 0; a < choice.size(); ++a) {
    for (std::size_t b = a + 1; b < choice.size(); ++b) visit(Pair{a, choice[a], b, choice[b]});
  }
}

}  // namespace

std::vector<Values> product(const std::vector<Axis>& axes) {
  std::vector<Values> out;
  for (const Choice& choice : every_choice(axes)) out.push_back(named(axes, choice));
  return out;
}

std::vector<Values> pairwise(const std::vector<Axis>& axes,
                             const std::function<bool(const Values&)>& allowed) {
  std::vector<Choice> candidates = every_choice(axes);
  if (allowed) {
    std::erase_if(candidates, [&](const Choice& choice) { return !allowed(named(axes, choice)); });
  }
  if (axes.size() < 2) {
    std::vector<Values> out;
    for (const Choice& choice : candidates) out.push_back(named(axes, choice));
    return out;
  }
  // Only pairs that some allowed row contains can be asked for.
  std::set<Pair> open;
  for (const Choice& choice : candidates) each_pair(choice, [&](const Pair& p) { open.insert(p); });

  std::vector<Values> out;
  while (!open.empty()) {
    std::size_t best = 0, best_gain = 0;
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      std::size_t gain = 0;
      each_pair(candidates[i], [&](const Pair& p) { gain += open.count(p); });
      if (out.empty()) gain = i == 0 ? 1 : 0;  // the first row is the first allowed one
      if (gain > best_gain) best = i, best_gain = gain;
    }
    out.push_back(named(axes, candidates[best]));
    each_pair(candidates[best], [&](const Pair& p) { open.erase(p); });
  }
  return out;
}

std::vector<Values> without(std::vector<Values> more, const std::vector<Values>& fewer) {
  std::erase_if(more, [&](const Values& row) {
    return std::find(fewer.begin(), fewer.end(), row) != fewer.end();
  });
  return more;
}

const std::string& value_of(const Values& values, std::string_view key) {
  for (const auto& [name, value] : values) {
    if (name == key) return value;
  }
  throw std::logic_error("no value for the key '" + std::string(key) + "'");
}

}  // namespace dropless::conformance
