// What the launch door says of failures. Needs CUDA to build, and no GPU.
#include <halo/cuda/launch.h>
#include <halo/cuda/norm/rows.h>

#include "tests/testing.h"

namespace halo {
namespace {

using testing::message_of;

// A kernel that reads outside its memory is heard of by some later call, which took the blame; and then by all others,
// of which one claimed to be out of memory.
TEST(Launch, LaterCallsNameTheFirstFailure) {
  const auto said = [](cudaError_t status, const char* what) {
    return message_of<DeviceError>([&] { cuda::check(status, what); });
  };
  const std::string plain = said(cudaErrorInvalidValue, "copy");
  EXPECT_EQ(plain.find("earlier"), std::string::npos);
  const std::string first = said(cudaErrorIllegalAddress, "conv_forward");
  EXPECT_NE(first.find("conv_forward"), std::string::npos);
  EXPECT_NE(first.find("CUDA_LAUNCH_BLOCKING"), std::string::npos);
  const std::string later = said(cudaErrorIllegalAddress, "cudaMalloc");
  EXPECT_NE(later.find("earlier failure"), std::string::npos);
  EXPECT_NE(later.find("conv_forward"), std::string::npos);
  EXPECT_EQ(later.find("memory allocation"), std::string::npos);
}

TEST(Launch, OutOfMemoryAndShapesHaveTheirOwnTypes) {
  EXPECT_THROW(cuda::check(cudaErrorMemoryAllocation, "cudaMalloc"), OutOfMemoryError);
  EXPECT_NO_THROW(cuda::check(cudaSuccess, "copy"));
  EXPECT_THROW(cuda::check_launch_shape("pool", dim3(1, 65536, 1), dim3(32)), InternalError);
  EXPECT_THROW(cuda::check_launch_shape("pool", dim3(1), dim3(1025)), InternalError);
  EXPECT_NO_THROW(cuda::check_launch_shape("pool", dim3(2147483647, 65535, 65535), dim3(1024)));
}

// Sums over rows in float32 were as long as the tensor: a thread of 2^30 rows added up 250,000 of them.
TEST(Launch, SumsOverRowsAreCutWhateverTheirNumber) {
  constexpr int64_t kTeams = 256, kMostRows = 128;  // teams a block at most; rows that a team adds
  for (int64_t rows : {int64_t{1}, int64_t{1000}, int64_t{1} << 20, int64_t{1} << 30}) {
    for (int64_t length : {16, 1000, 1001, 8192}) {
      const cuda::RowBackward<float> args{.rows = rows, .length = length};
      const int64_t blocks = cuda::rows_backward_workspace(args) / ((length % 4 == 0 ? 2 : 3) * length);
      const int64_t threads = std::max<int64_t>(1, length / 32), teams = std::max<int64_t>(1, kTeams / threads);
      EXPECT_LE(rows, blocks * teams * kMostRows) << rows << " rows of " << length;
      EXPECT_LE(4 * blocks, std::max(rows, int64_t{528})) << "the memory of their sums";
    }
  }
}

}  // namespace
}  // namespace halo
