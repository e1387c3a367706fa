// SPDX-License-Identifier: Apache-2.0
// Exchanging one input on its way into the reference.
#include "tests/sensitivity/perturbed.h"

#include <mutex>
#include <utility>

#include "conformance/ranks/rank_group.h"
#include "tests/faults/planted.h"
#include "tests/faults/tensors.h"

namespace dropless::sensitivity {
namespace {

faults::Fault nothing() {
  faults::Fault fault;
  fault.name = "sensitivity.perturbed";
  fault.provenance = "a changed input";
  fault.plant = [](faults::Planted&) {};
  return fault;
}

// Calls `then` with the input changed, and sets `changed` when it could be.
template <class Then>
dropless_status with_change(const Input& input, const Edit& edit, bool& changed, Then then) {
  if (input.number != nullptr) {
    changed = change_number(*input.number);
    return then();
  }
  const faults::Copy copy(*input.tensor);
  if (!copy.readable()) return then();
  if (input.in_place) {
    changed = edit.apply(**input.tensor);
    const dropless_status status = then();
    if (changed && status != DROPLESS_OK) copy.write_back();  // a refusal writes nothing
    return status;
  }
  changed = edit.apply(*copy.tensor());
  if (!changed) return then();
  *input.tensor = copy.tensor();
  std::vector<std::unique_ptr<faults::Copy>> copies;
  Partners partners;
  for (const dropless_tensor** partner : input.partners) {
    copies.push_back(std::make_unique<faults::Copy>(*partner));
    *partner = copies.back()->tensor();
    partners.push_back(*partner);
  }
  if (input.agree != nullptr) input.agree(*copy.tensor(), partners);
  return then();
}

const Edit* find_edit(Role role, const std::string& name) {
  for (const Edit& edit : edits_of(role)) {
    if (edit.name == name) return &edit;
  }
  return nullptr;
}

}  // namespace

struct Perturbed::State {
  explicit State(Perturbation wanted) : perturbation(std::move(wanted)), planted(nothing()) {
#define DROPLESS_WATCH(name, args_type)                                         \
  if (planted.table().name != nullptr) {                                        \
    planted.around<&faults::Table::name>([this](const auto& next, auto& args) { \
      return pass_on(#name, args, [&] { return next(args); });                  \
    });                                                                         \
  }
    DROPLESS_OPERATIONS(DROPLESS_WATCH)
#undef DROPLESS_WATCH
  }

  template <class Args, class Then>
  dropless_status pass_on(const char* operation, Args& args, Then then) {
    const conformance::RankGroup* group = conformance::current_group();
    const bool mine =
        group == nullptr || group->rank() == (perturbation.first_rank ? 0 : group->ranks() - 1);
    Loose loose;
    for (const Input& input : inputs_of(args, loose)) {
      if (!mine && !input.of_all_ranks) continue;
      const int number = count(std::string(operation) + "." + input.name, input.role, mine);
      if (operation != perturbation.operation || input.name != perturbation.input) continue;
      if (perturbation.call != 0 && !input.of_all_ranks && perturbation.call != number) continue;
      const Edit* edit = find_edit(input.role, perturbation.edit);
      if (edit == nullptr) continue;
      bool done = false;
      const dropless_status status = with_change(input, *edit, done, then);
      const std::lock_guard lock(mutex);
      changed += done ? 1 : 0;
      refused += done && status != DROPLESS_OK ? 1 : 0;
      return status;
    }
    return then();
  }

  // Of the calls that had this input.
  int count(const std::string& input, Role role, bool counts) {
    const std::lock_guard lock(mutex);
    Seen& record = seen[input];
    record.role = role;
    return counts ? ++record.calls : record.calls;
  }

  Perturbation perturbation;
  faults::Planted planted;
  std::mutex mutex;  // ranks are threads
  std::map<std::string, Seen> seen;
  int changed = 0, refused = 0;
};

Perturbed::Perturbed(Perturbation perturbation)
    : state_(std::make_unique<State>(std::move(perturbation))) {}
Perturbed::~Perturbed() = default;

const dropless_implementation& Perturbed::table() const {
  return state_->planted.table();
}
const std::map<std::string, Seen>& Perturbed::seen() const {
  return state_->seen;
}
int Perturbed::changed() const {
  return state_->changed;
}
int Perturbed::refused() const {
  return state_->refused;
}

}  // namespace dropless::sensitivity
