// SPDX-License-Identifier: Apache-2.0
// One case from its id to its verdict; what every call is judged by (GENERAL-0, GENERAL-1).
#include "conformance/cases/case_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>

#include "conformance/cases/replaced_data.h"
#include "conformance/judge/memory.h"

namespace dropless::conformance {
namespace {

struct OutOfMemory {
  std::string reason;
};
struct DeviceLost {
  std::string reason;
};

// The writer's struct may be shorter or longer than ours: take what both know, the rest is zero.
template <class Struct>
Struct copy_declared(const Struct* source) {
  Struct out{};
  if (source == nullptr) return out;
  std::memcpy(static_cast<void*>(&out), source,
              std::min<std::size_t>(source->struct_size, sizeof out));
  return out;
}

const dropless_profile* declared_profile(const dropless_implementation& implementation) {
  return DROPLESS_HAS_FIELD(&implementation, dropless_implementation, profile)
             ? implementation.profile
             : nullptr;
}

std::string_view status_name(dropless_status status) {
  constexpr std::string_view names[] = {
      "OK",           "INVALID_ARGUMENT", "NOT_SUPPORTED", "OVERFLOW",       "OUT_OF_MEMORY",
      "DEVICE_ERROR", "TIMEOUT",          "PEER_LOST",     "INTERNAL_ERROR", "WORKSPACE_TOO_SMALL"};
  if (status < 0 || status >= static_cast<int>(std::size(names))) return "an unknown status";
  return names[status];
}

template <std::size_t n>
std::string text_of(const char (&field)[n]) {
  return {field, std::find(field, field + n, '\0')};
}

bool contains(const std::vector<std::string>& list, std::string_view item) {
  return std::find(list.begin(), list.end(), item) != list.end();
}

}  // namespace

CaseRun::CaseRun(const dropless_implementation& implementation, const Family& family,
                 const CaseId& id, const RunOptions& options)
    : implementation_(copy_declared(&implementation)),
      profile_(copy_declared(declared_profile(implementation))),
      family_(family),
      id_(id),
      options_(options),
      buffers_(implementation_.memory_space) {
  if (profile_.alignment == 0) profile_.alignment = 1;
  if (profile_.gemm_alignment == 0) profile_.gemm_alignment = 1;
}

bool CaseRun::has(std::string_view parameter) const {
  return std::any_of(id_.values.begin(), id_.values.end(),
                     [&](const auto& pair) { return pair.first == parameter; });
}

const std::string& CaseRun::word(std::string_view parameter) const {
  for (const auto& [key, value] : id_.values) {
    if (key == parameter) return value;
  }
  throw std::logic_error(
      fmt::format("family '{}' asks for its unknown parameter '{}'", family_.name, parameter));
}

Index CaseRun::integer(std::string_view parameter) const {
  return std::stoll(word(parameter));
}

Random CaseRun::random(std::string_view stream) const {
  const Replacement* replacement = ReplacedData::of_thread();
  if (replacement != nullptr && replacement->stream == stream) return Random(0);
  return Random(Random::key_of(fmt::format("{}/{}", id_.text(), stream)));
}

const Model& CaseRun::model() const {
  if (const Model* model = find_model(word("model"))) return *model;
  throw UsageError(fmt::format("no model '{}'", word("model")));
}

std::string CaseRun::not_offered(std::string_view operation) {
  return fmt::format("the implementation does not offer {}", operation);
}

std::string CaseRun::said(std::string_view operation) const {
  return fmt::format("{}: {}", operation, message_.empty() ? "no reason given" : message_);
}

dropless_call CaseRun::begin_call() const {
  dropless_call call{};
  call.struct_size = sizeof call;
  call.struct_version = DROPLESS_STRUCT_VERSION;
  call.threads = options_.threads;
  if (implementation_.memory_space != DROPLESS_HOST) {
    call.stream = memory_of(implementation_.memory_space)->stream();
  }
  return call;
}

dropless_status CaseRun::settle(dropless_call& call) const {
  if (implementation_.memory_space == DROPLESS_HOST || implementation_.synchronize == nullptr) {
    return DROPLESS_OK;
  }
  dropless_call waiting = begin_call();
  auto args = make_args<dropless_synchronize_args>();
  const dropless_status status =
      implementation_.synchronize(implementation_.context, &waiting, &args);
  if (status != DROPLESS_OK) std::memcpy(call.message, waiting.message, sizeof call.message);
  return status;
}

// Scratch memory is a guarded buffer like any other, so that overruns are seen there too.
bool CaseRun::add_workspace(dropless_call& call) {
  if (call.workspace_required == 0) return false;
  const auto bytes = static_cast<Index>(call.workspace_required);
  const Buffer& scratch = buffers_.output("workspace", DROPLESS_U8, {bytes});
  call = begin_call();
  call.workspace = scratch.tensor()->data;
  call.workspace_bytes = static_cast<std::uint64_t>(bytes);
  return true;
}

// GENERAL-0. Only violations are recorded: they must not make up for a case that compares nothing.
void CaseRun::end_call(std::string_view operation, const dropless_call& call,
                       dropless_status status) {
  for (const Buffers::Damage& damage : buffers_.damage()) {
    std::string entry = damage.label + ": " + damage.what;
    if (contains(reported_damage_, entry)) continue;
    judge_.holds("GENERAL-0", fmt::format("{} leaves memory alone", operation), false,
                 "nothing outside the outputs is written", entry);
    reported_damage_.push_back(std::move(entry));
  }
  message_ = text_of(call.message);
  if (std::memchr(call.message, 0, sizeof call.message) == nullptr ||
      std::memchr(call.path, 0, sizeof call.path) == nullptr) {
    judge_.holds("GENERAL-0", fmt::format("{}: message and path", operation), false,
                 "a text that ends with a zero byte", "none within the field");
  }
  if (status == DROPLESS_OK) {
    succeeded_.emplace_back(operation);
    const std::string path = text_of(call.path);
    if (path.empty()) {
      judge_.holds("GENERAL-0", fmt::format("{} reports its path", operation), false,
                   "a path such as cpu/scalar", "an empty path");
    } else if (!contains(paths_, path)) {
      paths_.push_back(path);
    }
    return;
  }
  if (message_.empty()) {
    judge_.holds("GENERAL-0", fmt::format("{} says why", operation), false,
                 fmt::format("a message with {}", status_name(status)), "an empty message");
  }
  if (status == DROPLESS_OUT_OF_MEMORY) throw OutOfMemory{said(operation)};
  if (status == DROPLESS_DEVICE_ERROR) throw DeviceLost{said(operation)};
}

void CaseRun::demand_ok(std::string_view operation, dropless_status status,
                        std::string_view clause) {
  if (status == DROPLESS_OK) return;
  judge_.holds(clause, fmt::format("{} succeeds", operation), false, "OK",
               fmt::format("{} ({})", status_name(status), message_));
  throw CaseEnded{};
}

std::vector<std::vector<std::uint8_t>> CaseRun::output_bytes() const {
  std::vector<std::vector<std::uint8_t>> out;
  for (const Buffer* buffer : buffers_.outputs()) out.push_back(buffer->bytes());
  return out;
}

void CaseRun::judge_refusal(std::string_view clause, std::string_view why,
                            std::string_view operation, dropless_status status,
                            const std::vector<std::vector<std::uint8_t>>& before) {
  if (status == DROPLESS_NOT_SUPPORTED && !contains(succeeded_, operation)) {
    throw NotSupported{said(operation)};
  }
  judge_.holds(clause, fmt::format("{} refuses {}", operation, why),
               status == DROPLESS_INVALID_ARGUMENT, "INVALID_ARGUMENT",
               std::string(status_name(status)));
  // A workspace may have been added since; it lies behind the buffers of the case.
  const std::vector<const Buffer*> outputs = buffers_.outputs();
  for (std::size_t i = 0; i < before.size(); ++i) {
    judge_.holds(clause,
                 fmt::format("{}, refused for {}, leaves {}", operation, why, outputs[i]->label()),
                 outputs[i]->bytes() == before[i], "untouched", "written");
  }
}

namespace {

std::string first_failure(const Judge& judge) {
  std::string text = fmt::format("{} of {} checks failed", judge.failed_checks(), judge.checks());
  if (judge.failures().empty()) return text;
  const Failure& first = judge.failures().front();
  const std::string element = first.element.empty() ? "" : " " + first.element;
  return fmt::format("{}; {} {}{}: expected {}, got {}", text, first.clause, first.what, element,
                     first.expected, first.got);
}

// A failure outweighs everything but the loss of the device. Where the suite stumbled after a
// failed check, it stumbled over what the implementation had left behind.
void conclude(CaseRun& run, Verdict& verdict) {
  const Judge& judge = run.judge();
  verdict.failures = judge.failures();
  verdict.checks = judge.checks();
  verdict.failed_checks = judge.failed_checks();
  verdict.paths = run.paths();
  if (verdict.status == Status::device_lost || verdict.status == Status::resource) return;
  if (judge.failed_checks() > 0) {
    const std::string then =
        verdict.status == Status::internal_error ? "; then: " + verdict.reason : "";
    verdict.status = Status::fail;
    verdict.reason = first_failure(judge) + then;
  } else if (verdict.status == Status::not_supported || verdict.status == Status::internal_error) {
    return;
  } else if (!judge.distrust().empty()) {
    verdict.status = Status::mistrusted;
    verdict.reason = "the case cannot see what it tests: " + judge.distrust().front();
  } else if (judge.checks() == 0) {
    verdict.status = Status::mistrusted;
    verdict.reason = "nothing was compared";
  }
}

Verdict guarded(CaseRun& run, const Family& family) {
  Verdict verdict;
  verdict.status = Status::pass;
  const auto end_with = [&](Status status, std::string reason) {
    verdict.status = status;
    verdict.reason = std::move(reason);
  };
  try {
    family.run(run);
  } catch (const NotSupported& answer) {
    end_with(Status::not_supported, answer.reason);
  } catch (const CaseEnded&) {  // its failure is on record
  } catch (const OutOfMemory& answer) {
    end_with(Status::resource, answer.reason);
  } catch (const DeviceLost& answer) {
    end_with(Status::device_lost, answer.reason);
  } catch (const DeviceFailure& failure) {
    end_with(Status::device_lost, failure.what());
  } catch (const std::bad_alloc&) {
    end_with(Status::resource, "the suite ran out of memory");
  } catch (const std::exception& error) {
    end_with(Status::internal_error, error.what());
  } catch (...) {
    end_with(Status::internal_error, "an unknown exception");
  }
  conclude(run, verdict);
  return verdict;
}

}  // namespace

Verdict run_case(const dropless_implementation& implementation, const Family& family,
                 const CaseId& id, const RunOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  Verdict verdict;
  try {
    CaseRun run(implementation, family, id, options);
    verdict = guarded(run, family);
  } catch (const DeviceFailure& failure) {
    verdict.status = Status::device_lost;
    verdict.reason = failure.what();
  } catch (const std::bad_alloc&) {
    verdict.status = Status::resource;
    verdict.reason = "the suite ran out of memory";
  } catch (const std::exception& error) {
    verdict.status = Status::internal_error;
    verdict.reason = error.what();
  }
  verdict.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return verdict;
}

}  // namespace dropless::conformance
