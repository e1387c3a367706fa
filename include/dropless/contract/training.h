/* SPDX-License-Identifier: Apache-2.0
 * A small MoE language model that trains (TRAINING-1 onward): byte vocabulary, L layers of RMSNorm
 * and MoE with residuals, cross-entropy plus balance and z losses, AdamW.
 */
#ifndef DROPLESS_CONTRACT_TRAINING_H
#define DROPLESS_CONTRACT_TRAINING_H

#include "dropless/contract/layer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dropless_model dropless_model; /* opaque */

typedef struct dropless_model_settings {
  uint32_t struct_size;
  uint32_t struct_version;
  const dropless_layer_settings* layer;
  int64_t num_layers;
  int64_t vocabulary;
  int64_t context; /* tokens of the n-gram context embedding */
  int64_t hidden;
  int64_t intermediate;
  int64_t shared_intermediate;
  dropless_dtype weight_dtype;
  dropless_dtype first_moment_dtype;
  int32_t weight_rounding;
  int32_t master_weights;     /* 1: bf16 weights have fp32 masters */
  int32_t loss_normalization; /* TRAINING: 0 mean of rank means, 1 all labelled tokens */
  int32_t balance_scope;
  double balance_coeff;
  double z_coeff;
  double bias_update_rate;
  double learning_rate;
  double beta1;
  double beta2;
  double eps;
  double weight_decay;
  double max_gradient_norm;
  uint64_t seed;
} dropless_model_settings;

typedef struct dropless_model_open_args {
  uint32_t struct_size;
  uint32_t struct_version;
  const dropless_model_settings* settings;
  const dropless_exchange_settings* exchange; /* null on one rank */
  dropless_model* model;                      /* out */
} dropless_model_open_args;

typedef struct dropless_model_close_args {
  uint32_t struct_size;
  uint32_t struct_version;
  dropless_model* model;
} dropless_model_close_args;

/* Reads (write = 0) or sets one parameter, so that two implementations can start from the same
 * ones. index counts 0, 1, ... ; past the last one the call is refused. Names: "embedding"
 * [vocabulary * context, hidden], "layer<i>.norm" [hidden], "layer<i>.<member of
 * dropless_layer_parameters>", "norm" [hidden], "head" [vocabulary, hidden]. */
typedef struct dropless_model_parameter_args {
  uint32_t struct_size;
  uint32_t struct_version;
  dropless_model* model;
  int64_t index;
  int32_t write;
  int32_t rank;                     /* out, when value is null: the shape */
  int64_t shape[DROPLESS_MAX_RANK]; /* out, when value is null */
  char name[DROPLESS_PATH_BYTES];   /* out */
  const dropless_tensor* value;     /* fp32, in or out, or null */
} dropless_model_parameter_args;

/* All results are over all ranks and summed or averaged over the micro-batches.
 * One optimizer step over n micro-batches, or (evaluate) a forward pass without any change. */
typedef struct dropless_model_step_args {
  uint32_t struct_size;
  uint32_t struct_version;
  dropless_model* model;
  const dropless_tensor* tokens;              /* [n,T,context] i32 */
  const dropless_tensor* labels;              /* [n,T] i32, negative = ignored */
  const dropless_tensor* sequence_boundaries; /* [n,S+1] i64 or null */
  double loss;                                /* out: cross-entropy, mean over labelled tokens */
  double balance_loss;                        /* out */
  double z_loss;                              /* out */
  double gradient_norm;                       /* out, before clipping */
  int64_t overflowed;        /* out: layers and micro-batches whose demand exceeded the capacity */
  int64_t unseen_overflowed; /* out: of them, on steps without a check */
  int64_t saturated_codes;   /* out: MXFP8 codes at the largest magnitude */
  int64_t total_codes;       /* out */
  const dropless_tensor* tokens_per_expert; /* out [num_layers,E] i64 or null */
} dropless_model_step_args;

#ifdef __cplusplus
}
#endif

#endif
