// SPDX-License-Identifier: Apache-2.0
// Opening and closing handles, and the capacity of their receive buffers.
#include <mutex>
#include <unordered_map>

#include "optimized/cpu/exchange/handle.h"
#include "optimized/cpu/exchange/operations.h"

namespace dropless::cpu::exchange {
namespace {

// Open handles of this process: a pointer that is not here is refused, not followed.
struct Registry {
  std::mutex mutex;
  std::unordered_map<const void*, std::unique_ptr<Handle>> open;
};
Registry& registry() {
  static Registry* const handles = new Registry;  // never destroyed: calls may outlive statics
  return *handles;
}

}  // namespace

Handle& handle_of(dropless_exchange* exchange) {
  Registry& handles = registry();
  const std::lock_guard lock(handles.mutex);
  const auto found = handles.open.find(exchange);
  if (found == handles.open.end()) refuse("exchange: not an open handle");
  return *found->second;
}

void capacity(Call& call, const Choices& choices, dropless_exchange_capacity_args& args) {
  args.capacity = read_group(args.settings, choices).capacity;
  call.ran("cpu");
}

void open(Call& call, const Choices& choices, dropless_exchange_open_args& args) {
  Group group = read_group(args.settings, choices);
  Connected connected = connect_ranks(group);
  auto handle = std::make_unique<Handle>(std::move(group), std::move(connected));
  call.ran(std::string("cpu/exchange/") + handle->transport_name());
  args.exchange = reinterpret_cast<dropless_exchange*>(handle.get());
  Registry& handles = registry();
  const std::lock_guard lock(handles.mutex);
  handles.open.emplace(handle.get(), std::move(handle));
}

void close(Call& call, const dropless_exchange_close_args& args) {
  Registry& handles = registry();
  std::unique_ptr<Handle> handle;
  {
    const std::lock_guard lock(handles.mutex);
    const auto found = handles.open.find(args.exchange);
    if (found == handles.open.end()) refuse("exchange: not an open handle");
    handle = std::move(found->second);
    handles.open.erase(found);
  }
  call.ran(std::string("cpu/exchange/") + handle->transport_name());
}

}  // namespace dropless::cpu::exchange
