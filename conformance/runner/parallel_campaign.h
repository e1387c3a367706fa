// SPDX-License-Identifier: Apache-2.0
// A campaign over a list of items: several at a time, told in the order of the list.
//
//     std::vector<Hunt> hunts(faults.size());
//     parallel_campaign(faults.size(), jobs, [&](std::size_t i) { hunts[i] = hunt(faults[i]); },
//                       [&](std::size_t i) { session.out << hunt_line(hunts[i]); });
#pragma once

#include <cstddef>
#include <functional>

namespace dropless::conformance {

// `work` once for every index below `count`, on at most `jobs` threads, each taking the next index
// when it is done with one. `tell` follows in ascending order as soon as an index and all before it
// are done, never two at a time. The first exception of either ends the campaign: no further index
// is begun, and it is thrown again when every thread is back.
void parallel_campaign(std::size_t count, int jobs, const std::function<void(std::size_t)>& work,
                       const std::function<void(std::size_t)>& tell = {});

}  // namespace dropless::conformance
