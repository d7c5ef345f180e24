// Norms over rows (rows.cuh): forward.
#include "rows.cuh"

namespace halo::cuda {
namespace {

/// x with what is added to it.
template <class Row>
__device__ __forceinline__ typename Row::Values stream_sum(const Row& row,
                                                           const RowForward<typename Row::Element>& args) {
  auto v = row.take(kX, args.x);
  if (args.x_bias != nullptr) {
#pragma unroll
    for (int p = 0; p < Row::kPacks; ++p) {
      const auto chunk = row.chunk(typename Row::Columns{args.x_bias, 0}, p);
#pragma unroll
      for (int k = 0; k < Row::kSize; ++k) v.at[p * Row::kSize + k] += chunk.at[k];
    }
  }
  if (args.residual != nullptr) {
    const auto more = row.take(kResidual, args.residual);
#pragma unroll
    for (int e = 0; e < Row::kElements; ++e) v.at[e] += more.at[e];
  }
  return v;
}

/// The sum over `lanes` neighbours of a warp, a power of two.
template <class Value>
__device__ __forceinline__ Value sum_over_lanes(int lanes, Value value) {
#pragma unroll
  for (int mask = 1; mask < Teams::kWarp; mask *= 2) {
    if (mask >= lanes) break;
    value = value + shuffle_xor(value, mask);
  }
  return value;
}

/// Of a warp's elements of a row: their mean as rounded, and sums of differences to it and of their squares.
template <class Value>
struct __align__(4 * sizeof(Value)) WarpMoments {
  Value mean, count, differences, squares;
};

template <class Row>
__global__ void __launch_bounds__(Teams::kThreads, sizeof(typename Row::Element) == 2 ? 4 : 2)
    rows_forward_kernel(const __grid_constant__ RowTeams teams,
                        const __grid_constant__ RowForward<typename Row::Element> args) {
  using Value = typename Row::Value;
  using Columns = typename Row::Columns;
  using Present = typename Row::Present;
  using Sums = Totals<Value, 2>;                                             // of differences, and of their squares
  __shared__ WarpMoments<Value> moments[2][Teams::kThreads / Teams::kWarp];  // of rows in turn
  const Value per_element = 1 / static_cast<Value>(args.length);
  const auto fetch = [&](const Row& row) {
    row.fetch(kX, args.x);
    if (args.residual != nullptr) row.fetch(kResidual, args.residual);
  };
  Row next(teams);
  const int lanes = min(next.depth, Teams::kWarp), warps = next.depth / lanes;
  const Value count = sum_over_lanes(lanes, static_cast<Value>(next.held * (Row::kPacked ? Row::kSize : 1)));
  const Value per_own = count > 0 ? 1 / count : Value(0);
  fetch(next);
  for (int turn = 0; next.more(); turn ^= 1) {
    const Row row = next;
    const auto v = stream_sum(row, args);
    next.advance();
    fetch(next);
    if (args.sum != nullptr)
      row.store(
          args.sum, [](int64_t, Value value) { return value; }, v);
    // Each warp around its own mean, so that the team meets once. Differences show what rounding took from a mean.
    const Value total = row.template sum<Value>([&](Value& sum, int e) { sum += v.at[e]; });
    Value mean = product(sum_over_lanes(lanes, total), per_own);
    Sums sums = sum_over_lanes(lanes, row.template sum_held<Sums>([&](Sums& sum, int e) {
      const Value difference = v.at[e] - mean;
      sum.at[0] += difference;
      sum.at[1] = fma(difference, difference, sum.at[1]);
    }));
    if (warps > 1) {
      const int thread = static_cast<int>(threadIdx.x);
      if (thread % Teams::kWarp == 0) moments[turn][thread / Teams::kWarp] = {mean, count, sums.at[0], sums.at[1]};
      __syncthreads();  // who has met here has read the row before this one's
      const auto part = moments[turn][thread / row.depth * warps + thread % warps];
      mean = product(sum_over_lanes(warps, product(part.mean, part.count)), per_element);
      const Value apart = part.mean - mean;
      sums = sum_over_lanes(warps, Sums{fma(part.count, apart, part.differences),
                                        fma(apart, fma(part.count, apart, 2 * part.differences), part.squares)});
    }
    const Value rest = product(sums.at[0], per_element);
    const Value variance = fma(-rest, rest, product(sums.at[1], per_element));
    const Value rstd = rsqrt((variance < 0 ? Value(0) : variance) + static_cast<Value>(args.eps));
    const Value shift = product(-rest, rstd);
    const auto result = [&](int64_t, Value value, Value w, Value b) {
      return fma(fma(value - mean, rstd, shift), w, b);
    };
    if (args.weight != nullptr && args.bias != nullptr) {
      row.store(args.y, result, v, Present{args.weight}, Present{args.bias});
    } else {
      row.store(args.y, result, v, Columns{args.weight, 1}, Columns{args.bias, 0});
    }
    if (!row.active || row.rank > 0) continue;
    args.mean[row.row] = mean + rest;
    args.rstd[row.row] = rstd;
  }
}

}  // namespace

template <class T>
void rows_forward(const char* name, const RowForward<T>& a, cudaStream_t stream) {
  if constexpr (std::is_same_v<T, float>) {
    if (few_rows_forward(name, a, stream)) return;
  }
  const bool packs = are_packs<T>(a.x, a.x_bias, a.residual, a.weight, a.bias, a.sum, a.y);
  with_held_row<T>({a.rows, a.length}, packs, [&]<class Row>(std::type_identity<Row>, const RowTeams& t) {
    const std::size_t slots = a.residual != nullptr ? 2 : 1;
    // Some two rows a team, so that blocks that memory serves sooner take over from others.
    const unsigned most = sizeof(T) > 2 ? 4224 : 8448;
    auto kernel = rows_forward_kernel<Row>;
    if constexpr (Row::kPacked && sizeof(T) < 8) {
      using Aligned = typename Row::Aligned;
      if (packs)
        kernel = t.teams.lanes == 1 ? rows_forward_kernel<typename Aligned::OfBlock> : rows_forward_kernel<Aligned>;
    }
    launch(name, kernel, t.blocks(most), Teams::kThreads, slots * Row::kSlotBytes, stream, t, a);
  });
}

template void rows_forward(const char*, const RowForward<float>&, cudaStream_t);
template void rows_forward(const char*, const RowForward<double>&, cudaStream_t);
template void rows_forward(const char*, const RowForward<BFloat16>&, cudaStream_t);
template void rows_forward(const char*, const RowForward<Float16>&, cudaStream_t);

}  // namespace halo::cuda
