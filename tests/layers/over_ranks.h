// SPDX-License-Identifier: Apache-2.0
// A layer over ranks for tests: the tokens and experts of one big layer are dealt out to R ranks
// that are threads, and their results are laid together again, to be compared with one rank that
// has everything (EXCHANGE-13).
#pragma once

#include <dropless/contract.h>
#include <dropless/formats/dtype.h>
#include <dropless/formats/tensor_view.h>

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace dropless::testing {

using Index = std::int64_t;

template <class Args>
Args struct_of() {
  Args args = {};
  args.struct_size = sizeof args;
  args.struct_version = DROPLESS_STRUCT_VERSION;
  return args;
}

// A dense tensor of the whole layer; ranks see some of its rows.
class Whole {
 public:
  Whole() = default;
  Whole(dropless_dtype dtype, std::vector<Index> shape) : shape_(std::move(shape)) {
    row_ = element_bytes(dtype);
    for (std::size_t axis = 1; axis < shape_.size(); ++axis) row_ *= shape_[axis];
    bytes_.assign(static_cast<std::size_t>(std::max<Index>(1, row_ * shape_[0])), std::byte{0x5A});
    dtype_ = dtype;
  }
  [[nodiscard]] dropless_tensor rows(Index first, Index count) const {
    auto t = struct_of<dropless_tensor>();
    t.data = const_cast<std::byte*>(bytes_.data()) + first * row_;
    t.dtype = dtype_;
    t.rank = static_cast<std::int32_t>(shape_.size());
    Index stride = 1;
    for (std::size_t axis = shape_.size(); axis-- > 0;) {
      t.shape[axis] = axis == 0 ? count : shape_[axis];
      t.strides[axis] = stride;
      stride *= t.shape[axis];
    }
    return t;
  }
  [[nodiscard]] dropless_tensor all() const { return rows(0, shape_[0]); }
  // Every element from `next`, in order.
  Whole& fill(const std::function<double()>& next) {
    const dropless_tensor t = all();
    const TensorView view(t);
    for (Index i = 0; i < view.size(); ++i) {
      if (is_floating_point(dtype_)) {
        view.store_flat(next(), i);
      } else {
        view.store_integer_flat(static_cast<Index>(next()), i);
      }
    }
    return *this;
  }
  [[nodiscard]] std::vector<double> values() const {
    const dropless_tensor t = all();
    const TensorView view(t);
    std::vector<double> list;
    for (Index i = 0; i < view.size(); ++i) {
      list.push_back(is_floating_point(dtype_) ? view.load_flat(i)
                                               : static_cast<double>(view.load_integer_flat(i)));
    }
    return list;
  }

 private:
  dropless_dtype dtype_ = DROPLESS_FP32;
  std::vector<Index> shape_{0};
  Index row_ = 0;
  std::vector<std::byte> bytes_;
};

// The all-gather of threads; a rank that does not come lets the others wait, so all must open.
class ThreadGather {
 public:
  explicit ThreadGather(int ranks) : ranks_(ranks) {}
  int gather(int rank, const void* sent, void* received, std::size_t bytes) {
    std::unique_lock lock(mutex_);
    memory_.resize(static_cast<std::size_t>(ranks_) * bytes);
    std::memcpy(memory_.data() + static_cast<std::size_t>(rank) * bytes, sent, bytes);
    meet(lock);
    std::memcpy(received, memory_.data(), memory_.size());
    meet(lock);
    return 0;
  }

 private:
  void meet(std::unique_lock<std::mutex>& lock) {
    const int round = round_;
    if (++here_ == ranks_) {
      here_ = 0, ++round_;
      changed_.notify_all();
    }
    changed_.wait(lock, [&] { return round_ != round; });
  }
  int ranks_, here_ = 0, round_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::byte> memory_;
};

struct LayerSetup {
  std::vector<Index> tokens;  // of each rank
  Index hidden = 32, intermediate = 32, experts = 12, top_k = 3, shared = 32;
  dropless_dtype dtype = DROPLESS_FP32;
  int placement = DROPLESS_WEIGHTS_LATE, recipe = DROPLESS_RECIPE_PLAIN;
  bool keep = true, recompute = false, given_ids = false, scales = false;
  bool exact = false;  // small integers and powers of two: no order of sums shows
  double factor = -1;
  [[nodiscard]] Index all_tokens() const {
    Index sum = 0;
    for (const Index t : tokens) sum += t;
    return sum;
  }
};

inline constexpr const dropless_tensor* dropless_layer_parameters::*layer_members[] = {
    &dropless_layer_parameters::router_weight,  &dropless_layer_parameters::router_bias,
    &dropless_layer_parameters::expert_bias,    &dropless_layer_parameters::expert_scale,
    &dropless_layer_parameters::gate_up,        &dropless_layer_parameters::gate_up_bias,
    &dropless_layer_parameters::down,           &dropless_layer_parameters::down_bias,
    &dropless_layer_parameters::shared_gate_up, &dropless_layer_parameters::shared_down,
    &dropless_layer_parameters::shared_gate};
inline constexpr std::size_t layer_member_count = 11;
// Members 4 to 7 belong to the experts and are dealt out; member 2 has no gradient.
inline bool is_of_experts(std::size_t member) {
  return member >= 4 && member < 8;
}

// Data and results of one whole layer.
struct LayerWorld {
  LayerSetup setup;
  std::vector<Whole> parameters, gradients;  // of all experts
  Whole x, d_y, mask, given, y, ids, d_x;
  std::vector<double> counts;                       // [E], summed over the ranks
  std::vector<std::vector<double>> replicated{11};  // gradients summed over the ranks

  explicit LayerWorld(LayerSetup of) : setup(std::move(of)) {
    const LayerSetup& s = setup;
    const Index t = s.all_tokens(), e = s.experts, h = s.hidden, i = s.intermediate;
    const Index up = s.exact ? 1 : 2;  // exact: relu2
    std::mt19937 engine(7);
    std::normal_distribution<double> normal(0, 0.5);
    const auto integer = [&] { return static_cast<double>(engine() % 3) - 1; };
    const auto sparse = [&] { return engine() % 4 == 0 ? integer() : 0.0; };
    const std::function<double()> real = [&] { return normal(engine); };
    const auto zero = [] { return 0.0; };
    const std::vector<std::vector<Index>> shapes = {{e, h},
                                                    {e},
                                                    {e},
                                                    {e},
                                                    {e, up * i, h},
                                                    {e, up * i},
                                                    {e, h, i},
                                                    {e, h},
                                                    {up * s.shared, h},
                                                    {h, s.shared},
                                                    {1, h}};
    for (std::size_t m = 0; m < shapes.size(); ++m) {
      Whole& p = parameters.emplace_back(m < 4 ? DROPLESS_FP32 : s.dtype, shapes[m]);
      gradients.emplace_back(DROPLESS_FP32, shapes[m]);
      if (!s.exact) {
        p.fill(real);
      } else if (m == 3) {
        p.fill([&] { return std::ldexp(1.0, static_cast<int>(engine() % 3)); });
      } else if (m < 3 || m == 10) {
        p.fill(zero);  // every score is 1/2
      } else {
        p.fill(sparse);
      }
    }
    x = Whole(s.dtype, {t, h}), d_y = Whole(s.dtype, {t, h});
    x.fill(s.exact ? std::function<double()>(integer) : real);
    d_y.fill(s.exact ? std::function<double()>(integer) : real);
    mask = Whole(DROPLESS_U8, {t}).fill([&] { return engine() % 8 == 0 ? 0.0 : 1.0; });
    std::vector<Index> order(static_cast<std::size_t>(e));
    for (std::size_t n = 0; n < order.size(); ++n) order[n] = static_cast<Index>(n);
    Index next = 0;
    given = Whole(DROPLESS_I32, {t, s.top_k}).fill([&] {
      if (next++ % s.top_k == 0) std::shuffle(order.begin(), order.end(), engine);
      return engine() % 7 == 0
                 ? -1.0
                 : static_cast<double>(order[static_cast<std::size_t>(next % s.top_k)]);
    });
    y = Whole(s.dtype, {t, h}), d_x = Whole(DROPLESS_FP32, {t, h});
    ids = Whole(DROPLESS_I64, {t, s.top_k});
    counts.assign(static_cast<std::size_t>(e), 0);
  }
};

// What a rank's calls need, with everything its args point to.
class LayerRank {
 public:
  // ranks 0: no exchange, everything on one rank.
  LayerRank(const dropless_implementation& layer, LayerWorld& world, int rank, int ranks,
            dropless_exchange* exchange)
      : table_(layer), world_(world), exchange_(exchange) {
    const LayerSetup& s = world.setup;
    const Index share = std::max(1, ranks);
    Index first = 0, count = ranks == 0 ? s.all_tokens() : s.tokens[static_cast<std::size_t>(rank)];
    for (int r = 0; r < rank; ++r) first += s.tokens[static_cast<std::size_t>(r)];
    const Index local = s.experts / share;
    for (std::size_t m = 0; m < layer_member_count; ++m) {
      const bool dealt = is_of_experts(m);
      tensors_[m] =
          dealt ? world.parameters[m].rows(rank * local, local) : world.parameters[m].all();
      parameters.*layer_members[m] = &tensors_[m];
      if (m == 2) continue;
      if (dealt) {
        gradient_tensors_[m] = world.gradients[m].rows(rank * local, local);
      } else {
        own_gradients_[m] = world.gradients[m];
        gradient_tensors_[m] = own_gradients_[m].all();
      }
      gradients.*layer_members[m] = &gradient_tensors_[m];
    }
    route.num_experts = s.experts, route.top_k = s.top_k;
    route.score_function = DROPLESS_SCORE_SIGMOID;
    route.renormalize = s.exact ? 0 : 1, route.renormalize_eps = 1e-20, route.scaling_factor = 2;
    activation.kind = s.exact ? DROPLESS_RELU2 : DROPLESS_SWIGLU;
    settings.route = &route, settings.activation = &activation;
    settings.weight_placement = s.placement, settings.recipe = s.recipe;
    settings.gradient_format = DROPLESS_E5M2, settings.recompute = s.recompute ? 1 : 0;
    x_ = world.x.rows(first, count), d_y_ = world.d_y.rows(first, count);
    mask_ = world.mask.rows(first, count), given_ = world.given.rows(first, count);
    y_ = world.y.rows(first, count), ids_ = world.ids.rows(first, count);
    d_x_ = world.d_x.rows(first, count);
    counts_ = Whole(DROPLESS_I64, {s.experts});
    counts_tensor_ = counts_.all();
    forward.settings = &settings, forward.parameters = &parameters, forward.exchange = exchange;
    forward.x = &x_, forward.token_mask = &mask_,
    forward.given_ids = s.given_ids ? &given_ : nullptr;
    forward.y = &y_, forward.ids = &ids_, forward.tokens_per_expert = &counts_tensor_;
    forward.keep = s.keep ? 1 : 0;
    backward.forward = &forward, backward.d_y = &d_y_, backward.d_x = &d_x_;
    backward.gradients = &gradients;
  }
  LayerRank(const LayerRank&) = delete;
  LayerRank& operator=(const LayerRank&) = delete;

  ~LayerRank() { release(); }

  dropless_status run_forward() { return perform(table_.layer_forward, forward); }
  // A backward pass that succeeds takes the kept state with it.
  dropless_status run_backward() {
    const dropless_status status = perform(table_.layer_backward, backward);
    if (status == DROPLESS_OK) forward.saved = nullptr;
    return status;
  }
  void release() {
    if (forward.saved != nullptr) perform(table_.layer_release, forward);
    forward.saved = nullptr;
  }
  void require(dropless_status status) const {
    if (status != DROPLESS_OK) throw std::runtime_error(message);
  }
  // Adds this rank's counts and gradients of replicated parameters to the world's.
  void add_up() {
    static std::mutex one_at_a_time;
    const std::lock_guard lock(one_at_a_time);
    const auto add = [](std::vector<double>& sum, const std::vector<double>& values) {
      sum.resize(values.size(), 0.0);
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += values[i];
    };
    add(world_.counts, counts_.values());
    for (std::size_t m = 0; m < layer_member_count; ++m) {
      if (m != 2 && !is_of_experts(m)) add(world_.replicated[m], own_gradients_[m].values());
    }
  }

  dropless_route_settings route = struct_of<dropless_route_settings>();
  dropless_activation_settings activation = struct_of<dropless_activation_settings>();
  dropless_layer_settings settings = struct_of<dropless_layer_settings>();
  dropless_layer_parameters parameters = struct_of<dropless_layer_parameters>();
  dropless_layer_parameters gradients = struct_of<dropless_layer_parameters>();
  dropless_layer_args forward = struct_of<dropless_layer_args>();
  dropless_layer_backward_args backward = struct_of<dropless_layer_backward_args>();
  std::string message;

 private:
  template <class Args>
  dropless_status perform(dropless_status (*operation)(void*, dropless_call*, Args*), Args& args) {
    auto call = struct_of<dropless_call>();
    const dropless_status status = operation(table_.context, &call, &args);
    message = call.message;
    return status;
  }
  const dropless_implementation& table_;
  LayerWorld& world_;
  dropless_exchange* exchange_;
  dropless_tensor tensors_[layer_member_count], gradient_tensors_[layer_member_count];
  Whole own_gradients_[layer_member_count], counts_;
  dropless_tensor x_, d_y_, mask_, given_, y_, ids_, d_x_, counts_tensor_;
};

// Runs body(rank, handle) in R threads on an open handle; throws what a rank threw.
struct LayerTables {
  const dropless_implementation* layer;
  const dropless_implementation* exchange;  // opens the handles, with its profile
};
using RankBody = std::function<void(int, const std::vector<dropless_exchange*>&)>;
inline void on_handles(const LayerTables& tables, const LayerSetup& s, int handles,
                       const RankBody& body, double timeout = 20) {
  const int ranks = static_cast<int>(s.tokens.size());
  ThreadGather gather(ranks);
  struct Context {
    ThreadGather* gather;
    int rank;
  };
  std::vector<std::thread> threads;
  std::vector<std::string> failures(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      Context context{&gather, rank};
      auto settings = struct_of<dropless_exchange_settings>();
      settings.rank = rank, settings.ranks = ranks;
      settings.all_gather = [](void* to, const void* sent, void* received, std::size_t bytes) {
        const Context& c = *static_cast<const Context*>(to);
        return static_cast<std::int32_t>(c.gather->gather(c.rank, sent, received, bytes));
      };
      settings.all_gather_context = &context;
      settings.num_experts = s.experts, settings.top_k = s.top_k;
      settings.max_tokens = *std::max_element(s.tokens.begin(), s.tokens.end());
      settings.row_bytes = s.hidden * element_bytes(s.dtype);
      settings.scale_bytes = s.scales ? (s.hidden + 31) / 32 : 0;
      settings.ragged_buffer_factor = s.factor, settings.timeout_seconds = timeout;
      auto call = struct_of<dropless_call>();
      std::vector<dropless_exchange*> open;
      std::string& failure = failures[static_cast<std::size_t>(rank)];
      for (int n = 0; n < handles; ++n) {
        auto args = struct_of<dropless_exchange_open_args>();
        args.settings = &settings;
        if (tables.exchange->exchange_open(tables.exchange->context, &call, &args) != DROPLESS_OK) {
          failure = call.message;
          return;
        }
        open.push_back(args.exchange);
      }
      try {
        body(rank, open);
      } catch (const std::exception& error) {
        failure = "rank " + std::to_string(rank) + ": " + error.what();
      }
      for (dropless_exchange* handle : open) {
        auto args = struct_of<dropless_exchange_close_args>();
        args.exchange = handle;
        tables.exchange->exchange_close(tables.exchange->context, &call, &args);
      }
    });
  }
  for (std::thread& each : threads) each.join();
  for (const std::string& failure : failures) {
    if (!failure.empty()) throw std::runtime_error(failure);
  }
}

// Forward and backward over the ranks of the setup, or on one rank without an exchange.
inline LayerWorld run_world(const LayerTables& tables, const LayerSetup& setup) {
  LayerWorld world(setup);
  on_handles(tables, setup, 1, [&](int rank, const std::vector<dropless_exchange*>& handles) {
    LayerRank mine(*tables.layer, world, rank, static_cast<int>(setup.tokens.size()), handles[0]);
    mine.require(mine.run_forward());
    mine.require(mine.run_backward());
    mine.add_up();
  });
  return world;
}
inline LayerWorld run_alone(const LayerTables& tables, const LayerSetup& setup) {
  LayerWorld world(setup);
  LayerRank mine(*tables.layer, world, 0, 0, nullptr);
  mine.require(mine.run_forward());
  mine.require(mine.run_backward());
  mine.add_up();
  return world;
}

// "" or what differs by more than `bound` relative to the largest value; bound 0: bit by bit.
inline std::string difference(const LayerWorld& a, const LayerWorld& b, double bound,
                              double expert_bound) {
  std::string text;
  const auto compare = [&](const std::string& name, const std::vector<double>& x,
                           const std::vector<double>& y, double most) {
    double largest = 0, worst = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      largest = std::max(largest, std::abs(x[i]));
      worst = std::max(worst, std::abs(x[i] - y[i]));
      if (!(x[i] == x[i]) || !(y[i] == y[i])) worst = HUGE_VAL;
    }
    if (x.size() != y.size() || !(worst <= most * largest)) {
      text +=
          name + " differs by " + std::to_string(worst) + " of " + std::to_string(largest) + "; ";
    }
  };
  compare("ids", a.ids.values(), b.ids.values(), 0);
  compare("counts", a.counts, b.counts, 0);
  compare("y", a.y.values(), b.y.values(), bound);
  compare("d_x", a.d_x.values(), b.d_x.values(), bound);
  for (std::size_t m = 0; m < layer_member_count; ++m) {
    const std::string name = "gradient " + std::to_string(m);
    if (is_of_experts(m)) {
      compare(name, a.gradients[m].values(), b.gradients[m].values(), expert_bound);
    } else if (m != 2) {
      compare(name, a.replicated[m], b.replicated[m], bound);
    }
  }
  return text;
}

}  // namespace dropless::testing
