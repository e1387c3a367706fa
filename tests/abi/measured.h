/* SPDX-License-Identifier: Apache-2.0
 * The layout table with what a compiler makes of it; built once by the C and once by the C++ one.
 */
#ifndef DROPLESS_TESTS_ABI_MEASURED_H
#define DROPLESS_TESTS_ABI_MEASURED_H

#include <dropless/contract.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct abi_row {
  const char* type;       /* null for an enumerator */
  const char* name;       /* field or enumerator; null for a struct as a whole */
  size_t offset;          /* as the compiler has it */
  size_t bytes;           /* as the compiler has it; an enumerator's value */
  size_t expected_offset; /* as written in the table */
  size_t expected_bytes;
} abi_row;

#define ABI_STRUCT_ROW(type, bytes) {#type, NULL, 0, sizeof(type), 0, bytes},
#define ABI_FIELD_ROW(type, field, offset, bytes) \
  {#type, #field, offsetof(type, field), sizeof(((type*)0)->field), offset, bytes},
#define ABI_ENUMERATOR_ROW(name, value) {NULL, #name, 0, (size_t)(name), 0, value},

extern const abi_row abi_rows_of_c[];
extern const size_t abi_row_count_of_c;

#ifdef __cplusplus
}
#endif

#endif
