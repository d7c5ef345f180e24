// Steps of the optimisers: one launch for many tensors, since most of a model's tensors are small.
#include <halo/core/copy.h>
#include <halo/core/view.h>
#include <halo/ops/optim_step_backend.h>

#include <array>
#include <utility>

#include "../device/packs.cuh"
#include "../launch.h"
#include "../runtime/device.h"

namespace halo::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kBlockElements = kThreads * 16;
constexpr std::size_t kGradient = 1;  // among a tensor's operands
constexpr int kEntries = 32;          // a launch; its parameters are limited to 4 KB

/// The correction that Adam needs of each tensor; SGD has none.
struct Nothing {};

/// `Operands` dense tensors of `count` elements, and where their blocks begin in the grid.
template <class T, int kOperands, class Extra>
struct Entry {
  T* data[kOperands];
  int64_t count, first_block;
  bool packs;  ///< all are aligned
  Extra extra;
};

template <class T, int kOperands, class Update, class Extra>
struct Batch {
  Update update;
  int entries = 0;
  int64_t blocks = 0;
  Entry<T, kOperands, Extra> entry[kEntries];
};

template <class T>
__device__ void apply(const SgdUpdate& update, Nothing, T& param, T& grad, T& velocity) {
  update.apply(param, grad, velocity);
}
template <class T>
__device__ void apply(const AdamUpdate& update, const AdamUpdate::Correction& correction, T& param, T& grad, T& exp_avg,
                      T& exp_avg_sq) {
  update.apply(correction, param, grad, exp_avg, exp_avg_sq);
}

/// Applies the update to one pack of each operand at element i; a null operand is 0 and is not written.
template <int N, class T, int kOperands, class Update, class Extra, std::size_t... K>
__device__ __forceinline__ void apply_pack(const Update& update, const Entry<T, kOperands, Extra>& entry, int64_t i,
                                           std::index_sequence<K...>) {
  Pack<T, N> pack[kOperands] = {};
#pragma unroll
  for (int k = 0; k < kOperands; ++k) {
    if (entry.data[k] != nullptr) pack[k] = *reinterpret_cast<const Pack<T, N>*>(entry.data[k] + i);
  }
#pragma unroll
  for (int e = 0; e < N; ++e) apply(update, entry.extra, pack[K].at[e]...);
#pragma unroll
  for (int k = 0; k < kOperands; ++k) {
    if (k == kGradient || entry.data[k] == nullptr) continue;
    *reinterpret_cast<Pack<T, N>*>(entry.data[k] + i) = pack[k];
  }
}

template <class T, int kOperands, class Update, class Extra>
__global__ void __launch_bounds__(kThreads)
    step_kernel(const __grid_constant__ Batch<T, kOperands, Update, Extra> batch) {
  constexpr auto kAll = std::make_index_sequence<kOperands>{};
  int e = 0;
  while (e + 1 < batch.entries && batch.entry[e + 1].first_block <= blockIdx.x) ++e;
  const auto& entry = batch.entry[e];
  const int64_t begin = (blockIdx.x - entry.first_block) * kBlockElements;
  const int64_t end = min(begin + kBlockElements, entry.count);
  const int64_t packed = entry.packs ? begin + (end - begin) / kPackSize * kPackSize : begin;
#pragma unroll 2
  for (int64_t i = begin + threadIdx.x * kPackSize; i < packed; i += kThreads * kPackSize) {
    apply_pack<kPackSize>(batch.update, entry, i, kAll);
  }
  for (int64_t i = packed + threadIdx.x; i < end; i += kThreads) apply_pack<1>(batch.update, entry, i, kAll);
}

/// Collects tensors of one dtype and launches when a batch is full.
template <class T, int kOperands, class Update, class Extra>
class Launcher {
 public:
  Launcher(const char* name, const Update& update) : name_(name) { batch_.update = update; }

  void add(const std::array<Tensor, kOperands>& tensors, const Extra& extra) {
    if (tensors[0].numel() == 0) return;
    auto& entry = batch_.entry[batch_.entries++];
    entry.count = tensors[0].numel();
    entry.first_block = batch_.blocks;
    entry.extra = extra;
    entry.packs = true;
    for (std::size_t k = 0; k < kOperands; ++k) {
      entry.data[k] = nullptr;
      if (!tensors[k].defined()) continue;
      const Tensor dense = view::dense(tensors[k]);
      // The gradient is only read; its copy is kept until the launch.
      if (!dense.is_same(tensors[k])) copies_.emplace_back(dense, k == kGradient ? Tensor() : tensors[k]);
      entry.data[k] = dense.template data<T>();
      entry.packs = entry.packs && is_aligned(entry.data[k]);
    }
    batch_.blocks += (entry.count + kBlockElements - 1) / kBlockElements;
    device_ = tensors[0].device();
    if (batch_.entries == kEntries) flush();
  }

  void flush() {
    if (batch_.entries == 0) return;
    const DeviceScope scope(device_);
    launch(name_, step_kernel<T, kOperands, Update, Extra>, static_cast<unsigned>(batch_.blocks), kThreads, 0,
           scope.stream(), batch_);
    for (const auto& [dense, target] : copies_) {
      if (target.defined()) halo::copy(dense, target);
    }
    copies_.clear();
    batch_.entries = 0;
    batch_.blocks = 0;
  }

 private:
  const char* name_;
  Batch<T, kOperands, Update, Extra> batch_;
  Device device_;
  std::vector<std::pair<Tensor, Tensor>> copies_;  ///< dense copies of strided tensors, and where to write them back
};

template <class T>
void sgd_as(const SgdUpdate& update, const std::vector<SgdTensors>& tensors) {
  Launcher<T, 3, SgdUpdate, Nothing> launcher("sgd_step", update);
  for (const SgdTensors& t : tensors) {
    if (t.param.dtype() == dtype_of<T>()) launcher.add({t.param, t.grad, t.velocity}, {});
  }
  launcher.flush();
}

template <class T>
void adam_as(const AdamUpdate& update, const std::vector<AdamTensors>& tensors) {
  Launcher<T, 4, AdamUpdate, AdamUpdate::Correction> launcher("adam_step", update);
  for (const AdamTensors& t : tensors) {
    if (t.param.dtype() == dtype_of<T>()) {
      launcher.add({t.param, t.grad, t.exp_avg, t.exp_avg_sq}, update.correction(t.step));
    }
  }
  launcher.flush();
}

/// Only float32 and float64 have arithmetic.
template <class Entries>
void check_dtypes(const char* op, const Entries& tensors) {
  for (const auto& t : tensors) dispatch_float(op, t.param.dtype(), [](auto) {});
}

}  // namespace

void sgd_step(const SgdUpdate& update, const std::vector<SgdTensors>& tensors) {
  check_dtypes("sgd_step", tensors);
  sgd_as<float>(update, tensors);
  sgd_as<double>(update, tensors);
}

void adam_step(const AdamUpdate& update, const std::vector<AdamTensors>& tensors) {
  check_dtypes("adam_step", tensors);
  adam_as<float>(update, tensors);
  adam_as<double>(update, tensors);
}

}  // namespace halo::cuda
