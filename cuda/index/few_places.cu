// A thread has a few neighbouring columns of every place in shared memory of its own, adds the rows of g to them as
// they come, and a block adds up its threads; the blocks' sums are added by reduce/partials.h. Every row of g is read
// once and in order.
#include <halo/core/dtype.h>

#include <algorithm>

#include "../device/number.cuh"
#include "../device/widen.cuh"
#include "../launch.h"
#include "../reduce/partials.h"
#include "../runtime/device.h"
#include "few_places.h"

namespace halo::cuda {
namespace {

constexpr int kLanes = 32, kMostThreads = 256, kMostPlaces = 32;
constexpr int kAhead = 16;  ///< rows on their way to a thread

/// A thread's sums of one place: as many as a pack has elements, in two halves so that a warp's accesses meet no bank
/// twice.
template <class T>
struct PlaceSums {
  using Sum = std::conditional_t<sizeof(T) == 2, float, double>;
  static constexpr int kHalf = kWide<T> / 2;
  using Half = Pack<Sum, kHalf>;
  static_assert(sizeof(Half) == 16);
  static constexpr int kBytes = 2 * sizeof(Half);
};

/// partial: [chunks, places, inner]. Groups of `lanes` threads, a power of two, take the rows of a chunk in turn, one
/// group beside the other; blocks of one chunk, its slabs, each have `lanes` packs of the rows.
template <class T, class Sum = typename PlaceSums<T>::Sum>
__global__ void __launch_bounds__(kMostThreads)
    sum_places_kernel(const T* g, const int64_t* index, int64_t chosen, int64_t chunk, int places, int packs, int lanes,
                      int slabs, Sum* partial) {
  using Half = typename PlaceSums<T>::Half;
  constexpr int kHalf = PlaceSums<T>::kHalf;
  extern __shared__ __align__(16) unsigned char shared[];
  auto* const sums = reinterpret_cast<Half*>(shared);  // [place][half][thread], and a place for what goes nowhere
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const int lane = thread % lanes, group = thread / lanes, groups = threads / lanes;
  for (int i = 0; i < 2 * (places + 1); ++i) sums[i * threads + thread] = Half{};
  const int64_t number = blockIdx.x / slabs, first = number * chunk + group;
  const int count =
      static_cast<int>((min((number + 1) * chunk, chosen) - first + groups - 1) / groups);  // of the group
  const int column = static_cast<int>(blockIdx.x % slabs) * lanes + lane;
  const auto* const from = reinterpret_cast<const int4*>(g) + first * packs + min(column, packs - 1);
  const int64_t step = int64_t{groups} * packs;
  int4 ahead[kAhead];
  int64_t place[kAhead];
  const auto fetch = [&](int u, int j) {  // always something that exists: no load waits for a test
    const int at = min(j, count - 1);
    ahead[u] = from[at * step];
    place[u] = index[first + at * groups];
  };
#pragma unroll
  for (int u = 0; u < kAhead && count > 0; ++u) fetch(u, u);
  for (int begin = 0; begin < count; begin += kAhead) {
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      const bool counts = begin + u < count && static_cast<uint64_t>(place[u]) < static_cast<uint64_t>(places);
      Half* const at = sums + (counts ? static_cast<int>(place[u]) : places) * 2 * threads + thread;
      const auto wide = device::widen(*reinterpret_cast<const Pack<T, kWide<T>>*>(&ahead[u]));
      Half low = at[0], high = at[threads];
#pragma unroll
      for (int k = 0; k < kHalf; ++k) {
        low.at[k] += static_cast<Sum>(wide.at[k]);
        high.at[k] += static_cast<Sum>(wide.at[kHalf + k]);
      }
      at[0] = low;
      at[threads] = high;
      fetch(u, begin + kAhead + u);
    }
  }
  __syncthreads();
  auto* const out = reinterpret_cast<Half*>(partial) + number * places * packs * 2;
  for (int i = thread; i < places * 2 * lanes; i += threads) {
    const int half = i % 2, of = i / 2 % lanes, at = i / 2 / lanes;
    const int to = static_cast<int>(blockIdx.x % slabs) * lanes + of;
    Half total{};
    for (int other = 0; other < groups; ++other) {
      const Half sum = sums[(at * 2 + half) * threads + other * lanes + of];
#pragma unroll
      for (int k = 0; k < kHalf; ++k) total.at[k] += sum.at[k];
    }
    if (to < packs) out[(int64_t{at} * packs + to) * 2 + half] = total;
  }
}

}  // namespace

bool sum_few_places(const char* op, const Tensor& g, const Tensor& index, const Tensor& y) {
  const int64_t places = y.size(0), inner = y.numel() / places, chosen = index.numel();
  constexpr int64_t kWorthwhile = 16384;
  if (places > kMostPlaces || chosen < kWorthwhile) return false;
  if (!is_half(y.dtype()) && y.dtype() != DType::Float32) return false;
  bool done = false;
  dispatch_floating(op, y.dtype(), [&]<class T>(std::type_identity<T>) {
    if constexpr (sizeof(T) <= 4) {
      if (inner % kWide<T> != 0 || inner > INT32_MAX || !is_aligned<T, kWide<T>>(g.data<T>())) return;
      using Sum = typename PlaceSums<T>::Sum;
      const int packs = static_cast<int>(inner / kWide<T>);
      int lanes = 1;
      while (lanes < kLanes && lanes < packs) lanes *= 2;
      // As many threads as have room in any GPU's shared memory, and rows for two blocks a multiprocessor; sums of
      // half types are float32, so that a thread adds no more than kMostRows.
      constexpr int64_t kShared = 96 << 10, kBlocks = 264, kMostRows = 1024;
      const int64_t room = (places + 1) * PlaceSums<T>::kBytes;
      const int64_t threads = std::min<int64_t>(kShared / room / kLanes * kLanes, kMostThreads);
      const int64_t slabs = (packs + lanes - 1) / lanes;
      const auto divide_up = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
      const int64_t chunk =
          std::min(divide_up(chosen, std::max<int64_t>(kBlocks / slabs, 1)), kMostRows * (threads / lanes));
      const int64_t chunks = divide_up(chosen, chunk);
      if (chunks * slabs > INT32_MAX) return;
      const Tensor partial =
          empty({chunks, y.numel()}, {.dtype = sizeof(T) == 2 ? DType::Float32 : DType::Float64, .device = y.device()});
      const DeviceScope scope(y.device());
      launch(op, sum_places_kernel<T>, static_cast<unsigned>(chunks * slabs), static_cast<unsigned>(threads),
             static_cast<std::size_t>(room * threads), scope.stream(), g.data<T>(), index.data<int64_t>(), chosen,
             chunk, static_cast<int>(places), packs, lanes, static_cast<int>(slabs), partial.data<Sum>());
      sum_partials(op, partial.data<Sum>(), chunks, y.numel(), y.numel(), y.data<T>(), scope.stream());
      done = true;
    }
  });
  return done;
}

}  // namespace halo::cuda
