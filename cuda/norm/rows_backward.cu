// Norms over rows (rows.cuh): backward. What it sums over rows is kept a column a thread, added up over the block's
// teams, then over blocks (reduce/partials.h).
#include <halo/ops/binary_functors.h>

#include "../reduce/partials.h"
#include "../runtime/traits.h"
#include "rows.cuh"

namespace halo::cuda {
namespace {

/// Adds the block's teams' column sums, in order, into out[0 ... length). All threads of the block call it.
template <class Row>
__device__ __forceinline__ void store_column_sums(const Row& row, const Teams& teams,
                                                  const typename Row::Values& values, typename Row::Value* out) {
  using Value = typename Row::Value;
  Value* const sums = reinterpret_cast<Value*>(row_slots);  // [teams][pitch]
  const int pitch = Row::kElements * teams.depth, own = teams.lane() * pitch;
  device::copy_async_wait_all();  // of rows that there are not
  __syncthreads();                // what is there may still be read
#pragma unroll
  for (int e = 0; e < Row::kElements; ++e) sums[own + row.column(e)] = values.at[e];
  __syncthreads();
  for (int column = static_cast<int>(threadIdx.x); column < row.length; column += Row::kThreads) {
    Value sum = 0;
#pragma unroll 8
    for (int team = 0; team < teams.lanes; ++team) sum += sums[team * pitch + column];
    out[column] = sum;
  }
}

/// The sum of `value` over a row's team. A team that is several warps waits for itself alone, so that `shared`, a value
/// a warp, must hold nothing else.
template <class Row, class Value>
__device__ __forceinline__ Value sum_over_team(const Row& row, Value value, Value* shared) {
  const int thread = static_cast<int>(threadIdx.x), warps = row.depth / Teams::kWarp;
  if (warps <= 1) return row.combine(value, shared, functor::Add{});
#pragma unroll
  for (int mask = 1; mask < Teams::kWarp; mask *= 2) value = value + shuffle_xor(value, mask);
  const auto meet = [&] { asm volatile("bar.sync %0, %1;" ::"r"(1 + thread / row.depth), "r"(row.depth) : "memory"); };
  meet();  // an earlier sum may still be read
  if (thread % Teams::kWarp == 0) shared[thread / Teams::kWarp] = value;
  meet();
  const int first = thread / row.depth * warps;
  value = shared[first];
  for (int warp = 1; warp < warps; ++warp) value = value + shared[first + warp];
  return value;
}

/// Blocks of the backward kernel with two sums that a multiprocessor should have at once.
template <class Row>
inline constexpr int kBackwardBlocks = sizeof(typename Row::Element) != 2 ? 1
                                       : Row::kElements > 16              ? 2
                                                                          : 3;

/// Whether the backward kernel reads rows twice from shared memory: those of half types would leave too few registers
/// for the sums.
template <class Row>
inline constexpr bool kReadsTwice = sizeof(typename Row::Element) == 2;

/// partials: [blocks][kSums][length], sums over the block's rows; null: not wanted.
template <class Row, int kSums>
__global__ void __launch_bounds__(Row::kThreads, kSums == 2 ? kBackwardBlocks<Row> : 1)
    rows_backward_kernel(const __grid_constant__ RowTeams teams,
                         const __grid_constant__ RowBackward<typename Row::Element> args,
                         typename Row::Value* partials) {
  using Value = typename Row::Value;
  using Three = Totals<Value, 3>;
  constexpr bool kStream = kSums > 2;  // a gradient besides, and the sum of all: as many operands as sums
  constexpr bool kTwice = kReadsTwice<Row>;
  // What rounding takes from a mean in float32 does not show in results of half types.
  constexpr bool kHalf = sizeof(typename Row::Element) == 2;
  __shared__ Three shared[Row::kThreads / Teams::kWarp];
  const Value per_element = 1 / static_cast<Value>(args.length);
  Value next_mean, next_rstd;
  int stage = 0;  // kTwice: the slots of this row or the next
  const auto fetch = [&](const Row& row) {
    row.fetch(stage + kX, args.x);
    row.fetch(stage + kGradient, args.g_y);
    if constexpr (kStream) {
      if (args.g_x != nullptr) row.fetch(stage + kPast, args.g_x);
    }
    next_mean = row.active ? args.mean[row.row] : Value(0);
    next_rstd = row.active ? args.rstd[row.row] : Value(0);
  };
  typename Row::Values sums[kSums] = {};
  Row next(teams);
  fetch(next);
  while (next.more()) {
    const Row row = next;
    const Value mean = next_mean, rstd = next_rstd;
    const int slots = stage;
    typename Row::Raw held[kTwice ? 1 : kSums];
    device::copy_async_wait_all();
    if constexpr (kTwice) {
      stage = kSums - stage;
    } else {
#pragma unroll
      for (int k = 0; k < kSums; ++k) held[k] = row.raw(k);
    }
    next.advance();
    fetch(next);
    const auto chunk_of = [&](int operand, int p) {
      if constexpr (kTwice) {
        return row.slot_chunk(slots + operand, p);
      } else {
        return row.chunk(held[operand], p);
      }
    };
    // f(chunk of x - mean, of g, and of g times the weight, p); of elements that there are not, g is 0, and x - mean if
    // that is summed.
    const auto each_chunk = [&](const auto& f) {
#pragma unroll
      for (int p = 0; p < Row::kPacks; ++p) {
        auto d = chunk_of(kX, p), h = row.chunk(typename Row::Columns{args.weight, 1}, p);
        const auto up = chunk_of(kGradient, p);
#pragma unroll
        for (int k = 0; k < Row::kSize; ++k) {
          d.at[k] -= kHalf || row.holds(p * Row::kSize + k) ? mean : Value(0);
          h.at[k] *= up.at[k];
        }
        f(d, up, h, p);
      }
    };
    Three parts[4] = {};
    each_chunk([&](const auto& d, const auto&, const auto& h, int) {
#pragma unroll
      for (int k = 0; k < Row::kSize; ++k) {
        if constexpr (!kHalf) parts[k % 4].at[0] += d.at[k];
        parts[k % 4].at[1] += h.at[k];
        parts[k % 4].at[2] += h.at[k] * d.at[k];
      }
    });
    const Three totals = sum_over_team(row, sum_of(parts), shared);
    const Value rest = product(totals.at[0], per_element), plain = product(totals.at[1], per_element);
    const Value scaled = (totals.at[2] - rest * totals.at[1]) * per_element * rstd;
    const Value shift = product(-rest, rstd), of_plain = product(-plain, rstd), of_xhat = -scaled * rstd;
    if constexpr (kTwice) {
      asm volatile("" ::: "memory");  // so that it is
    }
    each_chunk([&](const auto& d, const auto& up, const auto& h, int p) {
      typename Row::Chunk more{}, grad;
      if constexpr (kStream) {
        if (args.g_x != nullptr) more = chunk_of(kPast, p);
      }
#pragma unroll
      for (int k = 0; k < Row::kSize; ++k) {
        const int e = p * Row::kSize + k;
        const Value xhat = kHalf ? product(d.at[k], rstd) : d.at[k] * rstd + shift,
                    plain_part = kStream ? of_plain + more.at[k] : of_plain;
        grad.at[k] = h.at[k] * rstd + (xhat * of_xhat + plain_part);
        sums[0].at[e] += up.at[k] * xhat;
        sums[1].at[e] += up.at[k];
        if constexpr (kStream) sums[2].at[e] += grad.at[k];
      }
      if (args.x_grad != nullptr && row.active && row.holds(p * Row::kSize)) row.store_chunk(args.x_grad, p, grad);
    });
  }
#if __CUDA_ARCH__ >= 900
  device::release_next_grid();
#endif
  if (partials == nullptr) return;
#pragma unroll
  for (int k = 0; k < kSums; ++k) {
    store_column_sums(next, teams.teams, sums[k], partials + (int64_t{blockIdx.x} * kSums + k) * args.length);
  }
}

/// Calls f(type_identity of the row class, RowTeams) with what suits the backward kernel.
template <class T, class F>
void with_backward_row(const Rows& rows, bool packs, bool stream, F&& f) {
  if constexpr (sizeof(T) == 2) {
    // Half as many sums a thread leave room for more warps; their elements cost less memory to wait for.
    constexpr int kElements = 16;
    if (!stream && rows.length <= kElements * Teams::kThreads && rows.length % kWide<T> == 0) {
      const auto depth = std::bit_ceil(static_cast<uint64_t>((rows.length + kElements - 1) / kElements));
      return f(std::type_identity<HeldRow<T, true, false, Teams::kThreads, kElements>>{},
               RowTeams{rows, Teams::with_depth(depth), packs});
    }
  } else if constexpr (sizeof(T) == 4) {
    // Twice the threads for a row that is all a multiprocessor has at once.
    constexpr int kThreads = 512, kElements = 16;
    if (rows.length > kThreads * kElements / 2 && rows.length % kWide<T> == 0) {
      return f(std::type_identity<HeldRow<T, true, false, kThreads, kElements>>{},
               RowTeams{rows, {1, kThreads}, packs});
    }
  }
  with_held_row<T>(rows, packs, f);
}

/// Whether rows have a gradient besides, or the sum of all is wanted.
template <class T>
bool is_stream(const RowBackward<T>& a) {
  return a.x_sum != nullptr || a.g_x != nullptr;
}

/// Blocks of the backward kernel, on which the bits of the sums depend. A thread adds up no more than so many rows in
/// float32; the rest is added in float64.
template <class T>
int64_t backward_blocks(const RowBackward<T>& a) {
  constexpr int64_t kFewRows = 16, kMostRows = 128, kMultiprocessors = 132;  // of the largest GPUs
  int64_t blocks = 0;
  with_backward_row<T>(
      {a.rows, a.length}, false, is_stream(a), [&]<class Row>(std::type_identity<Row>, const RowTeams& t) {
        const int64_t full = kMultiprocessors * (is_stream(a) ? 1 : kBackwardBlocks<Row>);
        const int64_t lanes = t.teams.lanes, needed = (a.rows + lanes * kMostRows - 1) / (lanes * kMostRows);
        blocks = std::clamp<int64_t>(a.rows / (lanes * kFewRows), 1, std::max(full, needed));
      });
  return blocks;
}

template <class T>
bool are_packs(const RowBackward<T>& a) {
  return are_packs<T>(a.x, a.weight, a.g_x, a.g_y, a.x_grad);
}

/// Sums over rows that the kernel takes. Two alone are a kernel of their own where it matters.
template <class T>
int kernel_sums(const RowBackward<T>& a) {
  return is_stream(a) || sizeof(T) == 8 || a.length % kWide<T> != 0 || !are_packs(a) ? 3 : 2;
}

}  // namespace

template <class T>
int64_t rows_backward_workspace(const RowBackward<T>& a) {
  return backward_blocks(a) * kernel_sums(a) * a.length;
}

template <class T>
void rows_backward(const char* name, const RowBackward<T>& a, RowStatistic<T>* workspace, cudaStream_t stream) {
  const bool packs = are_packs(a);
  const int64_t blocks = backward_blocks(a);
  const int sums = kernel_sums(a);
  const bool wanted = a.weight_grad != nullptr || a.bias_grad != nullptr || a.x_sum != nullptr;
  with_backward_row<T>({a.rows, a.length}, packs, is_stream(a),
                       [&]<class Row>(std::type_identity<Row>, const RowTeams& t) {
                         auto kernel = rows_backward_kernel<Row, 3>;
                         if constexpr (Row::kPacked && sizeof(T) < 8) {
                           using Aligned = typename Row::Aligned;
                           if (packs) kernel = rows_backward_kernel<Aligned, 3>;
                           if (packs && sums == 2) {
                             kernel = t.teams.lanes == 1 ? rows_backward_kernel<typename Aligned::OfBlock, 2>
                                                         : rows_backward_kernel<Aligned, 2>;
                           }
                         }
                         const std::size_t slots = static_cast<std::size_t>(sums) * (kReadsTwice<Row> ? 2 : 1);
                         launch(name, kernel, static_cast<unsigned>(blocks), Row::kThreads, slots * Row::kSlotBytes,
                                stream, t, a, wanted ? workspace : nullptr);
                       });
  if (!wanted) return;
  sum_partials<RowStatistic<T>, T>(name, workspace, blocks, sums * a.length, a.length,
                                   {{a.weight_grad, a.bias_grad, a.x_sum}, a.length}, stream, 1,
                                   device_traits().is_hopper());
}

template void rows_backward(const char*, const RowBackward<float>&, float*, cudaStream_t);
template void rows_backward(const char*, const RowBackward<double>&, double*, cudaStream_t);
template void rows_backward(const char*, const RowBackward<BFloat16>&, float*, cudaStream_t);
template void rows_backward(const char*, const RowBackward<Float16>&, float*, cudaStream_t);
template int64_t rows_backward_workspace(const RowBackward<float>&);
template int64_t rows_backward_workspace(const RowBackward<double>&);
template int64_t rows_backward_workspace(const RowBackward<BFloat16>&);
template int64_t rows_backward_workspace(const RowBackward<Float16>&);

}  // namespace halo::cuda
