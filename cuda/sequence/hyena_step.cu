// One token through the recurrence of a Hyena operator: a warp a channel, the sums over the block's tokens shared among
// its lanes. The position is read on the GPU, so that a captured step can be replayed.
#include <halo/ops/hyena_step_backend.h>

#include "../launch.h"
#include "../runtime/device.h"

namespace halo::cuda {
namespace {

constexpr int kLanes = 32, kWarps = 4;

template <class T>
struct Args {
  int64_t batch, channels, order, kernel, capacity, taps_pitch;
  const T *projections, *projection_bias, *short_weight, *short_bias, *taps, *skip, *pending;
  const int64_t* position;
  T *window, *inputs, *y;

  Args(const HyenaStepProblem& p, const HyenaStepTensors& t, const Tensor& result)
      : batch(p.batch),
        channels(p.channels),
        order(p.order),
        kernel(p.kernel),
        capacity(p.capacity),
        taps_pitch(t.taps.size(-1)),
        projections(t.projections.data<T>()),
        projection_bias(t.projection_bias.data<T>()),
        short_weight(t.short_weight.data<T>()),
        short_bias(t.short_bias.data<T>()),
        taps(t.taps.data<T>()),
        skip(t.skip.data<T>()),
        pending(t.pending.data<T>()),
        position(t.position.data<int64_t>()),
        window(t.window.data<T>()),
        inputs(t.inputs.data<T>()),
        y(result.data<T>()) {}

  /// The filtered projection of a column; lane 0 moves the window on.
  __device__ T filtered(int64_t b, int64_t column, int lane) const {
    const int64_t row = b * (order + 1) * channels + column;
    T* const past = window + row * (kernel - 1);
    const T* const weight = short_weight + column * kernel;
    const T now = projections[row] + projection_bias[column];
    T sum = short_bias[column] + weight[kernel - 1] * now;
    for (int64_t k = 0; k + 1 < kernel; ++k) sum += weight[k] * past[k];
    __syncwarp();  // all have read
    if (lane == 0) {
      for (int64_t k = 0; k + 1 < kernel; ++k) past[k] = k + 2 < kernel ? past[k + 1] : now;
    }
    return sum;
  }
};

template <class T>
__global__ void __launch_bounds__(kLanes* kWarps) step_kernel(const __grid_constant__ Args<T> args) {
  const int lane = static_cast<int>(threadIdx.x % kLanes);
  const int64_t i = int64_t{blockIdx.x} * kWarps + threadIdx.x / kLanes;
  if (i >= args.batch * args.channels) return;
  const int64_t b = i / args.channels, d = i % args.channels, t = *args.position;
  const int64_t begin = t - t % HyenaStepProblem::kBlock;
  T v = args.filtered(b, args.order * args.channels + d, lane);
  for (int64_t o = 0; o + 1 < args.order; ++o) {
    const int64_t channel = o * args.channels + d;
    const int64_t row = (b * (args.order - 1) * args.channels + channel) * args.capacity;
    T* const u = args.inputs + row;
    const T* const taps = args.taps + channel * args.taps_pitch;
    const T now = v * args.filtered(b, (args.order - 1 - o) * args.channels + d, lane);
    T sum = 0;
    for (int64_t s = begin + lane; s < t; s += kLanes) sum += taps[t - s] * u[s];
#pragma unroll
    for (int offset = kLanes / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
    if (lane == 0) u[t] = now;
    v = args.pending[row + t] + sum + (taps[0] + args.skip[channel]) * now;
  }
  const T gate = args.filtered(b, d, lane);
  if (lane == 0) args.y[i] = v * gate;
}

}  // namespace

void hyena_step(const HyenaStepProblem& p, const HyenaStepTensors& tensors, const Tensor& y) {
  dispatch_float("hyena_step", y.dtype(), [&]<class T>(std::type_identity<T>) {
    const auto blocks = static_cast<unsigned>((p.batch * p.channels + kWarps - 1) / kWarps);
    const DeviceScope scope(y.device());
    launch("hyena_step", step_kernel<T>, blocks, kLanes * kWarps, 0, scope.stream(), Args<T>(p, tensors, y));
  });
}

}  // namespace halo::cuda
