// The long convolution's kernels against direct sums in float64. Needs a GPU; skips without one.
#include <halo/core/error.h>
#include <halo/cuda/launch.h>
#include <halo/cuda/long_conv/long_conv.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include <cuda_bf16.h>
#include <gtest/gtest.h>

namespace halo::cuda {
namespace {

/// Device array; poisoned (NaN) unless filled.
template <class T>
class Device {
 public:
  explicit Device(std::size_t count) : count_(count) {
    check(cudaMalloc(&data_, std::max<std::size_t>(count * sizeof(T), 256)), "test");
    check(cudaMemset(data_, 0xFF, std::max<std::size_t>(count * sizeof(T), 256)), "test");
  }
  explicit Device(const std::vector<T>& host) : Device(host.size()) {
    if (count_ > 0) check(cudaMemcpy(data_, host.data(), count_ * sizeof(T), cudaMemcpyHostToDevice), "test");
  }
  ~Device() { cudaFree(data_); }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  T* get() const { return static_cast<T*>(data_); }
  std::vector<T> host() const {
    std::vector<T> result(count_);
    if (count_ > 0) check(cudaMemcpy(result.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost), "test");
    return result;
  }

 private:
  void* data_ = nullptr;
  std::size_t count_;
};

template <class T>
constexpr DType storage = dtype_of<T>();
template <>
constexpr DType storage<__nv_bfloat16> = DType::BFloat16;

template <class T>
std::vector<T> random(int64_t count, unsigned seed) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<double> uniform(-1, 1);
  std::vector<T> values(static_cast<std::size_t>(count));
  for (T& v : values) v = static_cast<T>(static_cast<float>(uniform(generator)));
  return values;
}

template <class T>
struct Tensors {
  std::vector<T> x, weight, skip, gate_in, gate_out, y;
};
using Expected = Tensors<double>;

template <class T>
struct Case {
  LongConvProblem problem;
  bool gated;
  Tensors<T> operands;  // y is the output's gradient

  Case(int64_t batch, int64_t channels, int64_t length, int64_t kernel, bool causal, bool with_gates)
      : problem(LongConvProblem::make("test", {batch, channels, length}, {channels, kernel}, causal)),
        gated(with_gates) {
    const int64_t rows = problem.x_numel();
    operands = {random<T>(rows, 1),     random<T>(problem.w_numel(), 2),
                random<T>(channels, 3), random<T>(rows, 4),
                random<T>(rows, 5),     random<T>(rows, 6)};
  }
};

double at(const auto& values, int64_t i) {
  return static_cast<double>(static_cast<float>(values[static_cast<std::size_t>(i)]));
}
double at(const std::vector<double>& values, int64_t i) { return values[static_cast<std::size_t>(i)]; }

/// All six results by the definition. `dropped_tap` leaves one tap out: a wrong result that the bounds must catch.
template <class T>
Expected expected(const Case<T>& c, int64_t dropped_tap = -1) {
  const LongConvProblem& p = c.problem;
  const auto& o = c.operands;
  const auto zeros = [](int64_t n) { return std::vector<double>(static_cast<std::size_t>(n), 0.0); };
  Expected e{zeros(p.x_numel()), zeros(p.w_numel()), zeros(p.channels),
             zeros(p.x_numel()), zeros(p.x_numel()), zeros(p.x_numel())};
  for (int64_t row = 0; row < p.batch * p.channels; ++row) {
    const int64_t h = row % p.channels, base = row * p.length;
    std::vector<double> in(static_cast<std::size_t>(p.length)), grad(in), out(in), back(in);
    for (int64_t t = 0; t < p.length; ++t) {
      const auto i = static_cast<std::size_t>(t);
      in[i] = at(o.x, base + t) * (c.gated ? at(o.gate_in, base + t) : 1);
      grad[i] = at(o.y, base + t) * (c.gated ? at(o.gate_out, base + t) : 1);
    }
    for (int64_t k = -1; k < p.kernel; ++k) {  // -1 stands for the skip weight
      if (k >= 0 && k == dropped_tap) continue;
      const int64_t lag = k < 0 ? 0 : k - p.center();
      const double w = k < 0 ? at(o.skip, h) : at(o.weight, h * p.kernel + k);
      double& sum = k < 0 ? e.skip[static_cast<std::size_t>(h)] : e.weight[static_cast<std::size_t>(h * p.kernel + k)];
      for (int64_t t = std::max<int64_t>(0, lag); t < std::min(p.length, p.length + lag); ++t) {
        const auto to = static_cast<std::size_t>(t), from = static_cast<std::size_t>(t - lag);
        out[to] += w * in[from];
        back[from] += w * grad[to];
        sum += grad[to] * in[from];
      }
    }
    for (int64_t t = 0; t < p.length; ++t) {
      const auto i = static_cast<std::size_t>(base + t), r = static_cast<std::size_t>(t);
      e.y[i] = out[r] * (c.gated ? at(o.gate_out, base + t) : 1);
      e.x[i] = back[r] * (c.gated ? at(o.gate_in, base + t) : 1);
      e.gate_in[i] = back[r] * at(o.x, base + t);
      e.gate_out[i] = out[r] * at(o.y, base + t);
    }
  }
  return e;
}

struct Wanted {
  bool x = true, weight = true, skip = true, gates = true;
};

template <class T>
Tensors<T> run(const Case<T>& c, const Wanted& wanted = {}, bool forward = true) {
  const LongConvProblem& p = c.problem;
  const auto count = [](int64_t n) { return static_cast<std::size_t>(n); };
  const Device<T> x(c.operands.x), weight(c.operands.weight), skip(c.operands.skip), gate_in(c.operands.gate_in),
      gate_out(c.operands.gate_out), grad(c.operands.y);
  const Device<T> y(count(p.x_numel())), dx(count(p.x_numel())), dw(count(p.w_numel())), dskip(count(p.channels)),
      dgate_in(count(p.x_numel())), dgate_out(count(p.x_numel()));
  LongConvOperands operands{p, storage<T>, storage<T>, x.get(), weight.get(), skip.get(), nullptr, nullptr};
  LongConvGrads grads{.grad_output = grad.get()};
  if (wanted.x) grads.x = dx.get();
  if (wanted.weight) grads.weight = dw.get();
  if (wanted.skip) grads.skip = dskip.get();
  if (c.gated) {
    operands.gate_in = gate_in.get();
    operands.gate_out = gate_out.get();
    if (wanted.gates) grads.gate_in = dgate_in.get();
    if (wanted.gates) grads.gate_out = dgate_out.get();
  }
  if (forward) {
    const Device<char> workspace(long_conv_forward_workspace(operands));
    long_conv_forward(operands, y.get(), workspace.get(), nullptr);
    check(cudaDeviceSynchronize(), "forward");
  }
  const bool only_weight = !wanted.x && !(c.gated && wanted.gates);
  const bool only_x = !wanted.weight && !wanted.skip && !(c.gated && wanted.gates);
  if (only_weight) operands.weight = operands.skip = nullptr;  // no wanted gradient depends on them
  if (only_x) operands.x = nullptr;
  const Device<char> workspace(long_conv_backward_workspace(operands, grads));
  long_conv_backward(operands, grads, workspace.get(), nullptr);
  check(cudaDeviceSynchronize(), "backward");
  return {dx.host(), dw.host(), dskip.host(), dgate_in.host(), dgate_out.host(), y.host()};
}

template <class T>
double error(const std::vector<T>& got, const std::vector<double>& want) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double d = at(got, static_cast<int64_t>(i)) - want[i];
    difference += std::isnan(d) ? std::numeric_limits<double>::infinity() : d * d;
    norm += want[i] * want[i];
  }
  return norm == 0 ? (difference == 0 ? 0 : std::numeric_limits<double>::infinity()) : std::sqrt(difference / norm);
}

template <class T>
void expect_close(const Tensors<T>& got, const Expected& want, bool gated, double bound) {
  EXPECT_LT(error(got.y, want.y), bound);
  EXPECT_LT(error(got.x, want.x), bound);
  EXPECT_LT(error(got.weight, want.weight), bound);
  EXPECT_LT(error(got.skip, want.skip), bound);
  if (gated) EXPECT_LT(error(got.gate_in, want.gate_in), bound);
  if (gated) EXPECT_LT(error(got.gate_out, want.gate_out), bound);
}

class LongConvCuda : public testing::Test {
 protected:
  void SetUp() override {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) GTEST_SKIP() << "no GPU";
  }
};

constexpr double kFloatBound = 2e-6, kBFloatBound = 5e-3;

TEST_F(LongConvCuda, EveryKindOfLengthAndKernel) {
  for (int64_t length : {1, 2, 3, 7, 8, 9, 255, 257, 1000, 1025, 2049}) {
    for (int64_t kernel : {int64_t{1}, int64_t{2}, length, 2 * length + 3}) {
      for (bool causal : {true, false}) {
        SCOPED_TRACE(concat("length ", length, " kernel ", kernel, causal ? " causal" : " two-sided"));
        const Case<float> c(2, 3, length, kernel, causal, causal);
        expect_close(run(c), expected(c), c.gated, kFloatBound);
      }
    }
  }
}

TEST_F(LongConvCuda, RowsLongerThanABlock) {
  for (int64_t length : {8193, 14113, 40001}) {
    const Case<float> c(2, 1, length, 70, length % 2 == 0, true);
    expect_close(run(c), expected(c), true, kFloatBound);
  }
}

TEST_F(LongConvCuda, BoundCatchesADroppedTap) {
  const Case<float> c(2, 3, 255, 255, true, false);
  const Expected wrong = expected(c, 200);
  const Tensors<float> got = run(c);
  EXPECT_GT(error(got.y, wrong.y), 10 * kFloatBound);
  EXPECT_GT(error(got.x, wrong.x), 10 * kFloatBound);
  EXPECT_GT(error(got.weight, wrong.weight), 10 * kFloatBound);
}

TEST_F(LongConvCuda, BFloat16) {
  const Case<__nv_bfloat16> c(2, 3, 300, 201, false, true);
  expect_close(run(c), expected(c), true, kBFloatBound);
  EXPECT_GT(error(run(c).y, expected(c, 100).y), 2 * kBFloatBound);
}

TEST_F(LongConvCuda, Float64) {
  for (int64_t length : {300, 9001}) {
    const Case<double> c(2, 2, length, 201, false, true);
    expect_close(run(c), expected(c), true, 1e-13);
  }
}

TEST_F(LongConvCuda, GradientsAskedForAlone) {
  for (int64_t length : {100, 9000, 40001}) {
    const Case<float> c(2, 2, length, 33, false, false);
    const Expected want = expected(c);
    EXPECT_LT(error(run(c, {.weight = false, .skip = false}).x, want.x), kFloatBound);
    EXPECT_LT(error(run(c, {.x = false, .skip = false}).weight, want.weight), kFloatBound);
    EXPECT_LT(error(run(c, {.x = false, .weight = false}).skip, want.skip), kFloatBound);
  }
}

// A filter longer than twice the input once wrapped around where the transform had the size of the input alone.
TEST_F(LongConvCuda, FilterLongerThanTwiceTheInput) {
  Case<float> c(1, 1, 2, 6, true, false);
  c.operands.x = {1, 2};
  c.operands.weight = {1, 2, 3, 4, 5, 6};
  c.operands.skip = {0};
  const std::vector<float> y = run(c).y;
  EXPECT_NEAR(y[0], 1, 1e-6);
  EXPECT_NEAR(y[1], 4, 1e-6);
}

// Two rows once shared a transform as real and imaginary part, and leaked into each other.
TEST_F(LongConvCuda, RowsDoNotMeet) {
  for (int64_t length : {200, 1024, 8192, 20000}) {
    Case<float> c(2, 3, length, 50, true, true);
    const Tensors<float> before = run(c);
    for (float factor : {1e6f, std::numeric_limits<float>::quiet_NaN()}) {
      for (int64_t t = 0; t < length; ++t) c.operands.x[static_cast<std::size_t>(t)] *= factor;
      const Tensors<float> after = run(c);
      EXPECT_FALSE(std::equal(after.y.begin(), after.y.begin() + length, before.y.begin()));
      EXPECT_TRUE(std::equal(after.y.begin() + length, after.y.end(), before.y.begin() + length));
      EXPECT_TRUE(after.x == before.x);  // does not depend on x
    }
  }
}

TEST_F(LongConvCuda, EmptyAndRefused) {
  const Case<float> none(0, 3, 5, 4, true, false);
  for (float v : run(none).weight) EXPECT_EQ(v, 0);
  LongConvOperands operands{.problem = LongConvProblem::make("test", {1, 1, (1 << 21) + 1}, {1, 1}, true)};
  EXPECT_THROW(long_conv_forward_workspace(operands), ArgumentError);
  operands.problem = LongConvProblem::make("test", {1, 1, 4}, {1, 1}, true);
  operands.weight_dtype = DType::Float64;
  EXPECT_THROW(long_conv_forward_workspace(operands), ArgumentError);
  operands.weight_dtype = DType::Float32;
  float some = 0;
  EXPECT_THROW(long_conv_backward_workspace(operands, {.gate_in = &some}), ArgumentError);
}

}  // namespace
}  // namespace halo::cuda
