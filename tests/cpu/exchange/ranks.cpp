// SPDX-License-Identifier: Apache-2.0
// Ranks as threads and as forked processes.
#include "tests/cpu/exchange/ranks.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

namespace dropless::cpu::testing {
namespace {

// In memory that forked processes share; a barrier before and after the bytes are read.
class SharedGathering final : public Gathering {
 public:
  explicit SharedGathering(int ranks) : ranks_(ranks) {
    memory_ = static_cast<Memory*>(
        mmap(nullptr, sizeof(Memory), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    if (memory_ == MAP_FAILED) throw std::runtime_error("mmap");
    pthread_barrierattr_t attributes;
    pthread_barrierattr_init(&attributes);
    pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&memory_->barrier, &attributes, static_cast<unsigned>(ranks));
    pthread_barrierattr_destroy(&attributes);
  }
  ~SharedGathering() override { munmap(memory_, sizeof(Memory)); }

  int gather(int rank, const void* sent, void* received, std::size_t bytes) override {
    if (bytes > most) return 1;
    std::memcpy(memory_->bytes[rank], sent, bytes);
    pthread_barrier_wait(&memory_->barrier);
    for (int r = 0; r < ranks_; ++r) {
      std::memcpy(static_cast<std::byte*>(received) + static_cast<std::size_t>(r) * bytes,
                  memory_->bytes[r], bytes);
    }
    pthread_barrier_wait(&memory_->barrier);
    return 0;
  }

 private:
  static constexpr std::size_t most = 4096;
  struct Memory {
    pthread_barrier_t barrier;
    std::byte bytes[16][most];
  };
  int ranks_;
  Memory* memory_;
};

}  // namespace

std::unique_ptr<Gathering> make_gathering(int ranks) {
  return std::make_unique<SharedGathering>(ranks);
}

void run_threads(int ranks, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) threads.emplace_back(body, r);
  for (std::thread& each : threads) each.join();
}

std::vector<std::string> run_processes(int ranks, const std::function<std::string(int)>& body) {
  struct Child {
    pid_t pid;
    int pipe;
  };
  std::vector<Child> children;
  for (int r = 0; r < ranks; ++r) {
    int ends[2];
    if (pipe(ends) != 0) throw std::runtime_error("pipe");
    const pid_t pid = fork();
    if (pid == 0) {
      ::close(ends[0]);
      const std::string result = body(r);
      const ssize_t written = write(ends[1], result.data(), result.size());
      _exit(written == static_cast<ssize_t>(result.size()) ? 0 : 1);
    }
    ::close(ends[1]);
    children.push_back({pid, ends[0]});
  }
  std::vector<std::string> results;
  for (const Child& child : children) {
    std::string text;
    char buffer[512];
    for (ssize_t got; (got = read(child.pipe, buffer, sizeof buffer)) > 0;) {
      text.append(buffer, static_cast<std::size_t>(got));
    }
    ::close(child.pipe);
    int status = 0;
    waitpid(child.pid, &status, 0);
    if (WIFSIGNALED(status)) text = "signal " + std::to_string(WTERMSIG(status));
    if (WIFEXITED(status) && WEXITSTATUS(status) != 0 && text.empty()) text = "exit status";
    results.push_back(text);
  }
  return results;
}

Rank::Rank(const dropless_profile& profile, int rank, int ranks, Gathering& gathering)
    : settings(make_args<dropless_exchange_settings>()),
      table_(exchange::implementation(profile)),
      context_{&gathering, rank} {
  settings.rank = rank, settings.ranks = ranks;
  settings.all_gather = [](void* context, const void* sent, void* received, std::size_t bytes) {
    const Context& c = *static_cast<const Context*>(context);
    return static_cast<std::int32_t>(c.gathering->gather(c.rank, sent, received, bytes));
  };
  settings.all_gather_context = &context_;
  settings.row_bytes = 1 << 20;
  settings.scale_bytes = 1 << 10;
  settings.ragged_buffer_factor = -1;
  settings.timeout_seconds = 20;
}

template <class Args>
Outcome Rank::call(dropless_status (*operation)(void*, dropless_call*, Args*), Args& args) {
  auto raw = make_args<dropless_call>();
  const dropless_status status = operation(table_->context, &raw, &args);
  return {status, raw.message, raw.path};
}

Outcome Rank::open() {
  auto args = make_args<dropless_exchange_open_args>();
  args.settings = &settings;
  const Outcome outcome = call(table_->exchange_open, args);
  exchange_ = args.exchange;
  return outcome;
}

Outcome Rank::close() {
  if (exchange_ == nullptr) return {DROPLESS_OK, {}, {}};
  auto args = make_args<dropless_exchange_close_args>();
  args.exchange = exchange_;
  exchange_ = nullptr;
  return call(table_->exchange_close, args);
}

Outcome Rank::capacity(Index& rows) {
  auto args = make_args<dropless_exchange_capacity_args>();
  args.settings = &settings;
  const Outcome outcome = call(table_->exchange_capacity, args);
  rows = args.capacity;
  return outcome;
}

PlanResult Rank::plan(const Array& ids, Index step, bool last) {
  const Index slots = settings.placement != nullptr ? settings.placement->shape[1]
                                                    : settings.num_experts / settings.ranks;
  const auto vector = [](Index n) {
    Array array(DROPLESS_I64, {n});
    return array.fill(-77);
  };
  const Array pairs = vector(slots), offsets = vector(slots + 1);
  const Array sources = vector(settings.ranks), global = vector(settings.num_experts);
  const Array total = vector(1), demand = vector(1), sent = vector(1), node = vector(1);
  const Array first = vector(1), unseen = vector(1), dropped = vector(1);
  auto args = make_args<dropless_exchange_plan_args>();
  args.exchange = exchange_, args.ids = ids.get();
  args.tokens_per_local_expert = pairs.get(), args.offsets = offsets.get();
  args.rows_per_source = sources.get(), args.global_counts = global.get();
  args.total_rows = total.get(), args.demand = demand.get();
  args.sent_bytes = sent.get(), args.sent_node_bytes = node.get();
  args.step = step, args.last_step = last ? 1 : 0;
  args.first_overflow_step = first.get(), args.unseen_steps = unseen.get();
  args.dropped_pairs = dropped.get();
  PlanResult result;
  result.outcome = call(table_->exchange_plan, args);
  result.checked = args.checked;
  const auto values = [](const Array& array) {
    std::vector<Index> list;
    for (Index i = 0; i < array.size(); ++i) list.push_back(array.view().load_integer_flat(i));
    return list;
  };
  result.pairs = values(pairs), result.offsets = values(offsets);
  result.rows_per_source = values(sources), result.global_counts = values(global);
  const auto one = [&](const Array& array) { return values(array)[0]; };
  result.total = one(total), result.demand = one(demand);
  result.sent_bytes = one(sent), result.sent_node_bytes = one(node);
  result.first_overflow = one(first), result.unseen = one(unseen), result.dropped = one(dropped);
  return result;
}

namespace {
const dropless_tensor* get(const Array* array) {
  return array == nullptr ? nullptr : array->get();
}
}  // namespace

Outcome Rank::dispatch(const Array& x, const Array& rows, const Array* weights,
                       const Array* row_weights, const Array* scales, const Array* row_scales,
                       const Array* row_ids, const Array* row_source) {
  auto args = make_args<dropless_exchange_dispatch_args>();
  args.exchange = exchange_, args.x = x.get(), args.rows = rows.get();
  args.weights = get(weights), args.row_weights = get(row_weights);
  args.scales = get(scales), args.row_scales = get(row_scales);
  args.row_ids = get(row_ids), args.row_source = get(row_source);
  return call(table_->exchange_dispatch, args);
}

Outcome Rank::combine(const Array& rows, const Array& y, const Array* row_weights) {
  auto args = make_args<dropless_exchange_combine_args>();
  args.exchange = exchange_, args.rows = rows.get(), args.y = y.get();
  args.row_weights = get(row_weights);
  return call(table_->exchange_combine, args);
}

Outcome Rank::dispatch_backward(const Array& d_rows, const Array& d_x, const Array* d_row_weights,
                                const Array* d_weights) {
  auto args = make_args<dropless_exchange_dispatch_backward_args>();
  args.exchange = exchange_, args.d_rows = d_rows.get(), args.d_x = d_x.get();
  args.d_row_weights = get(d_row_weights), args.d_weights = get(d_weights);
  return call(table_->exchange_dispatch_backward, args);
}

Outcome Rank::combine_backward(const Array& d_y, const Array& d_rows, const Array* rows,
                               const Array* row_weights, const Array* d_row_weights) {
  auto args = make_args<dropless_exchange_combine_backward_args>();
  args.exchange = exchange_, args.d_y = d_y.get(), args.d_rows = d_rows.get();
  args.rows = get(rows), args.row_weights = get(row_weights);
  args.d_row_weights = get(d_row_weights);
  return call(table_->exchange_combine_backward, args);
}

}  // namespace dropless::cpu::testing
