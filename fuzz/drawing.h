// SPDX-License-Identifier: Apache-2.0
// Drawing cases: a RapidCheck generator over everything that the registered families can be asked.
//
//     rc::Random random(seed);
//     const rc::Gen<CaseId> any = any_case(families);
//     const rc::Shrinkable<CaseId> drawn = any(random.split());
//     drawn.value().text();              // an ordinary case id
//     drawn.shrinks();                   // simpler ones, see simpler.h
//
// Sizes gather at the edges of tiles (0, 1, 2, 15..17, 31..33, ... 255, 256); loads are every word
// of the taxonomy and, in two of five cases, a vector of its own; words are equally likely; widths
// come from published models, divided until they are at most 256. In one case of fifty one size
// goes up to 2100, in one of two hundred up to 33000, and two in fifty have as many experts as a
// published model.
#pragma once

#include <rapidcheck.h>

#include <vector>

#include "fuzz/sizes.h"

namespace dropless::fuzz {

// `families` must outlive the generator, and not be empty.
rc::Gen<CaseId> any_case(std::vector<const Family*> families);

// How often a family is drawn: by how much it can be asked.
int weight_of(const Family& family);

}  // namespace dropless::fuzz
