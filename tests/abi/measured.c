/* SPDX-License-Identifier: Apache-2.0
 * The layout of the contract as the C compiler has it. */
#include "tests/abi/measured.h"

#define STRUCT ABI_STRUCT_ROW
#define FIELD ABI_FIELD_ROW
#define ENUMERATOR ABI_ENUMERATOR_ROW
const abi_row abi_rows_of_c[] = {
#include "tests/abi/layout/all.inc"
};
const size_t abi_row_count_of_c = sizeof abi_rows_of_c / sizeof abi_rows_of_c[0];
