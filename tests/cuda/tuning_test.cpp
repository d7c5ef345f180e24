// Measured kernel choices in use.
#include <halo/cuda/tuning.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/cuda/gpu_testing.h"

namespace halo {
namespace {

using testing::Gpu;
using testing::message_of;
using testing::near;
using testing::same;

class TunedGpu : public Gpu {
 protected:
  void TearDown() override {
    if (cuda::device_count() > 0) cuda::forget_convolution_choices();
    std::remove(path_.c_str());
  }
  const std::string path_ = (std::filesystem::temp_directory_path() / "halo_tuning_test.txt").string();
};

Tensor convolution(const Tensor& x, const Tensor& w) { return conv2d(x, w, {}, {.stride = {2, 1}, .padding = {1, 2}}); }

TEST_F(TunedGpu, ChoicesAreWrittenReadAndUsed) {
  const Tensor x = randn({3, 17, 19, 23}), w = randn({24, 17, 3, 5});
  const Tensor there = x.to(Device::cuda()), weight = w.to(Device::cuda());
  cuda::tune_convolutions(path_, Device::cuda(), [&] { convolution(there, weight); });
  const Tensor tuned = convolution(there, weight).to(Device::cpu());
  EXPECT_TRUE(near(tuned, convolution(x, w), 2e-6));
  cuda::forget_convolution_choices();
  EXPECT_EQ(cuda::load_convolution_choices(path_, Device::cuda()), "");
  EXPECT_TRUE(same(convolution(there, weight).to(Device::cpu()), tuned));

  std::string text;
  std::getline(std::ifstream(path_), text, '\0');
  EXPECT_NE(text.find("forward float32 fp32 "), std::string::npos) << text;
  EXPECT_EQ(text.find("backward"), std::string::npos) << "only what the body did";
}

TEST_F(TunedGpu, FilesThatAreDamagedOrAbsentAreErrors) {
  cuda::tune_convolutions(path_, Device::cuda(), [] {});
  EXPECT_EQ(cuda::load_convolution_choices(path_, Device::cuda()), "");
  std::ofstream(path_, std::ios::app) << "x";
  const auto load = [&] { cuda::load_convolution_choices(path_, Device::cuda()); };
  EXPECT_NE(message_of<FileError>(load).find("cut off or was changed"), std::string::npos);
  std::remove(path_.c_str());
  EXPECT_NE(message_of<FileError>(load).find("cannot be opened"), std::string::npos);
}

}  // namespace
}  // namespace halo
