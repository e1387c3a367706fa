// SPDX-License-Identifier: Apache-2.0
// Judges cases without worker processes, on an implementation with a planted fault.
#pragma once

#include <memory>

#include "conformance/ranks/in_process.h"
#include "fuzz/families.h"
#include "fuzz/shrinking.h"
#include "tests/faults/planted.h"

namespace dropless::fuzz {

// The gradient of the last expert is left unwritten when the expert has no rows but another one
// does.
inline std::shared_ptr<faults::Planted> last_expert_lost() {
  static const faults::Fault fault = [] {
    faults::Fault f;
    f.name = "grouped_gemm.last_expert_lost";
    f.provenance = "this test", f.symptom = "no gradient", f.trigger = "a last expert without rows";
    f.clauses = {"GROUPED_GEMM-5"};
    f.plant = [](faults::Planted& planted) {
      planted.around<&faults::Table::gemm_wgrad>([](const auto& next, auto& args) {
        const auto elements = [](const dropless_tensor* tensor) {
          std::int64_t count = 1;
          for (int i = 0; i < tensor->rank; ++i) count *= tensor->shape[i];
          return count;
        };
        const std::int64_t experts = elements(args.offsets) - 1;
        const auto* offsets = static_cast<const std::int64_t*>(args.offsets->data);
        const auto* counts =
            args.counts == nullptr ? nullptr : static_cast<const std::int64_t*>(args.counts->data);
        const auto rows_of = [&](std::int64_t e) {
          return counts != nullptr ? counts[e] : offsets[e + 1] - offsets[e];
        };
        std::int64_t others = 0;
        for (std::int64_t e = 0; e + 1 < experts; ++e) others += rows_of(e);
        const std::int64_t bytes = elements(args.dw) * (args.dw->dtype == DROPLESS_FP32 ? 4 : 2) /
                                   std::max<std::int64_t>(experts, 1);
        auto* last = static_cast<unsigned char*>(args.dw->data) + (experts - 1) * bytes;
        const bool lost = others > 0 && rows_of(experts - 1) == 0 && bytes > 0;
        std::vector<unsigned char> before;
        if (lost) before.assign(last, last + bytes);
        const dropless_status status = next(args);
        if (lost) std::copy(before.begin(), before.end(), last);
        return status;
      });
    };
    return f;
  }();
  return std::make_shared<faults::Planted>(fault);
}

inline RunCases in_process(const dropless_implementation& table) {
  return [&table](const std::vector<CaseId>& cases) {
    std::vector<conformance::Outcome> outcomes;
    for (const CaseId& id : cases) {
      conformance::Outcome outcome;
      outcome.id = id;
      const Family& family = *conformance::registry().find(id.family);
      outcome.verdict = conformance::run_in_process(table, family, id);
      outcomes.push_back(std::move(outcome));
    }
    return outcomes;
  };
}

inline std::vector<const Family*> families(std::initializer_list<const char*> names) {
  std::vector<const Family*> found;
  for (const char* name : names) found.push_back(conformance::registry().find(name));
  return found;
}

// What a run over everything draws from.
inline std::vector<const Family*> all_families() {
  return families_of({});
}

}  // namespace dropless::fuzz
