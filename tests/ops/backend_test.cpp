// HALO_CHECK: the comparison of a GPU call with the CPU, exercised with functions that only play the part of a GPU.
#include <halo/ops/backend.h>
#include <halo/ops/norm.h>

#include "tests/testing.h"

namespace halo {
namespace {

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
  EXPECT_NO_THROW(ops::run_backend("twice", Device::cuda(1), twice, twice, x, y));
  const std::string text = testing::message_of<InternalError>(
      [&] { ops::run_backend("twice", Device::cuda(1), twice, twice_but_one, x, y); });
  EXPECT_NE(text.find("twice on cuda:1"), std::string::npos) << text;
  EXPECT_NE(text.find("tensor 1"), std::string::npos) << text;
  EXPECT_NE(text.find("element 50"), std::string::npos) << text;
}

TEST_F(BackendCheckTest, TensorsInsideStructsAreSeen) {
  const Tensor x = randn({9});
  NormResult result{.y = empty({9})};
  EXPECT_NO_THROW(ops::run_backend("norm", Device::cuda(), fill_result, fill_result, x, result));
  EXPECT_THROW(ops::run_backend("norm", Device::cuda(), fill_result, fill_result_wrongly, x, result), InternalError);
}

TEST_F(BackendCheckTest, TheSwitchTurnsItOff) {
  ops::set_backend_checking(false);
  const Tensor x = randn({101}), y = empty({101});
  EXPECT_NO_THROW(ops::run_backend("twice", Device::cuda(), twice, twice_but_one, x, y));
}

}  // namespace
}  // namespace halo
