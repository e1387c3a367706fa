/* SPDX-License-Identifier: Apache-2.0
 * A small MoE language model that trains (TRAINING-1 onward): byte vocabulary, L layers of RMSNorm
 * and MoE with residuals, cross-entropy plus balance and z losses, AdamW.
 */
#ifndef DROPLESS_CONTRACT_TRAINING_H
#define DROPLESS_CONTRACT_TRAINING_H

#include "dropless/contract/layer.h"

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
  int32_t reserved;
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

/* One optimizer step over n micro-batches, or (evaluate) a forward pass without any change. */
typedef struct dropless_model_step_args {
  uint32_t struct_size;
  uint32_t struct_version;
  dropless_model* model;
  const dropless_tensor* tokens; /* [n,T,context] i32 */
  const dropless_tensor* labels; /* [n,T] i32, negative = ignored */
  double loss;                   /* out: cross-entropy, mean over labelled tokens */
  double balance_loss;           /* out */
  double z_loss;                 /* out */
  double gradient_norm;          /* out, before clipping */
  int64_t overflowed; /* out: layers and micro-batches whose demand exceeded the capacity */
  const dropless_tensor* tokens_per_expert; /* out [num_layers,E] i64 or null */
} dropless_model_step_args;

#endif
