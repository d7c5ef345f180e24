#include <halo/core/error.h>
#include <halo/core/parallel.h>
#include <halo/core/view.h>
#include <halo/data/transform.h>

#include <algorithm>
#include <cmath>

namespace halo::data {
namespace {

void check_images(const char* op, const Tensor& images) {
  if (images.rank() != 4) fail(op, ": images expected [N, C, H, W], got ", images.describe());
}

/// The two source pixels of a target pixel, and the weight of the second.
struct Tap {
  int64_t low, high;
  float weight;
};

std::vector<Tap> taps(int64_t from, int64_t to) {
  std::vector<Tap> result;
  for (int64_t i = 0; i < to; ++i) {
    const double at = (static_cast<double>(i) + 0.5) * static_cast<double>(from) / static_cast<double>(to) - 0.5;
    const double clipped = std::clamp(at, 0.0, static_cast<double>(from - 1));
    const auto low = static_cast<int64_t>(clipped);
    result.push_back({low, std::min(low + 1, from - 1), static_cast<float>(clipped - static_cast<double>(low))});
  }
  return result;
}

template <class T>
void resize_planes(const Tensor& source, const Tensor& target) {
  const int64_t in_h = source.size(2), in_w = source.size(3), out_h = target.size(2), out_w = target.size(3);
  const auto rows = taps(in_h, out_h), columns = taps(in_w, out_w);
  parallel_for(source.size(0) * source.size(1), 16, [&](int64_t begin, int64_t end) {
    for (int64_t plane = begin; plane < end; ++plane) {
      const T* in = source.data<T>() + plane * in_h * in_w;
      T* out = target.data<T>() + plane * out_h * out_w;
      for (const Tap& r : rows) {
        for (const Tap& c : columns) {
          const auto at = [&](int64_t y, int64_t x) { return static_cast<float>(in[y * in_w + x]); };
          const float top = at(r.low, c.low) + c.weight * (at(r.low, c.high) - at(r.low, c.low));
          const float bottom = at(r.high, c.low) + c.weight * (at(r.high, c.high) - at(r.high, c.low));
          const float value = top + r.weight * (bottom - top);
          *out++ = std::is_same_v<T, uint8_t> ? static_cast<T>(std::lround(value)) : static_cast<T>(value);
        }
      }
    }
  });
}

}  // namespace

Tensor resize(const Tensor& images, int64_t height, int64_t width) {
  check_images("resize", images);
  if (height < 1 || width < 1) fail("resize: size expected at least 1 x 1, got ", height, " x ", width);
  if (images.size(2) < 1 || images.size(3) < 1) fail("resize: images expected pixels, got ", images.shape());
  Tensor result = empty({images.size(0), images.size(1), height, width}, images.options());
  const Tensor dense = view::dense(images);
  switch (images.dtype()) {
    case DType::UInt8: resize_planes<uint8_t>(dense, result); break;
    case DType::Float32: resize_planes<float>(dense, result); break;
    default: fail("resize: images expected uint8 or float32, got ", images.describe());
  }
  return result;
}

Tensor normalize(const Tensor& images, const std::vector<float>& mean, const std::vector<float>& std) {
  check_images("normalize", images);
  const auto channels = static_cast<int64_t>(mean.size());
  if (images.dtype() != DType::UInt8 || mean.size() != std.size() ||
      (images.size(1) != channels && images.size(1) != 1)) {
    fail("normalize: images expected uint8 with 1 or ", mean.size(), " channels (as mean and std), got ",
         images.describe());
  }
  const int64_t n = images.size(0), pixels = images.size(2) * images.size(3), stored = images.size(1);
  Tensor result = empty({n, channels, images.size(2), images.size(3)});
  const Tensor dense = view::dense(images);
  const uint8_t* const in = dense.data<uint8_t>();
  float* const out = result.data<float>();
  parallel_for(n * channels, 16, [&](int64_t begin, int64_t end) {
    for (int64_t plane = begin; plane < end; ++plane) {
      const int64_t c = plane % channels, source = plane / channels * stored + (stored == 1 ? 0 : c);
      const float scale = 1.0f / (255.0f * std[static_cast<std::size_t>(c)]);
      const float offset = mean[static_cast<std::size_t>(c)] / std[static_cast<std::size_t>(c)];
      for (int64_t i = 0; i < pixels; ++i) {
        out[plane * pixels + i] = static_cast<float>(in[source * pixels + i]) * scale - offset;
      }
    }
  });
  return result;
}

Tensor augment(const Tensor& images, int64_t shift, bool flip, Generator& generator) {
  check_images("augment", images);
  if (images.dtype() != DType::UInt8) fail("augment: images expected uint8, got ", images.describe());
  // A draw has 32 bits.
  if (shift < 0 || shift > INT32_MAX) fail("augment: shift expected from 0 to ", INT32_MAX, ", got ", shift);
  const int64_t n = images.size(0), channels = images.size(1), height = images.size(2), width = images.size(3);
  const PhiloxState state = generator.reserve(static_cast<uint64_t>(n));
  const Tensor dense = view::dense(images);
  Tensor result = empty(images.shape(), images.options());
  const auto side = static_cast<uint32_t>(2 * shift + 1);
  parallel_for(n, 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const PhiloxBlock draw = philox(state, static_cast<uint64_t>(i));
      const bool mirrored = flip && (draw.v[0] & 1u) != 0;
      const int64_t dy = static_cast<int64_t>(draw.v[1] % side) - shift,
                    dx = static_cast<int64_t>(draw.v[2] % side) - shift;
      for (int64_t c = 0; c < channels; ++c) {
        const uint8_t* in = dense.data<uint8_t>() + (i * channels + c) * height * width;
        uint8_t* out = result.data<uint8_t>() + (i * channels + c) * height * width;
        for (int64_t y = 0; y < height; ++y) {
          const uint8_t* row = in + std::clamp<int64_t>(y + dy, 0, height - 1) * width;
          for (int64_t x = 0; x < width; ++x) {
            const int64_t from = std::clamp<int64_t>(x + dx, 0, width - 1);
            *out++ = row[mirrored ? width - 1 - from : from];
          }
        }
      }
    }
  });
  return result;
}

}  // namespace halo::data
