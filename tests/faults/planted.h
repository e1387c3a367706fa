// SPDX-License-Identifier: Apache-2.0
// An implementation with a planted fault: the reference's table, some entries of which are wrapped.
// A fault edits the arguments before the correct operation runs, or its outputs afterwards.
//
//     planted.before<&Table::gemm_fprop>([](auto& a) { a.alpha = 1; });
//     planted.after<&Table::gemm_fprop>([](auto& a) { each(a.y, [](double y) { return -y; }); });
//     planted.around<&Table::gemm_fprop>([](auto& next, auto& a) {
//       Copy x(a.x->values);
//       ...
//       return next(a);
//     });
//
// The closure gets a copy of the argument struct, as long as ours (missing fields are zero); the
// tensors that it points to are the caller's. Out scalars go back to the caller.
#pragma once

#include <dropless/contract.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <utility>

#include "tests/faults/fault.h"

namespace dropless::faults {

using Table = dropless_implementation;
using ProfileChange = std::function<void(dropless_profile&)>;

// The reference under the default profile with a change.
const Table& correct(const ProfileChange& change = {});

// The correct operation, as a fault sees it.
template <auto entry>
class Next {
 public:
  Next(const Table& table, dropless_call* call) : table_(table), call_(call) {}
  template <class Args>
  dropless_status operator()(Args& args) const {
    return (table_.*entry)(table_.context, call_, &args);
  }
  // The same operation as another correct implementation does it.
  template <class Args>
  dropless_status as(const Table& other, Args& args) const {
    return (other.*entry)(other.context, call_, &args);
  }
  [[nodiscard]] dropless_call* call() const { return call_; }
  [[nodiscard]] const Table& table() const { return table_; }

 private:
  const Table& table_;
  dropless_call* call_;
};

class Planted {
 public:
  explicit Planted(const Fault& fault);
  // Anything else that is made of a correct table by wrapping entries: plant(*this), under the
  // profile that `base` declares.
  Planted(std::string name, std::string build, const Table& base,
          const std::function<void(Planted&)>& plant);
  Planted(const Planted&) = delete;
  Planted& operator=(const Planted&) = delete;

  // The profile that is declared, and followed unless behave_as says otherwise.
  void declare(const ProfileChange& change);
  // A profile that is followed without being declared.
  void behave_as(const ProfileChange& change);

  // Replaces the operation; once per operation.
  template <auto entry, class F>
  void around(F fault);
  // fault(args), then the correct operation.
  template <auto entry, class F>
  void before(F fault) {
    around<entry>([fault](const auto& next, auto& args) {
      fault(args);
      return next(args);
    });
  }
  // The correct operation and, when it succeeded, fault(args).
  template <auto entry, class F>
  void after(F fault) {
    around<entry>([fault](const auto& next, auto& args) {
      const dropless_status status = next(args);
      if (status == DROPLESS_OK) fault(args);
      return status;
    });
  }

  [[nodiscard]] const Table& table() const { return table_; }

#define DROPLESS_DECLARE_CHAIN(name, args) \
  std::function<dropless_status(dropless_call*, args*)> name;
  struct Chains {
    DROPLESS_OPERATIONS(DROPLESS_DECLARE_CHAIN)
  };
#undef DROPLESS_DECLARE_CHAIN

 private:
  template <auto entry>
  friend struct Operation;

  void follow(const dropless_profile& profile);

  std::string name_, build_;
  dropless_profile profile_{};
  Table base_{}, table_{};
  Chains chains_;
};

// What belongs to one entry of the table.
template <auto entry>
struct Operation;

#define DROPLESS_DECLARE_OPERATION(name, args)                                          \
  template <>                                                                           \
  struct Operation<&Table::name> {                                                      \
    using Args = args;                                                                  \
    static auto& chain(Planted& planted) { return planted.chains_.name; }               \
    static dropless_status enter(void* context, dropless_call* call, args* arguments) { \
      return static_cast<Planted*>(context)->chains_.name(call, arguments);             \
    }                                                                                   \
  };
DROPLESS_OPERATIONS(DROPLESS_DECLARE_OPERATION)
#undef DROPLESS_DECLARE_OPERATION

// Out scalars of the argument structs.
template <class Args>
void return_scalars(Args&, const Args&) {}
inline void return_scalars(dropless_layer_args& theirs, const dropless_layer_args& ours) {
  if (DROPLESS_HAS_FIELD(&theirs, dropless_layer_args, saved)) theirs.saved = ours.saved;
}
inline void return_scalars(dropless_exchange_open_args& theirs,
                           const dropless_exchange_open_args& ours) {
  if (DROPLESS_HAS_FIELD(&theirs, dropless_exchange_open_args, exchange)) {
    theirs.exchange = ours.exchange;
  }
}
inline void return_scalars(dropless_exchange_capacity_args& theirs,
                           const dropless_exchange_capacity_args& ours) {
  if (DROPLESS_HAS_FIELD(&theirs, dropless_exchange_capacity_args, capacity)) {
    theirs.capacity = ours.capacity;
  }
}
inline void return_scalars(dropless_exchange_plan_args& theirs,
                           const dropless_exchange_plan_args& ours) {
  if (DROPLESS_HAS_FIELD(&theirs, dropless_exchange_plan_args, checked)) {
    theirs.checked = ours.checked;
  }
}

template <auto entry, class F>
void Planted::around(F fault) {
  using Args = typename Operation<entry>::Args;
  Operation<entry>::chain(*this) = [this, fault](dropless_call* call,
                                                 Args* theirs) -> dropless_status {
    const Next<entry> next(base_, call);
    if (theirs == nullptr || theirs->struct_size < 2 * sizeof(std::uint32_t)) {
      return (base_.*entry)(base_.context, call, theirs);
    }
    Args args{};
    std::memcpy(&args, theirs, std::min<std::size_t>(theirs->struct_size, sizeof args));
    const dropless_status status = fault(next, args);
    return_scalars(*theirs, args);
    return status;
  };
}

}  // namespace dropless::faults
