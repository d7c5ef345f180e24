// The gradient of norms of rows of planes, x and its gradient read once.
#include "plane_ring.cuh"
#include "ring_norms.cuh"

namespace halo::cuda {
namespace {

template <class T>
struct Backward {
  using Element = T;
  using Value = device::Accumulator<T>;
  static constexpr int kOperands = RingBackward<T>::kOperands, kSums = RingBackward<T>::kSums;
  /// What rounding takes from the mean, and from products with x where differences to it are meant, does not show in
  /// results of half types.
  static constexpr bool kHalf = sizeof(T) == 2;
  RingBackward<T> args;
  int each;
  double per_element;  ///< 1 / length of a row

  struct Row {
    Value mean, rstd;
  };
  struct Result {
    Value mean, rstd, scale, shift;  ///< dx = rstd weight g + (x - mean) scale + shift
  };

  HALO_HOST_DEVICE const T* operand(int k) const { return k == 0 ? args.x : args.g; }
  __device__ Row row(int64_t row) const { return {args.mean[row], args.rstd[row]}; }
  __device__ Value weight(int channel) const {
    return args.weight == nullptr ? Value(1) : device::to_accumulator(args.weight[channel]);
  }

  template <bool kPacks>
  __device__ __forceinline__ void sum(const Row& row, const RingPiece<T>& piece, double (&sums)[3], const T* x,
                                      const T* g) const {
    constexpr int kParts = 4;
    const auto w = static_cast<double>(weight(piece.channel));
    Value parts[3][kParts] = {};
    each_pack_of_piece<kPacks>(
        piece.run, 0,
        [&]<int N>(int64_t, const Pack<T, N>& xs, const Pack<T, N>& gs) {
          const auto x_wide = device::widen(xs), g_wide = device::widen(gs);
#pragma unroll
          for (int k = 0; k < N; ++k) {
            const Value difference = x_wide.at[k] - row.mean;
            parts[0][k % kParts] += g_wide.at[k];
            parts[1][k % kParts] += g_wide.at[k] * difference;
            if constexpr (!kHalf) parts[2][k % kParts] += difference;
          }
        },
        x, g);
    Value totals[3];
#pragma unroll
    for (int k = 0; k < 3; ++k) totals[k] = (parts[k][0] + parts[k][1]) + (parts[k][2] + parts[k][3]);
#pragma unroll
    for (int mask = 1; mask < 32; mask *= 2) {
#pragma unroll
      for (Value& value : totals) value += __shfl_xor_sync(~0u, value, mask);
    }
#pragma unroll
    for (int k = 0; k < 3; ++k) sums[k] = static_cast<double>(totals[k]);
    if (threadIdx.x % 32 == 0) args.sums[piece.plane * each + piece.part_of_plane] = {sums[0], sums[1], sums[2]};
    sums[0] *= w;
    sums[1] *= w;
  }
  __device__ Result result(int64_t number, const Row& row, const double (&totals)[3], bool write) const {
    const auto slopes = slopes_of<T>({totals[0], totals[1], totals[2]}, per_element, row.mean, row.rstd);
    if (write) args.slopes[number] = slopes;
    const Value scale = -row.rstd * static_cast<Value>(slopes.scaled);
    return {row.mean, row.rstd, scale,
            -row.rstd * static_cast<Value>(slopes.plain) - scale * static_cast<Value>(slopes.rest)};
  }
  template <bool kPacks>
  __device__ __forceinline__ void store(const RingPiece<T>& piece, const RunPiece& run, const Result& r, const T* x,
                                        const T* g) const {
    if (args.dx == nullptr) return;
    const Value of_g = r.rstd * weight(piece.channel);
    each_pack_of_piece<kPacks>(
        run, packs_into_line(args.dx + run.packs_at),
        [&]<int N>(int64_t at, const Pack<T, N>& xs, const Pack<T, N>& gs) {
          const auto x_wide = device::widen(xs), g_wide = device::widen(gs);
          Pack<Value, N> dx;
#pragma unroll
          for (int k = 0; k < N; ++k) {
            const Value of_x = (x_wide.at[k] - r.mean) * r.scale + r.shift;
            dx.at[k] = of_g * g_wide.at[k] + of_x;
          }
          *reinterpret_cast<Pack<T, N>*>(args.dx + at) = device::narrow<T>(dx);
        },
        x, g);
  }
};

}  // namespace

template <class T>
void ring_backward(const char* name, const RingPlan& plan, const RingBackward<T>& args, cudaStream_t stream) {
  march_planes(name, plan, Backward<T>{args, plan.each, 1 / static_cast<double>(plan.length)}, stream, args.dx);
}
template void ring_backward(const char*, const RingPlan&, const RingBackward<float>&, cudaStream_t);
template void ring_backward(const char*, const RingPlan&, const RingBackward<double>&, cudaStream_t);
template void ring_backward(const char*, const RingPlan&, const RingBackward<BFloat16>&, cudaStream_t);
template void ring_backward(const char*, const RingPlan&, const RingBackward<Float16>&, cudaStream_t);

}  // namespace halo::cuda
