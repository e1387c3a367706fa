// SPDX-License-Identifier: Apache-2.0
// Blocks of the matrix product: panels of both operands are copied into caches, widened and
// transposed on the way, and multiplied by the inner kernels.
#include "optimized/cpu/gemm_engine.h"

#include <memory>

#include "optimized/cpu/gemm_kernels.h"

namespace dropless::cpu {
namespace {

// A task is one block of sums. Its size has no influence on any bit of the result, so that it may
// follow the number of threads.
constexpr Index most_rows = 672, most_columns = 256, least_rows = 84, least_columns = 64;
constexpr Index panels_at_a_time = 8;  // panels of A that stay in the second-level cache

struct Task {
  std::size_t product;
  Index row, column, rows, columns;
};

// Equal pieces of at most `most`, all but the last one multiples of `unit`.
Index piece(Index extent, Index most, Index unit) {
  const Index pieces = std::max<Index>(ceil_div(extent, most), 1);
  return std::max(unit, ceil_div(ceil_div(extent, pieces), unit) * unit);
}

std::vector<Task> cut(const std::vector<GemmProduct>& products, int threads) {
  const Index row_unit = gemm_kernels().tile_rows, column_unit = gemm_kernels().tile_columns;
  Index task_rows = most_rows, task_columns = most_columns;
  const auto count = [&] {
    Index tasks = 0;
    for (const GemmProduct& p : products) {
      tasks += ceil_div(p.rows, task_rows) * ceil_div(p.columns, task_columns);
    }
    return tasks;
  };
  const Index wanted = thread_count(threads) == 1 ? 1 : 4 * thread_count(threads);
  while (count() < wanted && task_columns > least_columns) task_columns /= 2;
  while (count() < wanted && task_rows > least_rows) task_rows /= 2;
  std::vector<Task> tasks;
  for (std::size_t p = 0; p < products.size(); ++p) {
    const auto [rows, columns] = std::pair{piece(products[p].rows, task_rows, row_unit),
                                           piece(products[p].columns, task_columns, column_unit)};
    for (Index row = 0; row < products[p].rows; row += rows) {
      for (Index column = 0; column < products[p].columns; column += columns) {
        tasks.push_back({p, row, column, std::min(rows, products[p].rows - row),
                         std::min(columns, products[p].columns - column)});
      }
    }
  }
  return tasks;
}

// Buffers of one thread, kept for its next task.
struct Buffers {
  static constexpr Index c_floats = most_rows * most_columns;
  static constexpr Index b_floats = gemm_depth * most_columns;
  static constexpr Index a_floats = panels_at_a_time * 16 * gemm_a_stride;
  static constexpr Index t_floats = gemm_depth * panels_at_a_time * 16;
  struct Free {
    void operator()(float* p) const { ::operator delete[](p, std::align_val_t{64}); }
  };
  std::unique_ptr<float, Free> memory{static_cast<float*>(::operator new[](
      (c_floats + b_floats + a_floats + t_floats) * sizeof(float), std::align_val_t{64}))};
  float* c() const { return memory.get(); }
  float* b() const { return c() + c_floats; }
  float* a() const { return b() + b_floats; }
  float* temporary() const { return a() + a_floats; }
};

class Block {
 public:
  Block(const GemmProduct& product, const Task& task, const GemmOperand& a, const GemmOperand& b,
        GemmLayout layout, const GemmKernels& kernels, Buffers& buffers)
      : product_(product),
        task_(task),
        a_(a),
        b_(b),
        layout_(layout),
        kernels_(kernels),
        buffers_(buffers) {}

  void compute() {
    const Index panel = kernels_.tile_rows;
    const Index step = panels_at_a_time * panel;
    for (Index k = 0; k < product_.depth; k += gemm_depth) {
      const Index depth = std::min(gemm_depth, product_.depth - k);
      load_b(k, depth);
      for (Index row = 0; row < task_.rows; row += step) {
        const Index rows = std::min(step, task_.rows - row);
        load_a(row, rows, k, depth);
        for (Index column = 0; column < task_.columns; column += kernels_.tile_columns) {
          for (Index r = 0; r < rows; r += panel) {
            kernels_.multiply(std::min(panel, rows - r), depth, buffers_.a() + r * gemm_a_stride,
                              buffers_.b() + column * depth,
                              buffers_.c() + (row + r) * most_columns + column, most_columns,
                              k == 0);
          }
        }
      }
    }
    if (product_.depth == 0) {
      std::fill_n(buffers_.c(), task_.rows * most_columns, 0.0F);
    }
  }

 private:
  // Panels [depth][tile_columns] one after the other; columns beyond the last one are zero.
  void load_b(Index k, Index depth) {
    if (!layout_.b_transposed) {
      load_b_rows(k, depth);
    } else {
      load_b_columns(k, depth);
    }
  }
  void load_b_rows(Index k, Index depth) {
    const Index width = kernels_.tile_columns;
    const float* from = b_.in_place(product_.group, k, task_.column);
    if (from != nullptr) {
      kernels_.pack(from, b_.row_stride(), depth, task_.columns, depth, buffers_.b());
      return;
    }
    constexpr Index rows_at_a_time = 16;
    for (Index row = 0; row < depth; row += rows_at_a_time) {
      const Index rows = std::min(rows_at_a_time, depth - row);
      b_.load(product_.group, k + row, task_.column, rows, task_.columns, buffers_.temporary(),
              most_columns);
      kernels_.pack(buffers_.temporary(), most_columns, rows, task_.columns, depth,
                    buffers_.b() + row * width);
    }
  }
  void load_b_columns(Index k, Index depth) {
    const Index width = kernels_.tile_columns;
    for (Index column = 0; column < task_.columns; column += width) {
      float* panel = buffers_.b() + column * depth;
      const Index columns = std::min(width, task_.columns - column);
      if (columns < width) std::fill_n(panel, width * depth, 0.0F);
      transpose_into(b_, task_.column + column, k, columns, depth, panel, width);
    }
  }
  void load_a(Index row, Index rows, Index k, Index depth) {
    const Index first = task_.row + row;
    if (!layout_.a_transposed) {
      a_.load(product_.group, first, k, rows, depth, buffers_.a(), gemm_a_stride);
    } else {
      transpose_into(a_, k, first, depth, rows, buffers_.a(), gemm_a_stride);
    }
  }
  void transpose_into(const GemmOperand& operand, Index row, Index column, Index rows,
                      Index columns, float* out, Index out_stride) {
    const float* from = operand.in_place(product_.group, row, column);
    Index stride = operand.row_stride();
    if (from == nullptr) {
      operand.load(product_.group, row, column, rows, columns, buffers_.temporary(), columns);
      from = buffers_.temporary();
      stride = columns;
    }
    kernels_.transpose(from, stride, rows, columns, out, out_stride);
  }

  const GemmProduct& product_;
  const Task& task_;
  const GemmOperand &a_, &b_;
  GemmLayout layout_;
  const GemmKernels& kernels_;
  Buffers& buffers_;
};

}  // namespace

void multiply(int threads, const std::vector<GemmProduct>& products, const GemmOperand& a,
              const GemmOperand& b, GemmLayout layout, const GemmStore& store) {
  const std::vector<Task> tasks = cut(products, threads);
  const GemmKernels& kernels = gemm_kernels();
  parallel_for(threads, static_cast<Index>(tasks.size()), [&](Index index) {
    static thread_local Buffers buffers;
    const Task& task = tasks[static_cast<std::size_t>(index)];
    const GemmProduct& product = products[task.product];
    Block(product, task, a, b, layout, kernels, buffers).compute();
    store(product, task.row, task.column, task.rows, task.columns, buffers.c(), most_columns);
  });
}

}  // namespace dropless::cpu
