/* SPDX-License-Identifier: Apache-2.0
 * The dropless contract: a C ABI through which the suite judges anyone's MoE code.
 *
 * Purpose: wrap the operations you wrote (one is enough), build a shared library, and run
 *
 *     dropless run --implementation ./libmine.so
 *
 * Ten lines that make a complete implementation of one operation:
 *
 *     #include <dropless/contract.h>
 *     static dropless_status quantize(void* context, dropless_call* call,
 *                                     dropless_quantize_args* a) { ... return DROPLESS_OK; }
 *     static const dropless_profile profile = {sizeof profile, DROPLESS_STRUCT_VERSION};
 *     static const dropless_implementation mine = {
 *         .struct_size = sizeof mine, .contract_version = DROPLESS_CONTRACT_VERSION,
 *         .name = "mine", .version = "1", .build = "gcc -O3", .profile = &profile,
 *         .quantize = quantize};
 *     const dropless_implementation* dropless_get_implementation(uint32_t v) { return &mine; }
 *
 * Pure C99. One header per stage; start with contract/implementation.h. The normative text of every
 * operation is in conformance/clauses/<stage>.md; comments cite clauses as STAGE-number.
 */
#ifndef DROPLESS_CONTRACT_H
#define DROPLESS_CONTRACT_H

#include "dropless/contract/implementation.h"

#endif
