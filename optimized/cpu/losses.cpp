// SPDX-License-Identifier: Apache-2.0
// Router z-loss and cross-entropy, both made of logsumexp. ROUTING-15, LOSSES-1.
#include "optimized/cpu/operations.h"
#include "optimized/cpu/reduction.h"
#include "optimized/cpu/scores.h"
#include "optimized/cpu/values.h"

namespace dropless::cpu {
namespace {

std::vector<float> load_row(const Tensor& logits, Index t) {
  std::vector<float> row(static_cast<std::size_t>(logits.shape[1]));
  load_run(logits.at(t, 0), logits.dtype, logits.inner_stride(), logits.shape[1], row.data());
  return row;
}

void store_row(const Tensor& out, Index t, const std::vector<double>& row, double factor) {
  for (Index i = 0; i < out.shape[1]; ++i) {
    out.as<float>(t, i) = static_cast<float>(factor * row[static_cast<std::size_t>(i)]);
  }
}
void zero_row_of(const Tensor& out, Index t) {
  for (Index i = 0; i < out.shape[1]; ++i) out.as<float>(t, i) = 0;
}

Index bytes_of_row(const Tensor& logits) {
  return logits.shape[1] * 8;
}

// Tokens that count, and what each asks for.
struct Tokens {
  std::vector<Index> label;  // -1: does not count; z-loss: 0 for every token that does
  Index counted = 0;
};

Tokens unmasked(const Tensor& mask, Index tokens) {
  Tokens result;
  for (Index t = 0; t < tokens; ++t) {
    const bool counts = !mask || mask.as<std::uint8_t>(t) != 0;
    result.label.push_back(counts ? 0 : -1);
    result.counted += counts ? 1 : 0;
  }
  return result;
}

Tokens labelled(const Tensor& labels, Index vocabulary) {
  Tokens result;
  for (Index t = 0; t < labels.shape[0]; ++t) {
    const Index label = labels.integer(t);
    refuse_if(label >= vocabulary, "labels: beyond the vocabulary");
    result.label.push_back(std::max<Index>(label, -1));
    result.counted += label >= 0 ? 1 : 0;
  }
  return result;
}

// Mean over the tokens that count of term(log_sum_exp, row, label); 0 if there are none.
template <class Term>
double mean_of(int threads, const Tensor& logits, const Tokens& tokens, const Term& term) {
  if (tokens.counted == 0) return 0;
  const auto sums = reduce_tokens(
      threads, logits.shape[0], bytes_of_row(logits), 1, [&](Index begin, Index end, double* sum) {
        for (Index t = begin; t < end; ++t) {
          const Index label = tokens.label[static_cast<std::size_t>(t)];
          if (label < 0) continue;
          const std::vector<float> row = load_row(logits, t);
          *sum += term(log_sum_exp(row.data(), logits.shape[1], nullptr), row, label);
        }
      });
  return sums[0] / static_cast<double>(tokens.counted);
}

// d_logits[t] = gradient(log_sum_exp, softmax, label) over the tokens that count, else 0. gradient
// changes the softmax in place and returns a factor.
template <class Gradient>
void backward_of(int threads, const Tensor& logits, const Tokens& tokens, const Tensor& d_logits,
                 const Gradient& gradient) {
  const Index width = logits.shape[1];
  parallel_ranges(threads, logits.shape[0], rows_per_task(bytes_of_row(logits)),
                  [&](Index begin, Index end) {
                    std::vector<double> p(static_cast<std::size_t>(width));
                    for (Index t = begin; t < end; ++t) {
                      const Index label = tokens.label[static_cast<std::size_t>(t)];
                      if (label < 0) {
                        zero_row_of(d_logits, t);
                        continue;
                      }
                      const std::vector<float> row = load_row(logits, t);
                      const double lse = log_sum_exp(row.data(), width, p.data());
                      store_row(d_logits, t, p, gradient(lse, p, label));
                    }
                  });
}

}  // namespace

void z_loss_forward(Call& call, const dropless_z_loss_args& args) {
  const Tensor logits = tensor(args.logits, "logits", floats, {any, any});
  const Tensor mask =
      optional_tensor(args.token_mask, "token_mask", {DROPLESS_U8}, {logits.shape[0]});
  const Tensor loss = tensor(args.loss, "loss", {DROPLESS_FP32}, {1});
  const double mean =
      mean_of(call.threads(), logits, unmasked(mask, logits.shape[0]),
              [](double lse, const std::vector<float>&, Index) { return lse * lse; });
  loss.as<float>(0) = static_cast<float>(args.coeff * mean);
  call.ran_simd();
}

void z_loss_backward(Call& call, const dropless_z_loss_args& args) {
  const Tensor logits = tensor(args.logits, "logits", floats, {any, any});
  const Tensor mask =
      optional_tensor(args.token_mask, "token_mask", {DROPLESS_U8}, {logits.shape[0]});
  const double d_loss = tensor(args.d_loss, "d_loss", {DROPLESS_FP32}, {1}).as<float>(0);
  const Tensor d_logits =
      tensor(args.d_logits, "d_logits", {DROPLESS_FP32}, {logits.shape[0], logits.shape[1]});
  const Tokens tokens = unmasked(mask, logits.shape[0]);
  const double outer =
      d_loss * args.coeff * 2 / static_cast<double>(std::max<Index>(tokens.counted, 1));
  backward_of(call.threads(), logits, tokens, d_logits,
              [outer](double lse, std::vector<double>&, Index) { return outer * lse; });
  call.ran_simd();
}

void cross_entropy_forward(Call& call, const dropless_cross_entropy_args& args) {
  const Tensor logits = tensor(args.logits, "logits", floats, {any, any});
  const Tensor labels = tensor(args.labels, "labels", integers, {logits.shape[0]});
  const Tensor loss = tensor(args.loss, "loss", {DROPLESS_FP32}, {1});
  const Tokens tokens = labelled(labels, logits.shape[1]);
  loss.as<float>(0) = static_cast<float>(mean_of(
      call.threads(), logits, tokens, [](double lse, const std::vector<float>& row, Index label) {
        return lse - static_cast<double>(row[static_cast<std::size_t>(label)]);
      }));
  call.ran_simd();
}

void cross_entropy_backward(Call& call, const dropless_cross_entropy_args& args) {
  const Tensor logits = tensor(args.logits, "logits", floats, {any, any});
  const Tensor labels = tensor(args.labels, "labels", integers, {logits.shape[0]});
  const double d_loss = tensor(args.d_loss, "d_loss", {DROPLESS_FP32}, {1}).as<float>(0);
  const Tensor d_logits =
      tensor(args.d_logits, "d_logits", {DROPLESS_FP32}, {logits.shape[0], logits.shape[1]});
  const Tokens tokens = labelled(labels, logits.shape[1]);
  const double outer = d_loss / static_cast<double>(std::max<Index>(tokens.counted, 1));
  backward_of(call.threads(), logits, tokens, d_logits,
              [outer](double, std::vector<double>& p, Index label) {
                p[static_cast<std::size_t>(label)] -= 1;
                return outer;
              });
  call.ran_simd();
}

}  // namespace dropless::cpu
