// The reference cases kept in the tree, in both dtypes, on every device there is; and proof that a wrong value is
// noticed.
#include <filesystem>

#include "tests/conformance/case.h"
#include "tests/testing.h"

namespace halo {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> case_files() {
  std::vector<std::string> files;
  for (const auto& entry : fs::directory_iterator(HALO_CASES)) {
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path().string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

double error_of(conformance::Case& c, std::string& worst) {
  conformance::Result result;
  EXPECT_TRUE(conformance::run_operation(c, result)) << c.op();
  return conformance::largest_error(c, result, worst);
}

class ConformanceTest : public ::testing::TestWithParam<std::string> {};

TEST_P(ConformanceTest, Float64AndFloat32) {
  for (const auto& [dtype, bound] : {std::pair{float64, 1e-10}, std::pair{float32, 2e-5}}) {
    conformance::Case c(GetParam(), {Device::best(), dtype});
    std::string worst;
    EXPECT_LE(error_of(c, worst), bound) << name(dtype) << " " << worst;
  }
}

// One value of the output or of a gradient off by a thousandth must be seen.
TEST_P(ConformanceTest, TamperedExpectationsFail) {
  for (const char* tensor : {"output", "grad.weight", "grad.input", "logits"}) {
    conformance::Case c(GetParam(), {Device::cpu(), float64});
    if (!c.has(tensor)) continue;
    const Tensor expected = c.tensors().at(tensor);
    double* const values = expected.data<double>();
    values[expected.numel() / 2] += 1e-3;
    std::string worst;
    EXPECT_GT(error_of(c, worst), 1e-10);
    EXPECT_EQ(worst, tensor);
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, ConformanceTest, ::testing::ValuesIn(case_files()),
                         [](const auto& test) { return fs::path(test.param).stem().string(); });

}  // namespace
}  // namespace halo
