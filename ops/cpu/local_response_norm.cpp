// Local response normalisation on the CPU, a block of positions at a time: all channels of a block stay in the cache,
// and the loops over positions vectorise.
#include <halo/core/parallel.h>
#include <halo/ops/local_response_norm_backend.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace halo::cpu {
namespace {

constexpr int64_t kBlock = 256;  // positions

/// x of one sample and block: channels at a distance of `pitch`.
template <class T>
struct Block {
  int64_t offset, count, channels, pitch;
  std::vector<T>& sums;  // `count` values

  /// sums[i] = sum of f(j)[i] over the channels j in [c - before, c + after] that exist.
  template <class F>
  void sum_window(int64_t c, int64_t before, int64_t after, F&& f) const {
    std::fill_n(sums.begin(), count, T(0));
    const int64_t last = std::min(channels - 1, after < channels ? c + after : channels - 1);
    for (int64_t j = std::max<int64_t>(0, c - before); j <= last; ++j) {
      for (int64_t i = 0; i < count; ++i) sums[static_cast<std::size_t>(i)] += f(j, i);
    }
  }
};

/// Calls f(block) for every block of positions of every sample, on several threads.
template <class T, class F>
void for_each_block(const Tensor& x, F&& f) {
  const int64_t batch = x.size(0), channels = x.size(1);
  const int64_t positions = batch * channels == 0 ? 0 : x.numel() / (batch * channels);
  const int64_t blocks = (positions + kBlock - 1) / kBlock;
  parallel_for(batch * blocks, 1, [&](int64_t begin, int64_t end) {
    std::vector<T> sums(static_cast<std::size_t>(kBlock));
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = i % blocks * kBlock;
      f(Block<T>{i / blocks * channels * positions + first, std::min(kBlock, positions - first), channels, positions,
                 sums});
    }
  });
}

template <class T>
void forward(const LocalResponseNorm& norm, const Tensor& x, const Tensor& y) {
  const T alpha = static_cast<T>(norm.alpha), beta = static_cast<T>(norm.beta), k = static_cast<T>(norm.k);
  for_each_block<T>(x, [&, in = x.data<T>(), out = y.data<T>()](const Block<T>& block) {
    const T* const rows = in + block.offset;
    for (int64_t c = 0; c < block.channels; ++c) {
      block.sum_window(c, norm.before(), norm.after(), [&](int64_t j, int64_t i) {
        const T value = rows[j * block.pitch + i];
        return value * value;
      });
      T* const row = out + block.offset + c * block.pitch;
      for (int64_t i = 0; i < block.count; ++i) {
        row[i] = rows[c * block.pitch + i] * std::pow(k + alpha * block.sums[static_cast<std::size_t>(i)], -beta);
      }
    }
  });
}

template <class T>
void backward(const LocalResponseNorm& norm, const Tensor& x, const Tensor& g, const Tensor& dx) {
  const T alpha = static_cast<T>(norm.alpha), beta = static_cast<T>(norm.beta), k = static_cast<T>(norm.k);
  const T factor = static_cast<T>(2 * norm.alpha * norm.beta);
  for_each_block<T>(x, [&, in = x.data<T>(), up = g.data<T>(), out = dx.data<T>()](const Block<T>& block) {
    // ratios[c] = g x s^(-beta - 1); dx holds g s^-beta until the window sums of the ratios are known.
    std::vector<T> ratios(static_cast<std::size_t>(block.channels * block.count));
    for (int64_t c = 0; c < block.channels; ++c) {
      block.sum_window(c, norm.before(), norm.after(), [&](int64_t j, int64_t i) {
        const T value = in[block.offset + j * block.pitch + i];
        return value * value;
      });
      for (int64_t i = 0; i < block.count; ++i) {
        const int64_t at = block.offset + c * block.pitch + i;
        const T s = k + alpha * block.sums[static_cast<std::size_t>(i)];
        out[at] = up[at] * std::pow(s, -beta);
        ratios[static_cast<std::size_t>(c * block.count + i)] = out[at] * in[at] / s;
      }
    }
    for (int64_t c = 0; c < block.channels; ++c) {
      block.sum_window(c, norm.after(), norm.before(),
                       [&](int64_t j, int64_t i) { return ratios[static_cast<std::size_t>(j * block.count + i)]; });
      for (int64_t i = 0; i < block.count; ++i) {
        const int64_t at = block.offset + c * block.pitch + i;
        out[at] -= factor * in[at] * block.sums[static_cast<std::size_t>(i)];
      }
    }
  });
}

}  // namespace

void local_response_norm_forward(const LocalResponseNorm& norm, const Tensor& x, const Tensor& y) {
  dispatch_float("local_response_norm", x.dtype(),
                 [&](auto type) { forward<typename decltype(type)::type>(norm, x, y); });
}

void local_response_norm_backward(const LocalResponseNorm& norm, const Tensor& x, const Tensor& g, const Tensor& dx) {
  dispatch_float("local_response_norm", x.dtype(),
                 [&](auto type) { backward<typename decltype(type)::type>(norm, x, g, dx); });
}

}  // namespace halo::cpu
