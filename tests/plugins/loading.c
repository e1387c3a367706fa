/* SPDX-License-Identifier: Apache-2.0
 * Libraries that are wrong before the first operation: LOADING names the way. One library per way,
 * see CMakeLists.txt. Each is the plain C example apart from that.
 */
#include <dropless/contract.h>
#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

const dropless_implementation* example_get_implementation(uint32_t suite_version);

enum {
  older_struct,  /* ends after quantize: what follows is not offered */
  tiny_struct,   /* too short to hold a profile */
  wrong_version, /* another major number */
  newer_minor,   /* a later minor number: fine */
  null_table,
  null_profile,
  bad_profile_value,
  declared_without_order,
  unnamed,
  cuda_memory,
  crash_in_constructor,
  exit_in_constructor,
  hang_in_entry,
  missing_symbol,
  undefined_symbol
};

#if defined(AS_crash_in_constructor) || defined(AS_exit_in_constructor)
__attribute__((constructor)) static void construct(void) {
  if (LOADING == crash_in_constructor) abort();
  exit(0);
}
#endif

#ifdef AS_undefined_symbol
void nobody_defines_this(void);
void call_it(void);
void call_it(void) {
  nobody_defines_this();
}
#endif

#ifdef AS_missing_symbol
#define ENTRY get_something_else
const dropless_implementation* get_something_else(uint32_t suite_version);
#else
#define ENTRY dropless_get_implementation
#endif

DROPLESS_EXPORT const dropless_implementation* ENTRY(uint32_t suite_version) {
  static dropless_implementation table;
  static dropless_profile profile;
  table = *example_get_implementation(suite_version);
  profile = *table.profile;
  table.profile = &profile;
  table.name = "wrong at loading";
  switch (LOADING) {
    case older_struct:
      table.struct_size = offsetof(dropless_implementation, dequantize);
      /* What lies behind the declared end must not be read: these would be called. */
      table.gemm_fprop = (dropless_gemm_fprop_fn)(size_t)8;
      table.gemm_dgrad = (dropless_gemm_dgrad_fn)(size_t)8;
      table.gemm_wgrad = (dropless_gemm_wgrad_fn)(size_t)8;
      break;
    case tiny_struct:
      table.struct_size = 8;
      break;
    case wrong_version:
      table.contract_version = 2000;
      break;
    case newer_minor:
      table.contract_version = DROPLESS_CONTRACT_VERSION + 7;
      break;
    case null_table:
      return NULL;
    case null_profile:
      table.profile = NULL;
      break;
    case bad_profile_value:
      profile.scale_rule = 9;
      break;
    case declared_without_order:
      profile.tie_rule = DROPLESS_TIE_DECLARED;
      break;
    case unnamed:
      table.name = NULL;
      break;
    case cuda_memory:
      table.memory_space = DROPLESS_CUDA_DEVICE;
      break;
    case hang_in_entry:
      for (;;) sleep(1);
    default:
      break;
  }
  return &table;
}
