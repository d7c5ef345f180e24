// Losses over classes: a team of threads a position, its classes a row.
#include <halo/core/copy.h>
#include <halo/core/storage.h>
#include <halo/ops/binary_functors.h>
#include <halo/ops/cross_entropy_backend.h>

#include "../device/exponential.cuh"
#include "../device/quick.cuh"
#include "../device/team_row.cuh"
#include "../runtime/data.h"
#include "../runtime/device.h"

namespace halo::cuda {
namespace {

template <class T>
struct Classes {
  using Value = device::Accumulator<T>;
  bool log_probabilities;
  int64_t count, ignore_index;
  Value spread, own;  ///< what label smoothing gives each class, and the label besides
  const int64_t* target;
  const T* weight;  ///< null: all 1

  __device__ Value weight_of(int64_t c) const {
    return weight == nullptr ? Value(1) : device::to_accumulator(weight[c]);
  }
  /// The share of class c in the target distribution of label t, which is one of the classes; c may lie beyond them.
  template <class Index>
  __device__ Value share(Index c, int64_t t) const {
    const Value plain = spread + (c == static_cast<Index>(t) ? own : Value(0));
    return weight == nullptr ? plain : weight_of(min(int64_t{c}, count - 1)) * plain;
  }
};

/// What backward reads of a row besides x.
struct RowScalars {
  int64_t target = 0;
  double lse = 0, up = 0;  ///< up: the gradient of the row's loss
};

/// The label of a row.
struct Label {
  int64_t index;
  bool ignored, valid;

  /// `target`: what the row's is, read ahead of the row's turn.
  template <class T, class Row>
  __device__ Label(const Classes<T>& classes, const Row& row, int64_t target) : index(target) {
    ignored = row.active && index == classes.ignore_index;
    valid = row.active && !ignored && index >= 0 && index < classes.count;
  }
};

/// log(x), as exact as losses of type T need.
template <class T, class Value>
__device__ __forceinline__ Value log_of(Value x) {
  if constexpr (sizeof(T) == 2) {
    return device::quick_log(x);
  } else {
    return log(x);
  }
}

template <class Row>
__global__ void __launch_bounds__(Teams::kThreads, sizeof(typename Row::Element) == 8   ? 2
                                                   : sizeof(typename Row::Element) == 4 ? 3
                                                                                        : 4)
    cross_entropy_kernel(const __grid_constant__ RowTeams teams,
                         const __grid_constant__ Classes<typename Row::Element> classes, const typename Row::Element* x,
                         typename Row::Element* loss, double* lse, typename Row::Element* counted) {
  using T = typename Row::Element;
  using Value = typename Row::Value;
  __shared__ double shared[2 * Teams::kThreads];
  Row next(teams);
  next.fetch(0, x);
  int64_t target = next.active ? classes.target[next.row] : 0;
  while (next.more()) {
    const Row row = next;
    const auto values = row.take(0, x);
    const Label label(classes, row, target);
    next.advance();
    next.fetch(0, x);
    target = next.active ? classes.target[next.row] : 0;
    // The label's own value is on its way while the sum is taken.
    const bool alone = classes.spread == 0 && label.valid;
    const Value own = alone ? row.at(x, label.index) : Value(0);
    Value largest = 0, log = 0;  // of the sum of exponentials, which is exp(largest + log)
    if (!classes.log_probabilities) {
      const auto exponentials =
          device::sum_exponentials(row, values, reinterpret_cast<device::ExponentialSum<Value>*>(shared));
      largest = exponentials.largest;
      log = log_of<T>(exponentials.sum);
    }
    const auto log_sum = [&] { return static_cast<double>(largest) + static_cast<double>(log); };
    Value total = 0;
    if (classes.spread != 0) {
      const double sum_of_all = log_sum();
      double sum = 0;
      row.each(
          [&](auto c, Value value) {
            const Value share = classes.share(c, label.index);
            if (share != 0) sum += static_cast<double>(share) * (sum_of_all - static_cast<double>(value));
          },
          values);
      total = static_cast<Value>(row.combine(sum, shared, functor::Add{}));
    }
    if (!row.active || row.rank != 0) continue;
    if (alone) {
      const Value share = classes.share(label.index, label.index);
      if (share != 0 && sizeof(T) == 2) {
        total = share * ((largest - own) + log);  // nothing cancels, and conversions to float64 take long
      } else if (share != 0) {
        total = static_cast<Value>(static_cast<double>(share) * (log_sum() - static_cast<double>(own)));
      }
    }
    const Value otherwise = label.ignored ? Value(0) : static_cast<Value>(NAN);
    loss[row.row] = device::from_accumulator<T>(label.valid ? total : otherwise);
    counted[row.row] = device::from_accumulator<T>(label.valid ? classes.weight_of(label.index) : otherwise);
    lse[row.row] = label.valid ? log_sum() : static_cast<double>(otherwise);
  }
}

/// Blocks of a multiprocessor: more would spill registers.
template <class T, bool kWeighted>
inline constexpr int kBackwardBlocks = sizeof(T) == 4 && !kWeighted ? 3 : 2;

/// `kWeighted`: whether classes have weights.
template <class Row, bool kWeighted>
__global__ void __launch_bounds__(Teams::kThreads, kBackwardBlocks<typename Row::Element, kWeighted>)
    cross_entropy_backward_kernel(const __grid_constant__ RowTeams teams,
                                  const __grid_constant__ Classes<typename Row::Element> all_classes,
                                  const typename Row::Element* x, const double* lse, const typename Row::Element* g,
                                  typename Row::Element* dx) {
  auto classes = all_classes;
  if (!kWeighted) classes.weight = nullptr;
  using Value = typename Row::Value;
  __shared__ Value shared[Teams::kThreads];
  const auto scalars_of = [&](const Row& row) {
    return row.active ? RowScalars{classes.target[row.row], lse[row.row],
                                   static_cast<double>(device::to_accumulator(g[row.row]))}
                      : RowScalars{};
  };
  Row next(teams);
  next.fetch(0, x);
  RowScalars ahead = scalars_of(next);
  while (next.more()) {
    const Row row = next;
    const auto values = row.take(0, x);
    const RowScalars scalars = ahead;
    const Label label(classes, row, scalars.target);
    next.advance();
    next.fetch(0, x);
    ahead = scalars_of(next);
    Value total = 1;  // of the shares
    if (classes.weight != nullptr && classes.spread != 0) {
      total = 0;
      row.each([&](int64_t c, Value) { total += classes.share(c, label.index); }, values);
      total = row.combine(total, shared, functor::Add{});
    } else if (classes.weight != nullptr && label.valid) {
      total = classes.weight_of(label.index);
    }
    if (!row.active) continue;
    const Value up = static_cast<Value>(scalars.up);
    // A rounding of a large lse would be a relative error of every probability.
    const Value high = static_cast<Value>(scalars.lse);
    const Value low = static_cast<Value>(scalars.lse - static_cast<double>(high));
    if (classes.log_probabilities) total = 0;
    if (!label.valid) {
      const Value otherwise = label.ignored ? Value(0) : static_cast<Value>(NAN);
      row.store(
          dx, [&](auto, Value) { return otherwise; }, values);
      continue;
    }
    row.store(
        dx,
        [&](auto c, Value value) {
          const Value part = total == 0 ? Value(0) : total * device::exp_of_difference(value - high, low);
          return up * (part - classes.share(c, label.index));
        },
        values);
  }
}

template <class T>
Classes<T> classes_of(const ClassLoss& options, const Tensor& x, const Tensor& target, const Tensor& weight) {
  using Value = device::Accumulator<T>;
  return {options.log_probabilities,
          x.size(1),
          options.ignore_index,
          static_cast<Value>(options.label_smoothing / static_cast<double>(x.size(1))),
          static_cast<Value>(1 - options.label_smoothing),
          target.data<int64_t>(),
          data_or_null<T>(weight)};
}

/// Losses, and what they count.
struct LossSum {
  double total = 0, counted = 0;
  __device__ friend LossSum operator+(const LossSum& a, const LossSum& b) {
    return {a.total + b.total, a.counted + b.counted};
  }
};

constexpr int kLossesAThread = 4;

/// Sums over a block's positions, all of which are on their way together.
template <class T>
__global__ void __launch_bounds__(Teams::kThreads)
    sum_losses_kernel(int64_t count, const T* loss, const T* counted, LossSum* parts) {
  __shared__ LossSum shared[Teams::kThreads / Teams::kWarp];
  LossSum sum;
  for (int64_t first = int64_t{blockIdx.x} * Teams::kThreads * kLossesAThread + threadIdx.x; first < count;
       first += int64_t{gridDim.x} * Teams::kThreads * kLossesAThread) {
    T losses[kLossesAThread], counts[kLossesAThread];
#pragma unroll
    for (int u = 0; u < kLossesAThread; ++u) {
      const int64_t at = min(first + u * Teams::kThreads, count - 1);
      losses[u] = loss[at];
      counts[u] = counted[at];
    }
#pragma unroll
    for (int u = 0; u < kLossesAThread; ++u) {
      if (first + u * Teams::kThreads < count) {
        sum = sum + LossSum{static_cast<double>(device::to_accumulator(losses[u])),
                            static_cast<double>(device::to_accumulator(counts[u]))};
      }
    }
  }
  sum = combine_neighbours(Teams::kThreads, sum, shared, functor::Add{});
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

/// One block. As ops/cross_entropy.h says.
template <class T>
__global__ void __launch_bounds__(Teams::kThreads)
    mean_loss_kernel(int count, const LossSum* parts, T* mean, T* share) {
  __shared__ LossSum shared[Teams::kThreads / Teams::kWarp];
  LossSum sum;
  for (int part = static_cast<int>(threadIdx.x); part < count; part += Teams::kThreads) sum = sum + parts[part];
  sum = combine_neighbours(Teams::kThreads, sum, shared, functor::Add{});
  if (threadIdx.x != 0) return;
  using Value = device::Accumulator<T>;
  const double divisor = sum.counted == 0 ? 1 : sum.counted;
  *mean = device::from_accumulator<T>(static_cast<Value>(sum.total / divisor));
  *share = device::from_accumulator<T>(static_cast<Value>(1 / divisor));
}

}  // namespace

void cross_entropy(const char* op, const ClassLoss& options, const Tensor& x, const Tensor& target,
                   const Tensor& weight, const Tensor& loss, const Tensor& lse, const Tensor& counted) {
  if (target.numel() == 0) return;
  dispatch_floating(op, x.dtype(), [&]<class T>(std::type_identity<T>) {
    const T* const in = x.numel() > 0 ? x.data<T>() : nullptr;
    const DeviceScope scope(x.device());
    with_row_class<T>(
        Rows(x, 1),
        [&]<class Row>(std::type_identity<Row>, const RowTeams& t) {
          auto kernel = cross_entropy_kernel<Row>;
          if constexpr (sizeof(T) == 2 && Row::kPacked) {
            if (t.packs) kernel = cross_entropy_kernel<typename Row::Aligned>;
          }
          launch(op, kernel, t.blocks(sizeof(T) == 2 ? 2112 : 396), Teams::kThreads, Row::kSlotBytes, scope.stream(), t,
                 classes_of<T>(options, x, target, weight), in, loss.data<T>(), lse.data<double>(), counted.data<T>());
        },
        in);
  });
}

void cross_entropy_backward(const char* op, const ClassLoss& options, const Tensor& x, const Tensor& target,
                            const Tensor& weight, const Tensor& lse, const Tensor& g, const Tensor& dx) {
  if (x.numel() == 0) return;
  dispatch_floating(op, x.dtype(), [&]<class T>(std::type_identity<T>) {
    const T* const in = x.data<T>();
    T* const out = dx.data<T>();
    const DeviceScope scope(x.device());
    with_row_class<T>(
        Rows(x, 1),
        [&]<class Row>(std::type_identity<Row>, const RowTeams& t) {
          const auto classes = classes_of<T>(options, x, target, weight);
          const bool weighted = classes.weight != nullptr;
          auto kernel = weighted ? cross_entropy_backward_kernel<Row, true> : cross_entropy_backward_kernel<Row, false>;
          if constexpr (Row::kPacked && sizeof(T) == 4) {
            if (!weighted && t.packs) kernel = cross_entropy_backward_kernel<typename Row::Aligned, false>;
          }
          launch(op, kernel, t.blocks(132 * (weighted ? kBackwardBlocks<T, true> : kBackwardBlocks<T, false>)),
                 Teams::kThreads, Row::kSlotBytes, scope.stream(), t, classes, in, lse.data<double>(), g.data<T>(),
                 out);
        },
        in, out);
  });
}

void mean_loss(const Tensor& loss, const Tensor& counted, const Tensor& mean, const Tensor& share) {
  if (loss.numel() == 0) {
    halo::fill(mean, 0);
    return halo::fill(share, 1);
  }
  dispatch_floating("mean_loss", loss.dtype(), [&]<class T>(std::type_identity<T>) {
    constexpr int64_t kEach = Teams::kThreads * kLossesAThread, kMostParts = 1024;
    const int64_t count = loss.numel(), parts = std::min((count + kEach - 1) / kEach, kMostParts);
    const Storage sums(static_cast<std::size_t>(parts) * sizeof(LossSum), loss.device());
    auto* const values = static_cast<LossSum*>(sums.data());
    const DeviceScope scope(loss.device());
    launch("mean_loss", sum_losses_kernel<T>, static_cast<unsigned>(parts), Teams::kThreads, 0, scope.stream(), count,
           loss.data<T>(), counted.data<T>(), values);
    launch("mean_loss", mean_loss_kernel<T>, 1, Teams::kThreads, 0, scope.stream(), static_cast<int>(parts), values,
           mean.data<T>(), share.data<T>());
  });
}

}  // namespace halo::cuda
