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

Values named(const std::vector<Axis>& axes, const Choice& choice) {
  Values out;
  for (std::size_t a = 0; a < axes.size(); ++a) {
    out.emplace_back(axes[a].name, axes[a].values[choice[a]]);
  }
  return out;
}

// Visits every combination, the last axis fastest; only what changed is assigned anew, since large
// products are filtered here.
template <class Visit>
void each_choice(const std::vector<Axis>& axes, Visit visit) {
  for (const Axis& axis : axes) {
    if (axis.values.empty()) return;
  }
  Choice choice(axes.size(), 0);
  Values values = named(axes, choice);
  for (bool more = true; more;) {
    visit(choice, values);
    more = false;
    for (std::size_t a = axes.size(); a-- > 0 && !more;) {
      choice[a] = (choice[a] + 1) % axes[a].values.size();
      values[a].second = axes[a].values[choice[a]];
      more = choice[a] != 0;
    }
  }
}

}  // namespace

std::vector<Values> product(const std::vector<Axis>& axes) {
  std::vector<Values> out;
  each_choice(axes, [&](const Choice&, const Values& values) { out.push_back(values); });
  return out;
}

std::vector<Values> pairwise(const std::vector<Axis>& axes,
                             const std::function<bool(const Values&)>& allowed) {
  std::vector<Choice> candidates;
  each_choice(axes, [&](const Choice& choice, const Values& values) {
    if (!allowed || allowed(values)) candidates.push_back(choice);
  });
  std::vector<Values> out;
  if (axes.size() < 2) {
    for (const Choice& choice : candidates) out.push_back(named(axes, choice));
    return out;
  }
  // Only pairs that some allowed row contains can be asked for.
  const Pairs pairs(axes);
  std::vector<std::uint8_t> open(pairs.size(), 0);
  for (const Choice& choice : candidates) {
    pairs.each(choice, [&](std::size_t pair) { open[pair] = 1; });
  }
  const auto take = [&](std::size_t i) {
    out.push_back(named(axes, candidates[i]));
    pairs.each(candidates[i], [&](std::size_t pair) { open[pair] = 0; });
  };
  const auto gain_of = [&](std::size_t i) {
    int gain = 0;
    pairs.each(candidates[i], [&](std::size_t pair) { gain += open[pair]; });
    return gain;
  };
  // Greedy: the row with most open pairs, the earliest among equals. Gains only fall, so a stored
  // one that still holds when it comes to the top of the heap is the largest.
  using Entry = std::pair<int, std::size_t>;
  const auto later = [](const Entry& a, const Entry& b) {
    return a.first != b.first ? a.first < b.first : a.second > b.second;
  };
  if (!candidates.empty()) take(0);
  std::vector<Entry> heap;
  for (std::size_t i = 1; i < candidates.size(); ++i) heap.emplace_back(gain_of(i), i);
  std::make_heap(heap.begin(), heap.end(), later);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const auto [stored, i] = heap.back();
    heap.pop_back();
    const int gain = gain_of(i);
    if (gain == 0) continue;
    if (gain == stored) {
      take(i);
    } else {
      heap.emplace_back(gain, i);
      std::push_heap(heap.begin(), heap.end(), later);
    }
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
