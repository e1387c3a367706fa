/* SPDX-License-Identifier: Apache-2.0
 * The plain C example with one operation that misbehaves: permute_forward is replaced by the
 * function that BEHAVIOUR names, all others stay right. One library per behaviour, see
 * CMakeLists.txt.
 */
#define _GNU_SOURCE
#include <dropless/contract.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The example's own entry point, renamed when it is compiled into these libraries. */
const dropless_implementation* example_get_implementation(uint32_t suite_version);

typedef dropless_status operation(void* context, dropless_call* call, dropless_permute_args* a);

static dropless_status right(void* context, dropless_call* call, dropless_permute_args* a) {
  return example_get_implementation(DROPLESS_CONTRACT_VERSION)->permute_forward(context, call, a);
}

static size_t bytes_of_rows(const dropless_permute_args* a) {
  return (size_t)(a->rows->shape[0] * a->rows->strides[0]) *
         (a->rows->dtype == DROPLESS_FP32 || a->rows->dtype == DROPLESS_I32 ? 4u : 2u);
}

#define DEFINE(name)                                                                  \
  dropless_status name(void* context, dropless_call* call, dropless_permute_args* a); \
  dropless_status name(void* context, dropless_call* call, dropless_permute_args* a)

DEFINE(segfault) {
  (void)context, (void)call, (void)a;
  volatile int* volatile nowhere = NULL;
  *nowhere = 1;
  return DROPLESS_OK;
}

DEFINE(abort_process) {
  (void)context, (void)call, (void)a;
  abort();
}

DEFINE(exit_zero) {
  (void)context, (void)call, (void)a;
  exit(0);
}

DEFINE(hang) {
  (void)context, (void)call, (void)a;
  for (;;) sleep(1);
}

DEFINE(spin) {
  (void)context, (void)call, (void)a;
  for (volatile long forever = 0;; ++forever) {
  }
}

DEFINE(write_past_end) {
  const dropless_status status = right(context, call, a);
  if (a->rows->data != NULL) memset((char*)a->rows->data + bytes_of_rows(a), 7, 16);
  return status;
}

/* Far enough to hit what belongs to the suite and to the allocator. */
DEFINE(corrupt_memory) {
  const dropless_status status = right(context, call, a);
  if (a->rows->data != NULL) memset((char*)a->rows->data + bytes_of_rows(a), 7, 1u << 16);
  return status;
}

DEFINE(write_input) {
  const dropless_status status = right(context, call, a);
  if (a->x->data != NULL) *(char*)a->x->data ^= 1;
  return status;
}

DEFINE(return_error) {
  (void)context, (void)a;
  strcpy(call->message, "the kernel could not be launched");
  return DROPLESS_INTERNAL_ERROR;
}

DEFINE(return_not_supported) {
  (void)context, (void)a;
  strcpy(call->message, "not on this machine");
  return DROPLESS_NOT_SUPPORTED;
}

DEFINE(do_nothing) {
  (void)context, (void)a;
  strcpy(call->path, "lazy");
  return DROPLESS_OK;
}

DEFINE(print) {
  printf("<stdout of the implementation>\n");
  fprintf(stderr, "<stderr of the implementation>\n");
  return right(context, call, a);
}

DEFINE(print_and_crash) {
  printf("last words\n");
  fflush(stdout);
  return segfault(context, call, a);
}

DEFINE(leak) {
  for (;;) {
    char* block = malloc(16u << 20);
    if (block == NULL) return right(context, call, a);
    memset(block, 1, 16u << 20);
  }
}

DEFINE(close_descriptors) {
  for (int descriptor = 0; descriptor < 64; ++descriptor) close(descriptor);
  return right(context, call, a);
}

/* A process that would outlive the worker and keep its pipes open. It is named so that a test can
 * look for it. */
DEFINE(leave_process) {
  if (fork() == 0) {
    const char* name = getenv("DROPLESS_TEST_PROCESS");
    execl("/bin/sleep", name != NULL ? name : "left behind", "1000", (char*)NULL);
    _exit(1);
  }
  return right(context, call, a);
}

/* Fails where the file named by the environment does not exist yet, and makes it. */
DEFINE(fail_once) {
  const char* marker = getenv("DROPLESS_TEST_MARKER");
  if (marker == NULL || open(marker, O_CREAT | O_EXCL | O_WRONLY, 0600) < 0) {
    return right(context, call, a);
  }
  return return_error(context, call, a);
}

/* As if the kernel had run out of memory, or somebody had killed the wrong process; once. */
DEFINE(killed_once) {
  const char* marker = getenv("DROPLESS_TEST_MARKER");
  if (marker != NULL && open(marker, O_CREAT | O_EXCL | O_WRONLY, 0600) >= 0) {
    raise(SIGKILL);
  }
  return right(context, call, a);
}

DROPLESS_EXPORT const dropless_implementation* dropless_get_implementation(uint32_t suite_version) {
  static dropless_implementation table;
  table = *example_get_implementation(suite_version);
  table.name = "misbehaving";
  table.permute_forward = BEHAVIOUR;
  return &table;
}
