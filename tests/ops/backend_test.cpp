// HALO_CHECK: the comparison of a GPU call with the CPU, exercised with functions that only play the part of a GPU.
#include <halo/ops/backend.h>
#include <halo/ops/norm.h>

#include "tests/testing.h"

namespace halo {
namespace {

using testing::random_integers;

void twice(const Tensor& x, const Tensor& y) {
  for (int64_t i = 0; i < x.numel(); ++i) y.data<float>()[i] = 2 * x.data<float>()[i];
}
void twice_but_one(const Tensor& x, const Tensor& y) {
  twice(x, y);
  y.data<float>()[y.numel() / 2] += 0.01f;
}
void fill_result(const Tensor& x, NormResult& result) { twice(x, result.y); }
void fill_result_wrongly(const Tensor& x, NormResult& result) { twice_but_one(x, result.y); }

class BackendCheckTest : public ::testing::Test {
 protected:
  void SetUp() override { ops::set_backend_checking(true); }
  void TearDown() override { ops::set_backend_checking(false); }
};

TEST_F(BackendCheckTest, AgreementPassesAndDisagreementIsNamed) {
  const Tensor x = randn({101}), y = empty({101});
  EXPECT_NO_THROW(ops::run_backend("twice", Device::cuda(1), twice, twice, x, ops::writes(y)));
  const std::string text = testing::message_of<InternalError>(
      [&] { ops::run_backend("twice", Device::cuda(1), twice, twice_but_one, x, ops::writes(y)); });
  EXPECT_NE(text.find("twice on cuda:1"), std::string::npos) << text;
  EXPECT_NE(text.find("tensor 1"), std::string::npos) << text;
  EXPECT_NE(text.find("element 50"), std::string::npos) << text;
}

TEST_F(BackendCheckTest, TensorsInsideStructsAreSeen) {
  const Tensor x = randn({9});
  NormResult result{.y = empty({9})};
  EXPECT_NO_THROW(ops::run_backend("norm", Device::cuda(), fill_result, fill_result, x, ops::writes(result)));
  EXPECT_THROW(ops::run_backend("norm", Device::cuda(), fill_result, fill_result_wrongly, x, ops::writes(result)),
               InternalError);
}

TEST_F(BackendCheckTest, TheSwitchTurnsItOff) {
  ops::set_backend_checking(false);
  const Tensor x = randn({101}), y = empty({101});
  EXPECT_NO_THROW(ops::run_backend("twice", Device::cuda(), twice, twice_but_one, x, ops::writes(y)));
}

TEST(Backend, MemoryThatAKernelLacksIsNamed) {
  const auto no_memory = [](const Tensor&, const Tensor&) { throw std::bad_alloc(); };
  const auto no_length = [](const Tensor&, const Tensor&) { throw std::length_error("vector"); };
  using Function = void (*)(const Tensor&, const Tensor&);
  const Tensor x = randn({3}), y = empty({3});
  for (Function f : {Function(no_memory), Function(no_length)}) {
    const std::string text = testing::message_of<OutOfMemoryError>(
        [&] { ops::run_backend("twice", Device::cpu(), f, f, x, ops::writes(y)); });
    EXPECT_TRUE(text.starts_with("twice: ")) << text;
  }
}

/// Steps through x with strides of its own, as matrix products do.
void transposed_sum(int64_t row_stride, int64_t column_stride, const Tensor& x, const Tensor& y) {
  for (int64_t i = 0; i < 3; ++i) {
    y.data<float>()[i] = 0;
    for (int64_t j = 0; j < 4; ++j) y.data<float>()[i] += x.data<float>()[i * row_stride + j * column_stride];
  }
}

TEST_F(BackendCheckTest, CopiesKeepStrides) {
  const Tensor wide = random_integers({4, 5}), x = wide.slice(1, 1, 4).transpose(0, 1), y = empty({3});
  EXPECT_NO_THROW(ops::run_backend("sum", Device::cuda(), transposed_sum, transposed_sum, int64_t{1}, int64_t{5}, x,
                                   ops::writes(y)));
  const Tensor repeated = random_integers({3}).reshape({3, 1}).expand({3, 4});
  EXPECT_NO_THROW(ops::run_backend("sum", Device::cuda(), transposed_sum, transposed_sum, int64_t{1}, int64_t{0},
                                   repeated, ops::writes(y)));
  // Half types: the function sees float32 copies, and what it writes comes back rounded.
  const Tensor half = x.to(bfloat16), out = empty({3}, {.dtype = bfloat16});
  const auto strides = half.strides();
  ops::run_backend("sum", Device::cpu(), transposed_sum, transposed_sum, strides[0], strides[1], half,
                   ops::writes(out));
  EXPECT_TRUE(testing::same(out.to(float32), sum(x, {1})));
}

}  // namespace
}  // namespace halo
