// A block takes a chunk of the index, sorts it (stably) in shared memory, and adds up what goes to each place; the
// chunks' sums are added by reduce/partials.h. Every row of g is read once and nearly in order.
#include <halo/core/dtype.h>

#include "../device/number.cuh"
#include "../device/widen.cuh"
#include "../launch.h"
#include "../reduce/partials.h"
#include "../runtime/device.h"
#include "few_places.h"

namespace halo::cuda {
namespace {

constexpr int kThreads = 256, kWarp = 32, kChunk = 1024, kSlices = kChunk / kWarp, kMostPlaces = 32;

/// A chunk's elements by place, in order.
struct Order {
  int starts[kMostPlaces + 1];
  uint16_t at[kChunk];
  uint16_t counts[kSlices][kMostPlaces];  ///< of a warp's 32 elements; then of those before it
};

/// All threads of the block call it.
__device__ __forceinline__ void sort_chunk(const int64_t* index, int count, int places, Order& order) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
  constexpr int kEach = kChunk / kThreads;
  for (int i = thread; i < kSlices * kMostPlaces; i += kThreads) order.counts[i / kMostPlaces][i % kMostPlaces] = 0;
  __syncthreads();
  int place[kEach], rank[kEach];
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    const int slice = warp * kEach + e, i = slice * kWarp + lane;
    const int64_t v = i < count ? index[i] : -1;
    place[e] = v < 0 || v >= places ? -1 : static_cast<int>(v);
    const unsigned same = __match_any_sync(~0u, place[e]);
    rank[e] = __popc(same & ((1u << lane) - 1));
    if (place[e] >= 0 && rank[e] == 0) order.counts[slice][place[e]] = static_cast<uint16_t>(__popc(same));
  }
  __syncthreads();
  if (warp == 0) {  // a lane a place
    int all = 0;
    for (int slice = 0; slice < kSlices; ++slice) {
      const int here = order.counts[slice][lane];
      order.counts[slice][lane] = static_cast<uint16_t>(all);
      all += here;
    }
    int before = all;
#pragma unroll
    for (int step = 1; step < kWarp; step *= 2) {
      const int other = __shfl_up_sync(~0u, before, step);
      if (lane >= step) before += other;
    }
    order.starts[lane + 1] = before;
    if (lane == 0) order.starts[0] = 0;
  }
  __syncthreads();
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    const int slice = warp * kEach + e;
    if (place[e] < 0) continue;
    order.at[order.starts[place[e]] + order.counts[slice][place[e]] + rank[e]] =
        static_cast<uint16_t>(slice * kWarp + lane);
  }
  __syncthreads();
}

/// partial: [chunks, places, inner]. `lanes` threads, a power of two, work on a row, a group; each group has its share
/// of the sorted chunk, wherever a place's run begins, and many rows on their way.
template <class T, class Sum>
__global__ void __launch_bounds__(kThreads, 2) sum_chunks_kernel(const T* g, const int64_t* index, int64_t chosen,
                                                                 int places, int packs, int lanes, Sum* partial) {
  constexpr int kSize = kWide<T>, kBatch = 16;
  using Packed = Pack<T, kSize>;
  using Sums = Pack<Sum, kSize>;
  __shared__ Order order;
  __shared__ Sums carried[kThreads];  ///< what a group has of the run that it begins in the middle of
  __shared__ int carried_place[kThreads];
  const int64_t first = int64_t{blockIdx.x} * kChunk;
  sort_chunk(index + first, static_cast<int>(min(int64_t{kChunk}, chosen - first)), places, order);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % lanes, group = thread / lanes;
  const int groups = kThreads / lanes, count = order.starts[places];
  const int begin = count * group / groups, end = count * (group + 1) / groups;
  int first_place = 0;
  while (begin < end && order.starts[first_place + 1] <= begin) ++first_place;
  const bool carries = begin < end && order.starts[first_place] < begin;
  const auto* const rows = reinterpret_cast<const Packed*>(g) + first * packs;
  auto* const out = reinterpret_cast<Sums*>(partial) + int64_t{blockIdx.x} * places * packs;
  for (int column = lane; column - lane < packs; column += lanes) {
    const bool there = column < packs;
    int place = first_place;
    Sums sum{};
    const auto finish_run = [&] {
      if (carries && place == first_place) {
        carried[thread] = sum;
      } else if (there) {
        out[place * packs + column] = sum;
      }
    };
    __syncthreads();  // the last column's may still be read
    if (lane == 0) carried_place[group] = carries ? first_place : -1;
    for (int j = begin; j < end; j += kBatch) {
      Packed batch[kBatch];
#pragma unroll
      for (int u = 0; u < kBatch; ++u) {
        batch[u] = rows[int64_t{order.at[min(j + u, end - 1)]} * packs + min(column, packs - 1)];
      }
#pragma unroll
      for (int u = 0; u < kBatch; ++u) {
        if (j + u >= end) continue;
        while (j + u >= order.starts[place + 1]) {  // places without elements are 0
          finish_run();
          sum = Sums{};
          ++place;
        }
        const auto wide = device::widen(batch[u]);
#pragma unroll
        for (int k = 0; k < kSize; ++k) sum.at[k] += static_cast<Sum>(wide.at[k]);
      }
    }
    const bool owns = begin < end && !(carries && place == first_place);
    if (begin < end && !owns) finish_run();
    __syncthreads();
    if (owns) {
      for (int other = group + 1; other < groups; ++other) {
        if (carried_place[other] != place) continue;
#pragma unroll
        for (int k = 0; k < kSize; ++k) sum.at[k] += carried[other * lanes + lane].at[k];
      }
      finish_run();
    }
    for (int p = group; there && p < places; p += groups) {
      if (order.starts[p] == order.starts[p + 1]) out[p * packs + column] = Sums{};
    }
  }
}

}  // namespace

bool sum_few_places(const char* op, const Tensor& g, const Tensor& index, const Tensor& y) {
  const int64_t places = y.size(0), inner = y.numel() / places, chosen = index.numel();
  constexpr int64_t kWorthwhile = 16 * kChunk;
  if (places > kMostPlaces || chosen < kWorthwhile) return false;
  if (!is_half(y.dtype()) && y.dtype() != DType::Float32) return false;
  bool done = false;
  dispatch_floating(op, y.dtype(), [&]<class T>(std::type_identity<T>) {
    if constexpr (sizeof(T) <= 4) {
      if (inner % kWide<T> != 0 || inner > INT32_MAX || !is_aligned<T, kWide<T>>(g.data<T>())) return;
      using Sum = std::conditional_t<sizeof(T) == 2, float, double>;  // of a chunk
      const int64_t chunks = (chosen + kChunk - 1) / kChunk;
      const int packs = static_cast<int>(inner / kWide<T>);
      int lanes = 1;
      while (lanes < kThreads && lanes < packs) lanes *= 2;
      const Tensor partial =
          empty({chunks, y.numel()}, {.dtype = sizeof(T) == 2 ? DType::Float32 : DType::Float64, .device = y.device()});
      const DeviceScope scope(y.device());
      launch(op, sum_chunks_kernel<T, Sum>, static_cast<unsigned>(chunks), kThreads, 0, scope.stream(), g.data<T>(),
             index.data<int64_t>(), chosen, static_cast<int>(places), packs, lanes, partial.data<Sum>());
      sum_partials(op, partial.data<Sum>(), chunks, y.numel(), y.numel(), y.data<T>(), scope.stream());
      done = true;
    }
  });
  return done;
}

}  // namespace halo::cuda
