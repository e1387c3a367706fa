/* SPDX-License-Identifier: Apache-2.0
 * A stranger's library in C99 that offers one operation of the contract: the expert-bias update. */
#include <dropless/contract.h>
#include <stdio.h>

static dropless_status refuse(dropless_call* call, const char* why) {
  snprintf(call->message, sizeof call->message, "%s", why);
  return DROPLESS_INVALID_ARGUMENT;
}

static dropless_status bias_update(void* context, dropless_call* call,
                                   dropless_bias_update_args* a) {
  const dropless_tensor* counts = a->counts;
  const dropless_tensor* bias = a->expert_bias;
  int64_t total = 0;
  (void)context;
  snprintf(call->path, sizeof call->path, "plugin/plain");
  if (counts->rank != 2 || bias->rank != 1 || counts->shape[1] != bias->shape[0]) {
    return refuse(call, "counts must be [n,E] and expert_bias [E]");
  }
  for (int64_t row = 0; row < counts->shape[0]; ++row) {
    for (int64_t e = 0; e < counts->shape[1]; ++e) {
      total += ((const int64_t*)counts->data)[row * counts->strides[0] + e * counts->strides[1]];
    }
  }
  for (int64_t e = 0; e < bias->shape[0]; ++e) {
    float* b = (float*)bias->data + e * bias->strides[0];
    int64_t load = 0;
    for (int64_t row = 0; row < counts->shape[0]; ++row) {
      load += ((const int64_t*)counts->data)[row * counts->strides[0] + e * counts->strides[1]];
    }
    const int64_t missing = total - bias->shape[0] * load;
    *b = (float)((double)*b + a->rate * (double)((missing > 0) - (missing < 0)));
  }
  return DROPLESS_OK;
}

const dropless_implementation* dropless_get_implementation(uint32_t suite_version) {
  static const dropless_profile profile = {sizeof profile, DROPLESS_STRUCT_VERSION};
  static const dropless_implementation mine = {.struct_size = sizeof mine,
                                               .contract_version = DROPLESS_CONTRACT_VERSION,
                                               .name = "a stranger's plugin",
                                               .version = "1",
                                               .build = "C99",
                                               .profile = &profile,
                                               .bias_update = bias_update};
  return suite_version / 1000 == DROPLESS_CONTRACT_MAJOR ? &mine : 0;
}
