// SPDX-License-Identifier: Apache-2.0
// Pairwise covering by a deterministic greedy.
#include "conformance/cases/selection.h"

#include <algorithm>
#include <cstdint>
#include <stdexcept>

namespace dropless::conformance {
namespace {

using Choice = std::vector<std::size_t>;  // one value index per axis

// Pairs of values of two different axes, numbered: slot of the one value times all slots + slot of
// the other. Only the half with the earlier axis first is used.
class Pairs {
 public:
  explicit Pairs(const std::vector<Axis>& axes) {
    for (const Axis& axis : axes) {
      first_.push_back(slots_);
      slots_ += axis.values.size();
    }
  }
  [[nodiscard]] std::size_t size() const { return slots_ * slots_; }
  template <class Visit>
  void each(const Choice& choice, Visit visit) const {
    for (std::size_t a = 0; a < choice.size(); ++a) {
      const std::size_t row = (first_[a] + choice[a]) * slots_;
      for (std::size_t b = a + 1; b < choice.size(); ++b) visit(row + first_[b] + choice[b]);
    }
  }

 private:
  std::vector<std::size_t> first_;
  std::size_t slots_ = 0;
};

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
  const Pairs pairs(axes);
  std::vector<std::uint8_t> open(pairs.size(), 0);
  for (const Choice& choice : candidates) {
    pairs.each(choice, [&](std::size_t pair) { open[pair] = 1; });
  }
  auto left = std::count(open.begin(), open.end(), 1);

  std::vector<Values> out;
  while (left > 0) {
    std::size_t best = 0;
    int best_gain = 0;
    for (std::size_t i = 0; i < (out.empty() ? 1 : candidates.size()); ++i) {
      int gain = 0;
      pairs.each(candidates[i], [&](std::size_t pair) { gain += open[pair]; });
      if (gain > best_gain) best = i, best_gain = gain;
    }
    out.push_back(named(axes, candidates[best]));
    pairs.each(candidates[best], [&](std::size_t pair) { open[pair] = 0; });
    left -= best_gain;
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
