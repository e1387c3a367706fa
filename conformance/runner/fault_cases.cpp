// SPDX-License-Identifier: Apache-2.0
// Choosing the cases for a planted fault, and their order.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "conformance/runner/fault_hunt.h"

namespace dropless::conformance {
namespace {

bool contains(const std::vector<std::string>& list, const std::string& item) {
  return std::find(list.begin(), list.end(), item) != list.end();
}

// GENERAL clauses are in families of every stage, where a fault of one stage cannot be seen.
bool names_foreign(const Family& family, const std::vector<std::string>& clauses) {
  return std::any_of(clauses.begin(), clauses.end(), [&](const std::string& clause) {
    return !clause.starts_with("GENERAL-") && contains(family.clauses, clause);
  });
}

bool names_any(const Family& family, const std::vector<std::string>& clauses) {
  return std::any_of(clauses.begin(), clauses.end(),
                     [&](const std::string& clause) { return contains(family.clauses, clause); });
}

constexpr int classes = 4;

// 0 .. classes - 1, or none: the family is not asked.
std::optional<int> class_of(const Family& family, const FaultEntry& fault, bool alone) {
  const bool home = family.stage() == fault.stage();
  const std::vector<std::string> first(fault.clauses.begin(), fault.clauses.begin() + 1);
  if (alone) {
    if (home ? names_any(family, first) : names_foreign(family, first)) return 0;
    return std::nullopt;
  }
  if (home && names_any(family, first)) return 0;
  if (home) return names_any(family, fault.clauses) ? 1 : 2;
  if (names_foreign(family, fault.clauses)) return 3;
  return std::nullopt;
}

// Cases that bring a value of a parameter which none before brought, the rarest value first and, of
// equally rare ones, the smaller numbers: what 1024 ranks show, and ordinary cases do not, should
// not wait for all of them.
std::vector<Values> take_rare_values(std::vector<Values>& cases) {
  std::map<std::pair<std::string, std::string>, std::size_t> frequency;
  for (const Values& one : cases) {
    for (const auto& value : one) ++frequency[value];
  }
  struct Rare {
    std::size_t frequency;
    double size;
    Values values;
  };
  std::set<std::pair<std::string, std::string>> seen;
  std::vector<Values> others;
  std::vector<Rare> rare;
  for (Values& one : cases) {
    bool brings_one = false;
    Rare entry{cases.size(), 0, {}};
    for (const auto& value : one) {
      if (value.first == "seed") continue;
      brings_one = seen.insert(value).second || brings_one;
      entry.frequency = std::min(entry.frequency, frequency[value]);
      entry.size += std::log1p(std::abs(std::strtod(value.second.c_str(), nullptr)));
    }
    if (!brings_one) {
      others.push_back(std::move(one));
      continue;
    }
    entry.values = std::move(one);
    rare.push_back(std::move(entry));
  }
  std::stable_sort(rare.begin(), rare.end(), [](const Rare& a, const Rare& b) {
    return std::tie(a.frequency, a.size) < std::tie(b.frequency, b.size);
  });
  cases = std::move(others);
  std::vector<Values> first;
  for (Rare& entry : rare) first.push_back(std::move(entry.values));
  return first;
}

// Far apart from each other first: neighbours in a list of cases differ in one parameter only.
std::vector<Values> spread(std::vector<Values> cases) {
  const std::size_t count = cases.size();
  std::size_t step = count * 618 / 1000 + 1;
  while (std::gcd(step, count) > 1) ++step;
  std::vector<Values> ordered;
  for (std::size_t i = 0; i < count; ++i) {
    ordered.push_back(std::move(cases[(count / 2 + i * step) % count]));
  }
  const std::vector<Values> rare = take_rare_values(ordered);
  std::vector<Values> mixed;  // a fault that any case shows waits for no large one
  for (std::size_t i = 0; i < std::max(rare.size(), ordered.size()); ++i) {
    if (i < ordered.size()) mixed.push_back(std::move(ordered[i]));
    if (i < rare.size()) mixed.push_back(rare[i]);
  }
  return mixed;
}

}  // namespace

std::vector<CaseId> cases_for(const Registry& registry, const FaultEntry& fault, Tier tier,
                              bool alone) {
  std::vector<CaseId> ordered;
  for (int rank = 0; rank < 2 * classes; ++rank) {
    std::vector<std::vector<CaseId>> families;
    for (const Family& family : registry.families()) {
      // In a class those last whose cases wait on purpose.
      if (class_of(family, fault, alone) != rank / 2 || family.waits != (rank % 2 == 1)) continue;
      families.emplace_back();
      for (Values& values : spread(family.select(tier))) {
        families.back().push_back({family.name, std::move(values)});
      }
    }
    for (std::size_t turn = 0, added = 1; added > 0; ++turn) {
      added = 0;
      for (const auto& cases : families) {
        if (turn >= cases.size()) continue;
        ordered.push_back(cases[turn]);
        ++added;
      }
    }
  }
  return ordered;
}

}  // namespace dropless::conformance
