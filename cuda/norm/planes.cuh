// Elementwise kernels over dense [N, C, positions] whose coefficients are those of a plane (n, c): a block has a piece
// of a plane.
#pragma once

#include <halo/ops/norm.h>

#include "../device/map.cuh"
#include "../device/run_piece.cuh"
#include "../device/widen.cuh"

namespace halo::cuda {

/// Which statistics and which channel plane q belongs to.
struct NormPlanes {
  Divide positions, channels, per_row;
  bool by_channel;  ///< statistics of channels, else of rows

  explicit NormPlanes(const BatchNormProblem& p) : NormPlanes(p.batch, p.channels, p.channels, p.positions, true) {}
  explicit NormPlanes(const RowNormProblem& p)
      : NormPlanes(p.rows, p.channels_per_row, p.channels(), p.positions, false) {}

#ifdef __CUDACC__
  __device__ int64_t channel(int64_t q) const { return channels.split(q); }
  __device__ int64_t statistic(int64_t q) const { return by_channel ? channel(q) : per_row.quotient(q); }
#endif

 private:
  NormPlanes(int64_t rows, int64_t channels_per_row, int64_t all_channels, int64_t positions_of,
             bool channel_statistics)
      : by_channel(channel_statistics) {
    const int64_t planes = rows * channels_per_row;
    positions = Divide(positions_of, planes * positions_of);
    channels = Divide(all_channels, planes);
    per_row = Divide(channels_per_row, planes);
  }
};

/// out[i] = f(i) for each statistic.
template <class F, class Out>
__global__ void each_kernel(int64_t count, const __grid_constant__ F f, Out* out) {
  const int64_t i = int64_t{blockIdx.x} * kMapThreads + threadIdx.x;
  if (i < count) out[i] = f(i);
}

/// out = plane(in...) in accumulator type for the elements of one piece of a plane, `threads` of which this is number
/// `thread`: whole packs, which are granules of `out` (`packs`: of all operands), and elements at the edges.
template <int kBatch, class T, class Plane, class... In>
__device__ __forceinline__ void map_piece(const RunPiece& piece, int thread, int threads, bool packs,
                                          const Plane& plane, T* out, const In*... in) {
  constexpr int kSize = kWide<T>;
  const auto apply = [&]<int N>(const Pack<In, N>&... pack) {
    Pack<device::Accumulator<T>, N> result;
    const auto combine = [&](const auto&... wide) {
#pragma unroll
      for (int k = 0; k < N; ++k) result.at[k] = plane(wide.at[k]...);
    };
    combine(device::widen(pack)...);
    return device::narrow<T>(result);
  };
  const auto single = [&](int64_t i) { out[i] = apply(Pack<In, 1>{in[i]}...).at[0]; };
  const auto load = [&](int pack, const auto* from) {
    using Packed = Pack<std::remove_cvref_t<decltype(*from)>, kSize>;
    struct Batch {
      Packed at[kBatch];
    } batch;
    const auto each = [&](const auto& load_pack) {
#pragma unroll
      for (int u = 0; u < kBatch; ++u) {
        batch.at[u] = load_pack(from + piece.packs_at + int64_t{min(pack + u * threads, piece.packs - 1)} * kSize);
      }
    };
    if (packs) {
      each([](const auto* at) { return *reinterpret_cast<const Packed*>(at); });
    } else {
      each([](const auto* at) { return load_between_granules(at); });
    }
    return batch;
  };
  const auto store = [&](int pack, const auto&... batch) {
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      const auto result = apply(batch.at[u]...);
      if (pack + u * threads < piece.packs) {
        reinterpret_cast<Pack<T, kSize>*>(out + piece.packs_at)[pack + u * threads] = result;
      }
    }
  };
  for (int pack = thread; pack < piece.packs; pack += kBatch * threads) store(pack, load(pack, in)...);
  for (int i = thread; i < piece.edges; i += threads) single(piece.edge(i));
}

/// How blocks cut planes, a piece each.
struct PlanePieces {
  static constexpr int kPacks = 4;  ///< of all operands, on their way to a thread
  int64_t positions, length;        ///< of a plane, of a piece: whole packs
  Divide each;                      ///< pieces of a plane
  bool packs;                       ///< all operands are aligned
  int lead;                         ///< elements of a granule before what is written
};

template <class T, class F, class... In>
__global__ void __launch_bounds__(kMapThreads)
    plane_kernel(const __grid_constant__ PlanePieces pieces, const __grid_constant__ F f, T* out, const In*... in) {
  int64_t q = gridDim.x - 1 - blockIdx.x;  // what was read last for the statistics may still be in L2
  const int64_t piece = pieces.each.split(q), begin = q * pieces.positions, end = begin + pieces.positions;
  constexpr int kSize = kWide<T>;
  const int64_t cut = (begin & ~int64_t{kSize - 1}) + piece * pieces.length;
  const RunPiece run = RunPiece::of<kSize>(piece == 0 ? begin : cut,
                                           piece + 1 == pieces.each.divisor ? end : cut + pieces.length, pieces.lead);
  map_piece<PlanePieces::kPacks / static_cast<int>(sizeof...(In))>(
      run, static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x), pieces.packs, f.plane(q), out, in...);
}

/// The same for planes that are too short for a block: a thread an element.
template <class T, class F, class... In>
__global__ void __launch_bounds__(kMapThreads)
    short_plane_kernel(int64_t count, const __grid_constant__ Divide positions, const __grid_constant__ F f, T* out,
                       const In*... in) {
  const int64_t i = int64_t{blockIdx.x} * kMapThreads + threadIdx.x;
  if (i < count) out[i] = device::from_accumulator<T>(f.plane(positions.quotient(i))(device::to_accumulator(in[i])...));
}

template <class F, class T, class... In>
void map_planes(const char* name, Device device, int64_t count, const Divide& positions, const F& f, T* out,
                const In*... in) {
  if (count == 0) return;
  constexpr int64_t kShort = 256;
  // As many threads as keep all of theirs busy.
  constexpr int64_t kBatch = PlanePieces::kPacks / sizeof...(In), kWarp = 32, kMost = kMapThreads * kBatch * kWide<T>;
  const int64_t each = (positions.divisor + kMost - 1) / kMost;  // pieces
  const int64_t whole = positions.divisor / each / kWide<T>, length = whole * kWide<T>;
  const auto threads = static_cast<unsigned>((whole + kBatch * kWarp - 1) / (kBatch * kWarp) * kWarp);
  const int64_t blocks = count / positions.divisor * each;
  const DeviceScope scope(device);
  if (positions.divisor < kShort || blocks > INT32_MAX) {
    return launch(name, short_plane_kernel<T, F, In...>, map_blocks(count), kMapThreads, 0, scope.stream(), count,
                  positions, f, out, in...);
  }
  const bool packs = is_aligned<T, kWide<T>>(out) && (is_aligned<T, kWide<T>>(in) && ...);
  const auto lead = static_cast<int>(reinterpret_cast<uintptr_t>(out) % 16 / sizeof(T));
  launch(name, plane_kernel<T, F, In...>, static_cast<unsigned>(blocks), threads, 0, scope.stream(),
         PlanePieces{positions.divisor, length, Divide(each, blocks), packs, lead}, f, out, in...);
}

}  // namespace halo::cuda
