// halo_bench_matmul: float32-accurate products on tensor cores against cuBLASLt's float32, in one run.
//
// halo_bench_matmul [OUT.json]: for each layer its forward and both gradients: milliseconds (medians), TFLOP/s, the
// ratio, and both errors against float64; then batches, and operands that begin and lie at no multiple of 16 bytes.
#include <halo/cuda/matmul/cublaslt.h>
#include <halo/cuda/matmul/split_gemm.h>
#include <halo/halo.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "wall_time.h"
#include <nlohmann/json.hpp>

namespace halo::bench {
namespace {

/// Relative Frobenius error.
double error(const Tensor& got, const Tensor& wide) {
  const Tensor difference = got.to(float64) - wide;
  return std::sqrt(sum(difference * difference).item() / sum(wide * wide).item());
}

struct Layer {
  const char* name;
  int64_t rows, in, out;
};

/// C [m, n] = op(A) op(B) with k summed, for each of a batch; dense operands.
nlohmann::json measure(const std::string& name, const char* pass, bool transpose_a, bool transpose_b, int64_t m,
                       int64_t n, int64_t k, int64_t batch = 1) {
  const Device gpu = Device::cuda();
  const TensorOptions options{.device = gpu};
  const Tensor a = randn(transpose_a ? Shape{batch, k, m} : Shape{batch, m, k}, options);
  const Tensor b = randn(transpose_b ? Shape{batch, n, k} : Shape{batch, k, n}, options);
  const GemmProblem problem{.transpose_a = transpose_a,
                            .transpose_b = transpose_b,
                            .m = m,
                            .n = n,
                            .k = k,
                            .lda = a.size(2),
                            .ldb = b.size(2),
                            .ldc = n,
                            .batch = batch,
                            .batch_a = m * k,
                            .batch_b = n * k,
                            .batch_c = m * n};
  const Tensor c = empty({batch, m, n}, options), d = empty({batch, m, n}, options);
  cuda::split_gemm(problem, a, b, c, true);
  cuda::cublaslt_gemm(problem, a, b, d);
  const Tensor wide = matmul(transpose_a ? a.to(float64).transpose(1, 2) : a.to(float64),
                             transpose_b ? b.to(float64).transpose(1, 2) : b.to(float64));
  const double halo_error = error(c, wide), other_error = error(d, wide);
  const double ours = median_ms(gpu, 5, 1, [&] { cuda::split_gemm(problem, a, b, c, true); });
  const double theirs = median_ms(gpu, 5, 1, [&] { cuda::cublaslt_gemm(problem, a, b, d); });
  const double gflop = 2e-9 * static_cast<double>(batch * m) * static_cast<double>(n) * static_cast<double>(k);
  std::printf("%-9s %-16s %7.4f ms %6.1f TFLOP/s   cuBLASLt %7.4f ms   ratio %.2f   error %.2e (%.2e)\n", name.c_str(),
              pass, ours, gflop / ours, theirs, theirs / ours, halo_error, other_error);
  return {{"layer", name},         {"pass", pass},        {"halo_ms", ours},
          {"cublaslt_ms", theirs}, {"error", halo_error}, {"cublaslt_error", other_error}};
}

}  // namespace
}  // namespace halo::bench

int main(int argc, char** argv) {
  using halo::bench::measure;
  const halo::bench::Layer layers[] = {{"4096", 4096, 4096, 4096},     {"fc6", 256, 9216, 4096},
                                       {"fc7", 256, 4096, 4096},       {"in_proj", 131072, 256, 768},
                                       {"out_proj", 131072, 256, 256}, {"fc1", 131072, 256, 1024},
                                       {"fc2", 131072, 1024, 256}};
  nlohmann::json rows = nlohmann::json::array();
  for (const auto& l : layers) {
    rows.push_back(measure(l.name, "forward", false, true, l.rows, l.out, l.in));
    rows.push_back(measure(l.name, "backward_input", false, false, l.rows, l.in, l.out));
    rows.push_back(measure(l.name, "backward_weight", true, false, l.out, l.in, l.rows));
  }
  rows.push_back(measure("batch", "16 x 512^3", false, true, 512, 512, 512, 16));
  rows.push_back(measure("batch", "8 x 2048^3", false, false, 2048, 2048, 2048, 8));
  rows.push_back(measure("unaligned", "4097^3", false, true, 4097, 4097, 4097));
  rows.push_back(measure("unaligned", "rows of 255", false, true, 131072, 255, 255));
  rows.push_back(measure("unaligned", "depth of 131071", true, false, 255, 255, 131071));
  if (argc > 1) std::ofstream(argv[1]) << nlohmann::json{{"rows", rows}}.dump(1) << '\n';
}
