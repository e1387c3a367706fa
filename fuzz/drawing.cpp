// SPDX-License-Identifier: Apache-2.0
// The distribution of fuzz cases, parameter by parameter.
#include "fuzz/drawing.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <mutex>

#include "conformance/cases/models.h"
#include "fuzz/families.h"
#include "fuzz/simpler.h"

namespace dropless::fuzz {
namespace {

using conformance::Parameter;
using conformance::Tier;

constexpr double most_work = 20000;  // us; most cases are far below
constexpr int tries = 48;
constexpr int rounds = 3;
constexpr Index small_size = 8;
constexpr Index few_ranks = 4, most_ranks = 8;  // threads of one process
constexpr Index longest_delay = 5;              // milliseconds
constexpr Index last_seed = 999999;

constexpr std::array<Index, 40> edges = {
    0,    1,    2,    3,    15,   16,   17,   31,   32,    33,    48,    63,   64,   65,
    127,  128,  129,  255,  256,  200,  257,  511,  512,   513,   600,   1023, 1024, 1025,
    2047, 2048, 2049, 4095, 4096, 4097, 8192, 8193, 16385, 32767, 32768, 32769};

// What the sizes of a case may reach: one of them further than the others, or all alike.
struct Caps {
  Index most = largest_size;
  std::string far = {};  // this parameter alone may reach `most`, where it is not empty
  Index others = largest_size;

  [[nodiscard]] Index of(std::string_view parameter) const {
    return far.empty() || parameter == far ? most : std::min(most, others);
  }
};

// Inside rc::gen::exec: picks that RapidCheck records.
Index pick(Index least, Index most) {
  return most <= least ? least : *rc::gen::inRange<Index>(least, most + 1);
}

bool chance(int percent) {
  return pick(0, 99) < percent;
}

Index pick_edge(Index least, Index most) {
  std::vector<Index> fitting;
  for (const Index edge : edges) {
    if (edge >= least && edge <= most) fitting.push_back(edge);
  }
  return fitting.empty() ? pick(least, most) : *rc::gen::elementOf(fitting);
}

// At least what the family demands; otherwise nothing above `cap`.
Index pick_size(const Parameter& parameter, Index cap) {
  const Index least = parameter.least;
  const Index most = std::min(parameter.most, std::max(cap, least));
  if (chance(6) && least == 0) return 0;
  if (chance(60)) return pick_edge(least, most);
  return chance(50) ? pick(least, std::min(most, least + 12)) : pick(least, most);
}

Index pick_integer(const Parameter& parameter) {
  const Index near = std::min(parameter.most, parameter.least + 8);
  if (chance(60)) return pick(parameter.least, near);
  if (chance(20)) return *rc::gen::element(parameter.least, parameter.most);
  return pick(parameter.least, std::min(parameter.most, parameter.least + largest_size));
}

// Widths of a model that are at most `cap`, down to the 32 that they are rounded up to.
Index pick_divisor(const Parameter& parameter, const Values& values, Index cap) {
  const std::string* name = find_value(values, "model");
  const conformance::Model* model = name == nullptr ? nullptr : conformance::find_model(*name);
  if (model == nullptr) return pick(parameter.least, parameter.most);
  const Index target = 32 * pick(1, std::max<Index>(cap / 32, 1));
  const Index widest = std::max({model->hidden, model->intermediate, model->shared_intermediate});
  return std::clamp((widest + target - 1) / target, parameter.least, parameter.most);
}

// A load as a list: empty experts, single rows, tile edges and anything else, in any order.
std::string pick_list(const Parameter& parameter, Index experts, Index cap) {
  const Index room = std::min<Index>(experts, static_cast<Index>(parameter.longest));
  const Index length = chance(70) ? pick(1, std::min<Index>(room, 8)) : pick(1, room);
  std::vector<Index> counts;
  for (Index left = cap; static_cast<Index>(counts.size()) < length;) {
    Index count = 0;
    if (!chance(35)) count = chance(50) ? pick_edge(1, left) : pick(0, std::min<Index>(left, 20));
    counts.push_back(std::clamp(std::min(count, left), parameter.least, parameter.most));
    left -= std::min(counts.back(), left);
  }
  return fmt::format("{}", fmt::join(counts, "."));
}

Index sum_of_list(const std::string& list) {
  Index sum = 0;
  for (const Index count : numbers_of(list)) sum += count;
  return sum;
}

// A list says how many rows there are; tokens only bound what one expert can get.
void pick_load(const Family& family, const Parameter& parameter, Values& values, Index cap) {
  const CaseId id{family.name, values};
  const Shape shape = shape_of(id);
  const bool by_token = find_value(values, "tokens") != nullptr;
  const std::string list = pick_list(parameter, shape.experts, by_token ? shape.tokens : cap);
  set_value(values, parameter.name, list);
  const auto rows = std::find_if(family.parameters.begin(), family.parameters.end(),
                                 [](const Parameter& one) { return one.name == "rows"; });
  if (rows == family.parameters.end()) return;
  set_value(values, "rows", std::to_string(std::max(sum_of_list(list), rows->least)));
}

std::string pick_value(const Parameter& parameter, const Caps& caps) {
  if (!parameter.words.empty()) return *rc::gen::elementOf(parameter.words);
  const auto at_most = [&](Index most) {
    return std::to_string(pick(parameter.least, std::min(parameter.most, most)));
  };
  if (parameter.name == "ranks") return at_most(chance(80) ? few_ranks : most_ranks);
  if (parameter.name == "delay") return at_most(longest_delay);
  if (parameter.name == "seed") {
    return std::to_string(pick(parameter.least, std::min(parameter.most, last_seed)));
  }
  return std::to_string(is_size(parameter.name) ? pick_size(parameter, caps.of(parameter.name))
                                                : pick_integer(parameter));
}

CaseId pick_case(const Family& family, const Caps& caps) {
  Values values;
  for (const Parameter& parameter : family.parameters) {
    values.emplace_back(parameter.name, pick_value(parameter, caps));
  }
  for (const Parameter& parameter : family.parameters) {  // what depends on the others
    if (parameter.name == "divisor") {
      set_value(values, "divisor",
                std::to_string(pick_divisor(parameter, values, caps.of("divisor"))));
    }
    if (parameter.longest > 0 && chance(parameter.words.empty() ? 100 : 40)) {
      pick_load(family, parameter, values, caps.of("rows"));
    }
  }
  if (find_value(values, "seed") == nullptr) {
    values.emplace_back("seed", std::to_string(pick(0, last_seed)));
  }
  return {family.name, std::move(values)};
}

// One of the family's own cases under another seed: always legal.
CaseId selected_case(const Family& family) {
  std::vector<Values> own;
  for (const Tier tier : {Tier::smoke, Tier::standard, Tier::full}) {
    for (Values& values : family.select(tier)) own.push_back(std::move(values));
    if (!own.empty()) break;
  }
  CaseId id{family.name, *rc::gen::elementOf(own)};
  const std::string seed = std::to_string(pick(0, last_seed));
  if (find_value(id.values, "seed") == nullptr) id.values.emplace_back("seed", seed);
  set_value(id.values, "seed", seed);
  return id;
}

bool fits(const Family& family, const CaseId& id, double work) {
  return work_of(id) <= work && (!family.objection || family.objection(id.values).empty());
}

// From a legal case, one value after the other where that stays legal and becomes no heavier than
// allowed: reaches what is legal in few places only.
CaseId walk_from(const Family& family, CaseId id) {
  for (int round = 0; round < rounds; ++round) {
    for (const Parameter& parameter : family.parameters) {
      CaseId other = id;
      const CaseId drawn = pick_case(family, {small_size});
      set_value(other.values, parameter.name, *find_value(drawn.values, parameter.name));
      if (fits(family, other, std::max(work_of(id), most_work))) id = std::move(other);
    }
  }
  return id;
}

// One of the sizes of a family; empty where it has none.
std::string pick_far(const Family& family) {
  std::vector<std::string> all;
  for (const Parameter& parameter : family.parameters) {
    if (is_size(parameter.name)) all.push_back(parameter.name);
  }
  return all.empty() ? "" : *rc::gen::elementOf(all);
}

// `ends`: the sums of the weights of the families up to each.
CaseId draw(const std::vector<const Family*>& families, const std::vector<Index>& ends) {
  const auto end = std::upper_bound(ends.begin(), ends.end(), pick(0, ends.back() - 1));
  const Family& family = *families[static_cast<std::size_t>(end - ends.begin())];
  // Now and then a heavy case: with many experts, which a layer of a published model has whatever
  // its widths; long in one direction, beyond whatever fits a block of an implementation; and
  // rarely beyond what 16 bits count.
  const Index kind = pick(0, 199);
  const bool many_experts = kind < 8;
  Caps caps;
  if (many_experts) caps.most = small_size;
  if (kind >= 8 && kind < 12) caps = {longest_size, pick_far(family), 64};
  if (kind == 12) caps = {beyond_16_bits, pick_far(family), small_size};
  for (int i = 0; i < tries; ++i) {
    CaseId id = pick_case(family, caps);
    const double limit = most_work * (many_experts ? 16 : kind == 12 || i >= tries / 2 ? 4 : 1);
    if (fits(family, id, limit)) return id;
    if (work_of(id) > limit) caps.most = std::max<Index>(caps.most * 3 / 4, small_size);
  }
  return walk_from(family, selected_case(family));
}

// RapidCheck records picks in one place of the process: hunts in several threads take turns.
CaseId recorded(const std::vector<const Family*>& families, const std::vector<Index>& ends,
                const rc::Random& random, int size) {
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  return rc::gen::exec([&] { return draw(families, ends); })(random, size).value();
}

}  // namespace

int weight_of(const Family& family) {
  if (family.name.find(".every_") != std::string::npos) return 1;  // all there is in one case
  if (!is_quick(family)) return 4;
  return 4 * static_cast<int>(std::clamp<std::size_t>(family.parameters.size(), 1, 8));
}

rc::Gen<CaseId> any_case(std::vector<const Family*> families) {
  std::vector<Index> ends;
  for (const Family* family : families) {
    ends.push_back(weight_of(*family) + (ends.empty() ? 0 : ends.back()));
  }
  return
      [families = std::move(families), ends = std::move(ends)](const rc::Random& random, int size) {
        return rc::shrinkable::shrinkRecur(
            recorded(families, ends, random, size), [families](const CaseId& id) {
              const auto own = std::find_if(families.begin(), families.end(),
                                            [&](const Family* f) { return f->name == id.family; });
              return simpler_cases(**own, id);
            });
      };
}

}  // namespace dropless::fuzz
