// SPDX-License-Identifier: Apache-2.0
// The ranks that run a collective case together, as one of them sees the others.
//
// A family is collective when it has a parameter "ranks". Its function runs once on every rank; it
// draws the data of all ranks from the case id, hands its own share to the implementation, and
// judges what its own rank got.
//
//     void run_dispatch(CaseRun& run) {
//       RankGroup& group = this_group();
//       const auto plan = group.shared<Plan>("plan", [&] { return plan_of_all_ranks(run); });
//       settings.rank = group.rank(), settings.ranks = group.ranks();
//       settings.all_gather = all_gather_of_group, settings.all_gather_context = &group;
//       ...
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "conformance/cases/family.h"

namespace dropless::conformance {

class RankGroup {
 public:
  virtual ~RankGroup() = default;
  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int ranks() const = 0;
  // Gathers `bytes` bytes of every rank into `received` [ranks * bytes], in rank order. Collective.
  // False when a rank has left the case, so that it will never come.
  [[nodiscard]] virtual bool all_gather(const void* sent, void* received, std::size_t bytes) = 0;
  // All ranks are here; false as above.
  [[nodiscard]] bool meet();

  // What `make` returns, made once for all ranks that share memory. `make` must be a function of
  // the case id alone, the same on every rank, and `key` its name.
  template <class Value>
  const Value& shared(const std::string& key, const std::function<Value()>& make) {
    const auto erased = [&] { return std::make_shared<Value>(make()); };
    return *std::static_pointer_cast<const Value>(remembered(key, erased));
  }

 protected:
  using Maker = std::function<std::shared_ptr<const void>()>;
  virtual std::shared_ptr<const void> remembered(const std::string& key, const Maker& make) = 0;
};

// The callback of dropless_exchange_settings; the context is a RankGroup.
std::int32_t all_gather_of_group(void* group, const void* sent, void* received, std::size_t bytes);

// The group of the calling thread. Throws std::logic_error outside a collective case.
RankGroup& this_group();
// The same, null outside a collective case.
RankGroup* current_group();

// Makes `group` the calling thread's for its lifetime.
class InGroup {
 public:
  explicit InGroup(RankGroup& group);
  ~InGroup();
  InGroup(const InGroup&) = delete;
  InGroup& operator=(const InGroup&) = delete;
};

[[nodiscard]] bool is_collective(const Family& family);

}  // namespace dropless::conformance
