// SPDX-License-Identifier: Apache-2.0
// The exchange operations of the table for any profile, with arguments already copied (see
// optimized/cpu/operations.h). EXCHANGE-1 to 15.
#pragma once

#include "optimized/cpu/call.h"
#include "optimized/cpu/exchange/choices.h"

namespace dropless::cpu::exchange {

void capacity(Call& call, const Choices& choices, dropless_exchange_capacity_args& args);
void open(Call& call, const Choices& choices, dropless_exchange_open_args& args);
void plan(Call& call, dropless_exchange_plan_args& args);
void dispatch(Call& call, const dropless_exchange_dispatch_args& args);
void combine(Call& call, const dropless_exchange_combine_args& args);
void dispatch_backward(Call& call, const dropless_exchange_dispatch_backward_args& args);
void combine_backward(Call& call, const dropless_exchange_combine_backward_args& args);
void close(Call& call, const dropless_exchange_close_args& args);

}  // namespace dropless::cpu::exchange
