#include "cublaslt.h"

#include <halo/core/error.h>
#include <halo/core/precision.h>

#include <bit>
#include <map>
#include <mutex>

#include "../runtime/device.h"
#include "../runtime/plan_cache.h"
#include <cublasLt.h>
#include <dlfcn.h>

namespace halo::cuda {
namespace {

constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;

/// The functions used here, found by name.
struct Library {
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtMatmulDescCreate) desc_create = nullptr;
  decltype(&cublasLtMatmulDescDestroy) desc_destroy = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) layout_create = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy = nullptr;
  decltype(&cublasLtMatrixLayoutSetAttribute) layout_set = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;
  bool found = false;

  Library() {
    void* handle = nullptr;
    for (const char* file : {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"}) {
      if (handle == nullptr) handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    }
    if (handle == nullptr) return;
    found = true;
    const auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, name));
      found = found && function != nullptr;
    };
    find(create, "cublasLtCreate");
    find(desc_create, "cublasLtMatmulDescCreate");
    find(desc_destroy, "cublasLtMatmulDescDestroy");
    find(desc_set, "cublasLtMatmulDescSetAttribute");
    find(layout_create, "cublasLtMatrixLayoutCreate");
    find(layout_destroy, "cublasLtMatrixLayoutDestroy");
    find(layout_set, "cublasLtMatrixLayoutSetAttribute");
    find(preference_create, "cublasLtMatmulPreferenceCreate");
    find(preference_destroy, "cublasLtMatmulPreferenceDestroy");
    find(preference_set, "cublasLtMatmulPreferenceSetAttribute");
    find(heuristic, "cublasLtMatmulAlgoGetHeuristic");
    find(matmul, "cublasLtMatmul");
  }
};

const Library& library() {
  static const Library instance;
  return instance;
}

void check(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    fail<DeviceError>("matmul: cuBLASLt's ", what, " failed (status ", static_cast<int>(status), ")");
  }
}

/// Owns one of the library's descriptions.
template <class T>
class Owned {
 public:
  explicit Owned(cublasStatus_t (*destroy)(T)) : destroy_(destroy) {}
  ~Owned() {
    if (value_ != nullptr) destroy_(value_);
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  T* address() { return &value_; }
  operator T() const { return value_; }  // NOLINT(google-explicit-constructor)

 private:
  cublasStatus_t (*destroy_)(T);
  T value_ = nullptr;
};

struct Types {
  cudaDataType_t storage, scale;
  cublasComputeType_t compute;
};

Types types_of(DType dtype, Precision precision) {
  const auto single = precision == Precision::TF32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
  switch (dtype) {
    case DType::Float32: return {CUDA_R_32F, CUDA_R_32F, single};
    case DType::Float64: return {CUDA_R_64F, CUDA_R_64F, CUBLAS_COMPUTE_64F};
    case DType::BFloat16: return {CUDA_R_16BF, CUDA_R_32F, CUBLAS_COMPUTE_32F};
    case DType::Float16: return {CUDA_R_16F, CUDA_R_32F, CUBLAS_COMPUTE_32F};
    default: fail("matmul: expected a floating dtype, got ", name(dtype));
  }
}

/// Everything that decides which algorithm runs.
struct Key {
  int device;
  DType dtype;
  Precision precision;
  bool transpose_a, transpose_b, reads_c;
  int64_t m, n, k, lda, ldb, ldc, batch, batch_a, batch_b, batch_c;
  uint32_t align_a, align_b, align_c;
  bool operator==(const Key&) const = default;
};

struct KeyHash {
  std::size_t operator()(const Key& key) const {
    std::size_t seed = 0;
    for (const int64_t extent : {key.m, key.n, key.k, key.batch}) seed = seed * 31 + static_cast<std::size_t>(extent);
    return seed;
  }
};

/// The largest power of two up to 256 that divides the address.
uint32_t alignment(const Tensor& t) {
  return uint32_t{1} << std::countr_zero(reinterpret_cast<uintptr_t>(t.data()) | 256u);
}

/// The description of one product. The library counts columns first, so row-major C = A B is its C^T = B^T A^T.
struct Description {
  const Library& lib = library();
  Owned<cublasLtMatmulDesc_t> operation{lib.desc_destroy};
  Owned<cublasLtMatrixLayout_t> a{lib.layout_destroy}, b{lib.layout_destroy}, c{lib.layout_destroy};

  Description(const GemmProblem& p, const Types& types) {
    check(lib.desc_create(operation.address(), types.compute, types.scale), "description");
    set_operation(CUBLASLT_MATMUL_DESC_TRANSA, p.transpose_b);
    set_operation(CUBLASLT_MATMUL_DESC_TRANSB, p.transpose_a);
    lay_out(a, types, p.transpose_a ? p.k : p.m, p.transpose_a ? p.m : p.k, p.lda, p.batch, p.batch_a);
    lay_out(b, types, p.transpose_b ? p.n : p.k, p.transpose_b ? p.k : p.n, p.ldb, p.batch, p.batch_b);
    lay_out(c, types, p.m, p.n, p.ldc, p.batch, p.batch_c);
  }

 private:
  void set_operation(cublasLtMatmulDescAttributes_t which, bool transpose) {
    const cublasOperation_t value = transpose ? CUBLAS_OP_T : CUBLAS_OP_N;
    check(lib.desc_set(operation, which, &value, sizeof(value)), "transposition");
  }
  /// `rows` by `columns` as stored, row-major.
  void lay_out(Owned<cublasLtMatrixLayout_t>& layout, const Types& types, int64_t rows, int64_t columns, int64_t pitch,
               int64_t batch, int64_t distance) {
    check(lib.layout_create(layout.address(), types.storage, static_cast<uint64_t>(columns),
                            static_cast<uint64_t>(rows), std::max(pitch, columns)),
          "layout");
    const auto count = static_cast<int32_t>(batch);
    check(lib.layout_set(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof(count)), "batch");
    check(lib.layout_set(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &distance, sizeof(distance)), "batch");
  }
};

/// One handle a GPU and the algorithms chosen so far; never destroyed, as the library may be unloaded first.
class Chooser {
 public:
  cublasLtHandle_t handle(int device) {
    std::lock_guard lock(mutex_);
    auto& handle = handles_[device];
    if (handle == nullptr) check(library().create(&handle), "start");
    return handle;
  }

  /// The library's first proposal; a status other than success where it has none.
  cublasLtMatmulHeuristicResult_t choose(const Key& key, const Description& description) {
    const cublasLtHandle_t lt = handle(key.device);
    return *chosen_.get(key, [&](const Key& asked) { return ask(lt, asked, description); });
  }

 private:
  static cublasLtMatmulHeuristicResult_t ask(cublasLtHandle_t lt, const Key& key, const Description& description) {
    const Library& lib = library();
    Owned<cublasLtMatmulPreference_t> preference(lib.preference_destroy);
    check(lib.preference_create(preference.address()), "preference");
    const auto set = [&](cublasLtMatmulPreferenceAttributes_t which, const auto& value) {
      check(lib.preference_set(preference, which, &value, sizeof(value)), "preference");
    };
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes);
    // No sums in place, whose order is open.
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
        uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE});
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.align_b);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.align_a);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.align_c);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.align_c);
    cublasLtMatmulHeuristicResult_t result{};
    int found = 0;
    const cublasStatus_t status = lib.heuristic(lt, description.operation, description.b, description.a, description.c,
                                                description.c, preference, 1, &result, &found);
    if (status != CUBLAS_STATUS_SUCCESS || found == 0) result.state = CUBLAS_STATUS_NOT_SUPPORTED;
    return result;
  }

  std::mutex mutex_;  ///< guards the handles
  std::map<int, cublasLtHandle_t> handles_;
  PlanCache<Key, cublasLtMatmulHeuristicResult_t, KeyHash> chosen_;
};

Chooser& chooser() {
  static auto* instance = new Chooser;
  return *instance;
}

}  // namespace

bool cublaslt_gemm(const GemmProblem& p, const Tensor& a, const Tensor& b, const Tensor& c) {
  if (!library().found || p.batch > INT32_MAX) return false;
  const Types types = types_of(c.dtype(), precision());
  const DeviceScope scope(c.device());
  const Description description(p, types);
  const Key key{c.device().index,
                c.dtype(),
                precision(),
                p.transpose_a,
                p.transpose_b,
                p.beta != 0,
                p.m,
                p.n,
                p.k,
                p.lda,
                p.ldb,
                p.ldc,
                p.batch,
                p.batch_a,
                p.batch_b,
                p.batch_c,
                alignment(a),
                alignment(b),
                alignment(c)};
  const auto choice = chooser().choose(key, description);
  if (choice.state != CUBLAS_STATUS_SUCCESS) return false;
  const Storage workspace(choice.workspaceSize, c.device());
  const auto run = [&](auto alpha, auto beta) {
    check(library().matmul(chooser().handle(c.device().index), description.operation, &alpha, b.data(), description.b,
                           a.data(), description.a, &beta, c.data(), description.c, c.data(), description.c,
                           &choice.algo, workspace.data(), choice.workspaceSize, scope.stream()),
          "product");
  };
  if (types.scale == CUDA_R_64F) {
    run(p.alpha, p.beta);
  } else {
    run(static_cast<float>(p.alpha), static_cast<float>(p.beta));
  }
  return true;
}

}  // namespace halo::cuda
