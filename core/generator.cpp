#include <halo/core/copy.h>
#include <halo/core/cuda_backend.h>
#include <halo/core/draw_log.h>
#include <halo/core/error.h>
#include <halo/core/generator.h>
#include <halo/core/half_uniform.h>
#include <halo/core/parallel.h>

#include <algorithm>
#include <bit>

namespace halo {

void Generator::manual_seed(uint64_t seed) { set_state({seed, 0}); }

PhiloxState Generator::state() const {
  std::lock_guard lock(mutex_);
  return state_;
}

void Generator::set_state(PhiloxState state) {
  std::lock_guard lock(mutex_);
  state_ = state;
}

PhiloxState Generator::reserve(uint64_t draws) {
  DrawScope* const scope = DrawScope::current();
  return scope == nullptr ? advance(draws) : scope->reserve(*this, draws);
}

PhiloxState Generator::advance(uint64_t draws) {
  std::lock_guard lock(mutex_);
  const PhiloxState start = state_;
  state_.offset += draws;
  return start;
}

namespace {
thread_local DrawScope* draw_scope = nullptr;
}  // namespace

DrawScope::DrawScope(DrawLog& log, Mode mode) : log_(log), mode_(mode), outer_(draw_scope) { draw_scope = this; }
DrawScope::~DrawScope() { draw_scope = outer_; }
DrawScope* DrawScope::current() { return draw_scope; }

PhiloxState DrawScope::reserve(Generator& generator, uint64_t draws) {
  if (mode_ == Mode::Record) {
    const PhiloxState start = outer_ == nullptr ? generator.advance(draws) : outer_->reserve(generator, draws);
    log_.draws.push_back({start, draws});
    return start;
  }
  if (next_ == log_.draws.size() || log_.draws[next_].draws != draws) {
    fail("checkpoint: the function expected to do the same when it is run again, but it drew other random numbers");
  }
  return log_.draws[next_++].start;
}

Generator& default_generator() {
  static auto* generator = new Generator(0);
  return *generator;
}

void manual_seed(uint64_t seed) { default_generator().manual_seed(seed); }

namespace {

constexpr int64_t kGrain = 4096;

void check_arguments(const char* op, const Shape& shape, DType dtype) {
  check_extents(op, shape);
  if (!is_floating_point(dtype)) fail(op, ": dtype expected a floating type, got ", name(dtype));
}

/// Fills a CPU tensor of `dtype` with draw(i), then moves it to where it is wanted: values do not depend on the device.
template <class Draw>
Tensor filled(const Shape& shape, const TensorOptions& options, Draw draw) {
  using Value = decltype(draw(uint64_t{0}));
  Tensor host = empty(shape, {.dtype = dtype_of<Value>()});
  Value* const out = host.data<Value>();
  parallel_for(host.numel(), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) out[i] = draw(static_cast<uint64_t>(i));
  });
  return convert(host, options.dtype, options.device);
}

}  // namespace

Tensor rand(const Shape& shape, const TensorOptions& options, Generator& generator) {
  check_arguments("rand", shape, options.dtype);
  const PhiloxState state = generator.reserve(static_cast<uint64_t>(shape.numel()));
  if (options.device.is_cuda()) return cuda::random(cuda::Distribution::Uniform, state, shape, options);
  if (options.dtype == DType::Float64) {
    return filled(shape, options, [state](uint64_t i) { return random_uniform64(state, i); });
  }
  if (is_half(options.dtype)) {
    const uint32_t kept = options.dtype == DType::BFloat16 ? 0xffff0000u : 0xffffe000u;  // of a float32's bits
    return filled(shape, options, [=](uint64_t i) {
      const float uniform = uniform16_of(philox(state, i / 8), static_cast<int>(i % 8));
      return std::bit_cast<float>(std::bit_cast<uint32_t>(uniform) & kept);
    });
  }
  return filled(shape, options, [state](uint64_t i) { return random_uniform(state, i); });
}

Tensor randn(const Shape& shape, const TensorOptions& options, Generator& generator) {
  check_arguments("randn", shape, options.dtype);
  const PhiloxState state = generator.reserve(static_cast<uint64_t>(shape.numel()));
  if (options.device.is_cuda()) return cuda::random(cuda::Distribution::Normal, state, shape, options);
  if (options.dtype == DType::Float64) {
    return filled(shape, options, [state](uint64_t i) { return random_normal(state, i); });
  }
  return filled(shape, options, [state](uint64_t i) { return static_cast<float>(random_normal(state, i)); });
}

Tensor rand_like(const Tensor& like, Generator& generator) { return rand(like.shape(), like.options(), generator); }
Tensor randn_like(const Tensor& like, Generator& generator) { return randn(like.shape(), like.options(), generator); }

Tensor randint(int64_t low, int64_t high, const Shape& shape, const TensorOptions& options, Generator& generator) {
  check_extents("randint", shape);
  if (low >= high) fail("randint: low expected below high, got ", low, " and ", high);
  const PhiloxState state = generator.reserve(static_cast<uint64_t>(shape.numel()));
  const uint64_t range = static_cast<uint64_t>(high) - static_cast<uint64_t>(low);
  // The high half of bits * range: uniform to within range / 2^64.
  return filled(shape, options, [=](uint64_t i) {
    const auto wide = static_cast<unsigned __int128>(random_bits64(state, i)) * range;
    return static_cast<int64_t>(static_cast<uint64_t>(low) + static_cast<uint64_t>(wide >> 64));
  });
}

Tensor randperm(int64_t n, Generator& generator) {
  if (n < 0) fail("randperm: n expected 0 or more, got ", n);
  const Tensor result = arange(n);
  const PhiloxState state = generator.reserve(static_cast<uint64_t>(n));
  auto* const order = result.data<int64_t>();
  for (int64_t i = n - 1; i > 0; --i) {  // Fisher-Yates
    const auto wide =
        static_cast<unsigned __int128>(random_bits64(state, static_cast<uint64_t>(i))) * static_cast<uint64_t>(i + 1);
    std::swap(order[i], order[static_cast<int64_t>(wide >> 64)]);
  }
  return result;
}

}  // namespace halo
