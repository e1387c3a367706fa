// SPDX-License-Identifier: Apache-2.0
// Candidates for shrinking, parameter by parameter.
#include "fuzz/simpler.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <set>

#include "conformance/cases/models.h"

namespace dropless::fuzz {
namespace {

using conformance::Parameter;
using Strings = std::vector<std::string>;

// Words that say "nothing special", in any family, the plainest first.
constexpr std::array<std::string_view, 20> plain_words = {
    "none",    "no",    "dense",        "one",    "exact", "plain", "fp32",
    "i32",     "e4m3",  "tight",        "linear", "model", "late",  "balanced",
    "forward", "fprop", "concatenated", "bf16",   "all",   "yes"};

std::size_t plainness(const Parameter& parameter, const std::string& word) {
  const auto plain = std::find(plain_words.begin(), plain_words.end(), word);
  if (plain != plain_words.end()) return static_cast<std::size_t>(plain - plain_words.begin());
  const auto own = std::find(parameter.words.begin(), parameter.words.end(), word);
  return plain_words.size() + static_cast<std::size_t>(own - parameter.words.begin());
}

// Small models first: experts, then widths.
Index size_of_model(const std::string& name) {
  const conformance::Model* model = conformance::find_model(name);
  return model == nullptr ? 0 : model->experts * 1000000 + model->hidden + model->intermediate;
}

Strings simpler_words(const Parameter& parameter, const std::string& word) {
  const auto rank = [&](const std::string& one) {
    return parameter.name == "model" ? static_cast<std::size_t>(size_of_model(one))
                                     : plainness(parameter, one);
  };
  Strings words;
  for (const std::string& other : parameter.words) {
    if (rank(other) < rank(word)) words.push_back(other);
  }
  std::stable_sort(words.begin(), words.end(),
                   [&](const std::string& a, const std::string& b) { return rank(a) < rank(b); });
  // A long way down is taken in halves, like a number.
  Strings chosen;
  for (std::size_t left = words.size(), at = 0; left > 0; at += (left + 1) / 2, left /= 2) {
    chosen.push_back(words[std::min(at, words.size() - 1)]);
  }
  return chosen;
}

template <class T>
std::vector<T> all_of(rc::Seq<T> sequence) {
  std::vector<T> all;
  for (auto next = sequence.next(); next; next = sequence.next()) all.push_back(*next);
  return all;
}

// A larger divisor makes smaller widths; everything else becomes smaller itself.
Strings simpler_integers(const Parameter& parameter, const std::string& text) {
  Index value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  if (parameter.name == "seed") {
    Strings seeds;
    for (Index seed = 1; seed <= 3 && seed < value; ++seed) seeds.push_back(std::to_string(seed));
    return seeds;
  }
  const Index target = parameter.name == "divisor" ? parameter.most : parameter.least;
  Strings smaller;
  for (const Index one : all_of(rc::shrink::towards(value, target))) {
    smaller.push_back(std::to_string(one));
  }
  return smaller;
}

std::string text_of(const std::vector<Index>& list) {
  return fmt::format("{}", fmt::join(list, "."));
}

Strings simpler_lists(const Parameter& parameter, const std::string& text) {
  const std::vector<Index> list = numbers_of(text);
  Strings simpler;
  const auto add = [&](std::vector<Index> other) {
    if (!other.empty()) simpler.push_back(text_of(other));
  };
  if (list.empty()) {  // a word: short vectors that look like it in one respect
    for (const std::vector<Index>& other : std::vector<std::vector<Index>>{{0},
                                                                           {1},
                                                                           {2},
                                                                           {0, 1},
                                                                           {1, 0},
                                                                           {1, 1},
                                                                           {1, 0, 1},
                                                                           {17},
                                                                           {33},
                                                                           {33, 1},
                                                                           {65, 0, 1},
                                                                           {129, 1}}) {
      add(other);
    }
    return simpler;
  }
  for (auto& other : all_of(rc::shrink::removeChunks(list))) add(std::move(other));
  const auto smaller = [&](Index count) { return rc::shrink::towards(count, parameter.least); };
  for (auto& other : all_of(rc::shrink::eachElement(list, smaller))) add(std::move(other));
  return simpler;
}

bool is_legal(const Family& family, const CaseId& id) {
  conformance::Registry one;
  one.add(family);
  try {
    return one.resolve(id.text()) == id;
  } catch (const conformance::UsageError&) {
    return false;
  }
}

}  // namespace

std::vector<Index> numbers_of(const std::string& list) {
  std::vector<Index> numbers;
  const char* end = list.data() + list.size();
  for (const char* at = list.data(); at <= end && !list.empty();) {
    Index number = 0;
    const auto [next, error] = std::from_chars(at, end, number);
    if (error != std::errc{}) return {};
    numbers.push_back(number);
    if (next != end && *next != '.') return {};
    at = next + 1;
  }
  return numbers;
}

rc::Seq<CaseId> simpler_cases(const Family& family, const CaseId& id) {
  std::vector<CaseId> candidates;
  std::set<std::string> seen{id.text()};
  const auto try_value = [&](const std::string& key, const std::string& value) {
    CaseId other = id;
    set_value(other.values, key, value);
    const std::vector<Index> load = key == "load" ? numbers_of(value) : std::vector<Index>{};
    if (!load.empty() && find_value(other.values, "rows") != nullptr) {
      Index sum = 0;
      for (const Index count : load) sum += count;
      set_value(other.values, "rows", std::to_string(sum));
    }
    if (seen.insert(other.text()).second && is_legal(family, other)) candidates.push_back(other);
  };
  const auto each = [&](const auto& wanted, const auto& alternatives) {
    for (const auto& [key, value] : id.values) {
      const auto found =
          std::find_if(family.parameters.begin(), family.parameters.end(),
                       [&name = key](const Parameter& one) { return one.name == name; });
      const Parameter seed = conformance::integer_parameter("seed", 0, 1 << 30, "of the numbers");
      const Parameter& parameter = found == family.parameters.end() ? seed : *found;
      if (!wanted(parameter)) continue;
      for (const std::string& other : alternatives(parameter, value)) try_value(key, other);
    }
  };
  each([](const Parameter& p) { return p.longest > 0; }, simpler_lists);
  each([](const Parameter& p) { return p.name == "model"; }, simpler_words);
  each([](const Parameter& p) { return p.words.empty() && p.longest == 0 && p.name != "seed"; },
       simpler_integers);
  each([](const Parameter& p) { return !p.words.empty() && p.name != "model"; },
       [](const Parameter& p, const std::string& value) {
         return p.longest > 0 && !numbers_of(value).empty() ? Strings{} : simpler_words(p, value);
       });
  each([](const Parameter& p) { return p.name == "seed"; }, simpler_integers);
  return rc::seq::fromContainer(candidates);
}

}  // namespace dropless::fuzz
