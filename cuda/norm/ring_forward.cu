// Norms of rows of planes, forward, each row read once.
#include "plane_ring.cuh"
#include "ring_norms.cuh"

namespace halo::cuda {
namespace {

template <class T>
struct Forward {
  using Element = T;
  using Value = device::Accumulator<T>;
  static constexpr int kOperands = RingForward<T>::kOperands, kSums = RingForward<T>::kSums;
  RingForward<T> args;
  int64_t length;
  double per_element;  ///< 1 / length

  /// The mean in two parts, so that differences to it are as good as in twice the digits.
  struct Result {
    Value mean, rest, rstd;
  };

  HALO_HOST_DEVICE const T* operand(int) const { return args.x; }
  /// The row's first element: sums are of differences to it.
  __device__ Value row(int64_t row) const { return device::to_accumulator(args.x[row * length]); }

  /// Differences are to an element of the piece, so that what their sums lose is relative to the spread of neighbours:
  /// to a lane's own first one, or, where sums are good enough for half types, to the piece's.
  template <bool kPacks>
  __device__ __forceinline__ void sum(Value of_row, const RingPiece<T>& piece, double (&sums)[2], const T* x) const {
    constexpr int kParts = 4;
    constexpr bool kHalf = sizeof(T) == 2;
    const int lane = static_cast<int>(threadIdx.x) % 32, packs = piece.run.packs;
    const Value shift =
        kHalf || lane < packs ? device::to_accumulator(x[piece.run.packs_at + (kHalf ? 0 : lane * kWide<T>)]) : of_row;
    Value plain[kParts] = {}, squares[kParts] = {};
    each_pack_of_piece<kPacks>(
        piece.run, 0,
        [&]<int N>(int64_t, const Pack<T, N>& pack) {
          const auto wide = device::widen(pack);
#pragma unroll
          for (int k = 0; k < N; ++k) {
            const Value difference = wide.at[k] - shift;
            plain[k % kParts] += difference;
            squares[k % kParts] += difference * difference;
          }
        },
        x);
    Value all = (plain[0] + plain[1]) + (plain[2] + plain[3]);
    Value all_squares = (squares[0] + squares[1]) + (squares[2] + squares[3]);
    double count = (lane < packs ? (packs - lane + 31) / 32 * kWide<T> : 0) + (lane < piece.run.edges ? 1 : 0);
    if constexpr (kHalf) {
#pragma unroll
      for (int mask = 1; mask < 32; mask *= 2) {
        all += __shfl_xor_sync(~0u, all, mask);
        all_squares += __shfl_xor_sync(~0u, all_squares, mask);
      }
      count = packs * kWide<T> + piece.run.edges;
    }
    const auto plain_sum = static_cast<double>(all);
    const double apart = static_cast<double>(shift) - static_cast<double>(of_row);
    sums[0] = plain_sum + count * apart;
    sums[1] = static_cast<double>(all_squares) + apart * (2 * plain_sum + count * apart);
    if constexpr (!kHalf) {
#pragma unroll
      for (int mask = 1; mask < 32; mask *= 2) {
#pragma unroll
        for (double& value : sums) value += __shfl_xor_sync(~0u, value, mask);
      }
    }
  }
  __device__ Result result(int64_t number, Value of_row, const double (&totals)[2], bool write) const {
    const double from = totals[0] * per_element, mean = static_cast<double>(of_row) + from;
    const double variance = totals[1] * per_element - from * from;
    const double root = rsqrt((variance < 0 ? 0 : variance) + args.eps);
    Result result{static_cast<Value>(mean), 0, static_cast<Value>(root)};
    result.rest = static_cast<Value>(mean - static_cast<double>(result.mean));
    if (write) {
      args.mean[number] = result.mean;
      args.rstd[number] = result.rstd;
    }
    return result;
  }
  template <bool kPacks>
  __device__ __forceinline__ void store(const RingPiece<T>& piece, const RunPiece& run, const Result& r,
                                        const T* x) const {
    const Value weight = args.weight == nullptr ? Value(1) : device::to_accumulator(args.weight[piece.channel]);
    const Value bias = args.bias == nullptr ? Value(0) : device::to_accumulator(args.bias[piece.channel]);
    const Value scale = r.rstd * weight, shift = bias - r.rest * scale;
    each_pack_of_piece<kPacks>(
        run, packs_into_line(args.y + run.packs_at),
        [&]<int N>(int64_t at, const Pack<T, N>& pack) {
          auto wide = device::widen(pack);
#pragma unroll
          for (int k = 0; k < N; ++k) wide.at[k] = (wide.at[k] - r.mean) * scale + shift;
          *reinterpret_cast<Pack<T, N>*>(args.y + at) = device::narrow<T>(wide);
        },
        x);
  }
};

}  // namespace

template <class T>
void ring_forward(const char* name, const RingPlan& plan, const RingForward<T>& args, cudaStream_t stream) {
  march_planes(name, plan, Forward<T>{args, plan.length, 1 / static_cast<double>(plan.length)}, stream, args.y);
}
template void ring_forward(const char*, const RingPlan&, const RingForward<float>&, cudaStream_t);
template void ring_forward(const char*, const RingPlan&, const RingForward<double>&, cudaStream_t);
template void ring_forward(const char*, const RingPlan&, const RingForward<BFloat16>&, cudaStream_t);
template void ring_forward(const char*, const RingPlan&, const RingForward<Float16>&, cudaStream_t);

}  // namespace halo::cuda
