// SPDX-License-Identifier: Apache-2.0
// The process that loads the implementation and plays one rank. A conductor speaks with it over a
// link, one line each:
//
// to it:    {"ticket": 7, "id": "...", "blocked": ["quantize"]}   play this case
//           g 3 <hex of all ranks, in order>                      the answer to its third gathering
//           b 3                                                   somebody will never come to it
//           s                                                     say what you have used
// from it:  h {description}, u message                            as a worker does
//           p operation                                           entered, left, "!fail reason"
//           g 3 <hex>                                             its part of the third gathering
//           s seconds                                             of processor time so far
//           t                                                     asked to end by its launcher
//           v {"ticket": 7, "verdict": {...}}
//
// It ends at once when the link does, also in the middle of a call.
#pragma once

#include <memory>
#include <string>

#include "conformance/ranks/link.h"

namespace dropless::conformance {

struct RankOptions {
  std::string implementation, models;
  int threads = 1;
  int rank = 0, ranks = 1;
  int local_rank = -1;  // -1: as `rank`
};

// Sets RANK, WORLD_SIZE and LOCAL_RANK, and serves until the requests end. Returns the exit code;
// the caller leaves with _exit.
int serve_rank(const RankOptions& options, std::unique_ptr<Link> link);

// The link of a rank that was started as a Child.
std::unique_ptr<Link> link_to_parent();

}  // namespace dropless::conformance
