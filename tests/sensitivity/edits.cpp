// SPDX-License-Identifier: Apache-2.0
// Changes of inputs, by what their numbers mean.
#include "tests/sensitivity/edits.h"

#include <dropless/formats/tensor_view.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

namespace dropless::sensitivity {
namespace {

using Index = std::int64_t;
using Site = std::function<Index(const TensorView&)>;  // row-major
using Change = std::function<bool(const TensorView&, Index)>;

struct Place {
  const char* name;
  Site site;
};

Index largest(const TensorView& x) {
  Index best = 0;
  double most = -1;
  for (Index i = 0; i < x.size(); ++i) {
    const double magnitude = std::abs(x.load_flat(i));
    if (!std::isfinite(magnitude) || magnitude <= most) continue;
    most = magnitude, best = i;
  }
  return best;
}

const std::vector<Place>& places() {
  static const std::vector<Place> all = {
      {"middle", [](const TensorView& x) { return x.size() / 2; }},
      {"first", [](const TensorView&) { return Index{0}; }},
      {"last", [](const TensorView& x) { return x.size() - 1; }},
      {"at a third", [](const TensorView& x) { return x.size() / 3; }},
      {"at two thirds", [](const TensorView& x) { return 2 * x.size() / 3; }},
  };
  return all;
}

void add(std::vector<Edit>& edits, const char* what, const Place& place, const Change& change) {
  edits.push_back(
      {std::string(what) + " " + place.name, [place, change](const dropless_tensor& tensor) {
         const TensorView view(tensor);
         return view.size() > 0 && change(view, place.site(view));
       }});
}

void add_everywhere(std::vector<Edit>& edits, const char* what, const Change& change) {
  for (const Place& place : places()) add(edits, what, place, change);
}

Index width_of(const TensorView& x) {
  return x.rank() == 0 ? 1 : x.shape(x.rank() - 1);
}

bool store_if_new(const TensorView& x, Index at, Index value) {
  if (x.load_integer_flat(at) == value) return false;
  x.store_integer_flat(value, at);
  return true;
}

// ---- values

bool negate(const TensorView& x, Index at) {
  if (!is_floating_point(x.dtype())) return store_if_new(x, at, x.load_integer_flat(at) ^ 0x80);
  const double value = x.load_flat(at);
  if (value == 0 || std::isnan(value)) return false;
  x.store_flat(-value, at);
  return true;
}

bool enlarge(const TensorView& x, Index at) {
  if (!is_floating_point(x.dtype())) return store_if_new(x, at, x.load_integer_flat(at) ^ 1);
  const double value = x.load_flat(at);
  x.store_flat(value == 0 || !std::isfinite(value) ? 1 : 2 * value, at);
  return true;
}

bool swap_rows(const TensorView& x, Index at) {
  const Index width = x.rank() < 2 ? 1 : width_of(x);
  const Index rows = x.size() / width, row = at / width;
  if (rows < 2) return false;
  const Index other = row + 1 < rows ? row + 1 : 0;
  bool different = false;
  for (Index c = 0; c < width; ++c) {
    const Index a = row * width + c, b = other * width + c;
    const Index mine = x.load_integer_flat(a), theirs = x.load_integer_flat(b);
    different |= mine != theirs;
    x.store_integer_flat(theirs, a), x.store_integer_flat(mine, b);
  }
  return different;
}

// Rows of the first axis, such as all that belongs to one expert.
bool negate_slice(const TensorView& x, Index at) {
  if (x.rank() < 2 || x.shape(0) == 0) return false;
  const Index width = x.size() / x.shape(0), first = at / width * width;
  bool different = false;
  for (Index i = first; i < first + width; ++i) different |= negate(x, i);
  return different;
}

std::vector<Edit> of_values() {
  std::vector<Edit> edits;
  const Place most = {"largest", largest};
  add(edits, "negate", most, negate);
  add_everywhere(edits, "negate", negate);
  add(edits, "enlarge", most, enlarge);
  add_everywhere(edits, "enlarge", enlarge);
  add_everywhere(edits, "swap rows", swap_rows);
  add_everywhere(edits, "negate all of the first axis", negate_slice);
  return edits;
}

std::vector<Edit> of_scales() {
  std::vector<Edit> edits;
  add_everywhere(edits, "next scale", [](const TensorView& x, Index at) {
    const Index byte = x.load_integer_flat(at);
    return byte < 255 && store_if_new(x, at, byte < 254 ? byte + 1 : byte - 1);
  });
  add_everywhere(edits, "scale before", [](const TensorView& x, Index at) {
    const Index byte = x.load_integer_flat(at);
    return byte > 0 && byte < 255 && store_if_new(x, at, byte - 1);
  });
  add_everywhere(edits, "other byte", [](const TensorView& x, Index at) {
    return store_if_new(x, at, x.load_integer_flat(at) ^ 1);
  });
  // Packed scales are mostly padding: every byte moves, and those of real blocks with them.
  add(edits, "next scale", {"everywhere", [](const TensorView&) { return Index{0}; }},
      [](const TensorView& x, Index) {
        for (Index i = 0; i < x.size(); ++i) {
          const Index byte = x.load_integer_flat(i);
          if (byte < 254) x.store_integer_flat(byte + 1, i);
        }
        return true;
      });
  return edits;
}

// ---- integers

struct Row {
  Index first, width;
};
Row row_of(const TensorView& x, Index at) {
  const Index width = std::max<Index>(width_of(x), 1);
  return {at / width * width, width};
}

std::vector<Edit> of_ids() {
  std::vector<Edit> edits;
  add_everywhere(edits, "another expert", [](const TensorView& x, Index at) {
    const Row row = row_of(x, at);
    std::set<Index> taken;
    Index most = 0;
    for (Index i = 0; i < x.size(); ++i) most = std::max(most, x.load_integer_flat(i));
    for (Index j = 0; j < row.width; ++j) taken.insert(x.load_integer_flat(row.first + j));
    for (Index e = 0; e <= most; ++e) {
      if (taken.count(e) == 0) return store_if_new(x, row.first, e);
    }
    return false;
  });
  add_everywhere(edits, "no expert",
                 [](const TensorView& x, Index at) { return store_if_new(x, at, -1); });
  add_everywhere(edits, "swap slots", [](const TensorView& x, Index at) {
    const Row row = row_of(x, at);
    if (row.width < 2) return false;
    const Index a = x.load_integer_flat(row.first), b = x.load_integer_flat(row.first + 1);
    x.store_integer_flat(b, row.first), x.store_integer_flat(a, row.first + 1);
    return a != b;
  });
  add_everywhere(edits, "swap rows", swap_rows);
  return edits;
}

std::vector<Edit> of_labels() {
  std::vector<Edit> edits;
  add_everywhere(edits, "another class", [](const TensorView& x, Index at) {
    const Index label = x.load_integer_flat(at);
    return label > 0 && store_if_new(x, at, label - 1);
  });
  add_everywhere(edits, "no class", [](const TensorView& x, Index at) {
    return x.load_integer_flat(at) >= 0 && store_if_new(x, at, -1);
  });
  add_everywhere(edits, "class 0",
                 [](const TensorView& x, Index at) { return store_if_new(x, at, 0); });
  return edits;
}

std::vector<Edit> of_mask() {
  std::vector<Edit> edits;
  add_everywhere(edits, "flip", [](const TensorView& x, Index at) {
    return store_if_new(x, at, x.load_integer_flat(at) == 0 ? 1 : 0);
  });
  return edits;
}

// The first element from `at` on, around the end, of which `wanted` is true; -1: none.
template <class Wanted>
Index next(const TensorView& x, Index at, Wanted wanted) {
  for (Index i = 0; i < x.size(); ++i) {
    const Index place = (at + i) % x.size();
    if (wanted(place)) return place;
  }
  return -1;
}

std::vector<Edit> of_counts() {
  std::vector<Edit> edits;
  add_everywhere(edits, "one less", [](const TensorView& x, Index at) {
    const Index place = next(x, at, [&](Index i) { return x.load_integer_flat(i) > 0; });
    return place >= 0 && store_if_new(x, place, x.load_integer_flat(place) - 1);
  });
  add_everywhere(edits, "one more", [](const TensorView& x, Index at) {
    return store_if_new(x, at, x.load_integer_flat(at) + 1);
  });
  return edits;
}

std::vector<Edit> of_totals() {
  std::vector<Edit> edits;
  add_everywhere(edits, "one more", [](const TensorView& x, Index at) {
    return store_if_new(x, at, x.load_integer_flat(at) + 1);
  });
  add_everywhere(edits, "many more", [](const TensorView& x, Index at) {
    return store_if_new(x, at, 2 * x.load_integer_flat(at) + 1000);
  });
  add_everywhere(edits, "none",
                 [](const TensorView& x, Index at) { return store_if_new(x, at, 0); });
  return edits;
}

// Moves the border between two zones, at or after the place, by one row.
bool move_border(const TensorView& x, Index at, Index step) {
  const Index place = next(x, at, [&](Index i) {
    if (i == 0 || (i + 1 == x.size() && step > 0)) return false;
    const Index beside = x.load_integer_flat(step > 0 ? i + 1 : i - 1);
    return x.load_integer_flat(i) != beside;
  });
  return place >= 0 && store_if_new(x, place, x.load_integer_flat(place) + step);
}

std::vector<Edit> of_offsets() {
  std::vector<Edit> edits;
  add_everywhere(edits, "earlier",
                 [](const TensorView& x, Index at) { return move_border(x, at, -1); });
  add_everywhere(edits, "later",
                 [](const TensorView& x, Index at) { return move_border(x, at, 1); });
  const Place end = {"at the end", [](const TensorView& x) { return x.size() - 1; }};
  for (const Index step : {-1, 1}) {
    add(edits, step < 0 ? "earlier" : "later", end, [step](const TensorView& x, Index at) {
      return store_if_new(x, at, x.load_integer_flat(at) + step);
    });
  }
  return edits;
}

std::vector<Edit> of_map() {
  std::vector<Edit> edits;
  const auto there = [](const TensorView& x) {
    return [&x](Index i) { return x.load_integer_flat(i) >= 0; };
  };
  add_everywhere(edits, "swap", [there](const TensorView& x, Index at) {
    const Index a = next(x, at, there(x));
    if (a < 0) return false;
    const Index b = next(x, (a + 1) % x.size(), there(x));
    const Index mine = x.load_integer_flat(a), theirs = x.load_integer_flat(b);
    x.store_integer_flat(theirs, a), x.store_integer_flat(mine, b);
    return mine != theirs;
  });
  add_everywhere(edits, "none", [there](const TensorView& x, Index at) {
    const Index place = next(x, at, there(x));
    return place >= 0 && store_if_new(x, place, -1);
  });
  return edits;
}

}  // namespace

const std::vector<Edit>& edits_of(Role role) {
  static const std::map<Role, std::vector<Edit>> all = {
      {Role::values, of_values()}, {Role::scales, of_scales()},
      {Role::ids, of_ids()},       {Role::labels, of_labels()},
      {Role::mask, of_mask()},     {Role::counts, of_counts()},
      {Role::totals, of_totals()}, {Role::offsets, of_offsets()},
      {Role::map, of_map()},       {Role::number, {{"enlarge", nullptr}}}};
  return all.at(role);
}

bool change_number(double& number) {
  number = number == 0 ? 0.5 : 0.75 * number;
  return true;
}

}  // namespace dropless::sensitivity
