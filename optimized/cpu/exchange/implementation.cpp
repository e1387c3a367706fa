// SPDX-License-Identifier: Apache-2.0
// Entries of the exchange, and tables for other profiles.
#include "optimized/cpu/exchange/implementation.h"

#include <cstring>
#include <list>
#include <mutex>

#include "optimized/cpu/exchange/operations.h"

namespace dropless::cpu::exchange {
namespace {

dropless_profile default_profile() {
  dropless_profile profile = {};
  profile.struct_size = sizeof profile;
  profile.struct_version = DROPLESS_STRUCT_VERSION;
  return profile;
}

Choices choices_of(const void* context) {
  return context == nullptr ? read_choices(default_profile())
                            : read_choices(*static_cast<const dropless_profile*>(context));
}

template <class Args>
void write_back(const Args& copy, Args* args) {
  std::memcpy(static_cast<void*>(args), &copy,
              std::min<std::size_t>(copy.struct_size, sizeof copy));
}

// Operations that need the profile and hand something back: open and capacity.
template <auto operation, class Args>
dropless_status with_choices(void* context, dropless_call* raw, Args* args) {
  Call call(raw);
  return guarded(call, [&] {
    Args copy = read_struct(args, "arguments");
    operation(call, choices_of(context), copy);
    write_back(copy, args);
  });
}

// `checked` is handed back with an overflow too.
dropless_status plan_entry(void*, dropless_call* raw, dropless_exchange_plan_args* args) {
  Call call(raw);
  return guarded(call, [&] {
    dropless_exchange_plan_args copy = read_struct(args, "arguments");
    try {
      plan(call, copy);
    } catch (const Refusal& refusal) {
      if (refusal.status == DROPLESS_OVERFLOW) write_back(copy, args);
      throw;
    }
    write_back(copy, args);
  });
}

template <auto operation, class Args>
dropless_status read_only(void*, dropless_call* raw, Args* args) {
  Call call(raw);
  return guarded(call, [&] { operation(call, read_struct(args, "arguments")); });
}

// Nothing is deferred: every call reports its own errors.
dropless_status synchronize(void*, dropless_call* raw, dropless_synchronize_args*) {
  const Call call(raw);
  return DROPLESS_OK;
}

struct Table {
  dropless_profile profile;
  dropless_implementation entries;
};

}  // namespace

void fill_entries(dropless_implementation& table) {
  table.exchange_capacity = with_choices<capacity>;
  table.exchange_open = with_choices<open>;
  table.exchange_plan = plan_entry;
  table.exchange_dispatch = read_only<dispatch>;
  table.exchange_combine = read_only<combine>;
  table.exchange_dispatch_backward = read_only<dispatch_backward>;
  table.exchange_combine_backward = read_only<combine_backward>;
  table.exchange_close = read_only<close>;
}

const dropless_implementation* implementation(const dropless_profile& given) {
  static std::mutex mutex;
  static std::list<Table>* const tables = new std::list<Table>;  // never destroyed
  try {
    dropless_profile profile = read_struct(&given, "profile");
    profile.struct_size = sizeof profile;
    static_cast<void>(read_choices(profile));
    const std::lock_guard lock(mutex);
    for (const Table& table : *tables) {
      if (std::memcmp(&table.profile, &profile, sizeof profile) == 0) return &table.entries;
    }
    Table& table = tables->emplace_back();
    table.profile = profile;
    dropless_implementation& entries = table.entries;
    entries.struct_size = sizeof entries;
    entries.contract_version = DROPLESS_CONTRACT_VERSION;
    entries.name = "dropless cpu exchange";
    entries.version = "0.1.0";
    entries.build = "C++20";
    entries.memory_space = DROPLESS_HOST;
    entries.profile = &table.profile;
    entries.context = &table.profile;
    fill_entries(entries);
    entries.synchronize = synchronize;
    return &entries;
  } catch (const Refusal&) {
    return nullptr;
  }
}

}  // namespace dropless::cpu::exchange
