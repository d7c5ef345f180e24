#include <halo/io/dlpack.h>

#include "tests/testing.h"

namespace halo::testing {
namespace {

using namespace dlpack;

TEST(DLPack, RoundTripSharesMemoryAndKeepsStrides) {
  for (DType dtype : {float32, float64, bfloat16, float16, int64, int32, uint8, boolean}) {
    const Tensor t = randint(0, 2, {3, 5}).to(dtype);
    const Tensor view = t.transpose(0, 1).slice(0, 1, 4);
    const Tensor back = from_dlpack(to_dlpack(view));
    EXPECT_TRUE(same(back, view));
    EXPECT_EQ(back.data(), view.data());
    EXPECT_EQ(back.strides(), view.strides());
    const Tensor versioned = from_dlpack(to_dlpack_versioned(view));
    EXPECT_EQ(versioned.data(), view.data());
  }
  EXPECT_EQ(from_dlpack(to_dlpack(zeros({0, 3}))).shape(), Shape({0, 3}));
  EXPECT_EQ(from_dlpack(to_dlpack(full({}, 3))).item(), 3);
}

TEST(DLPack, MemoryLivesAsLongAsAnyHolder) {
  Tensor original = tensor({1, 2, 3});
  const auto storage = std::weak_ptr<Storage>(original.storage());
  DLManagedTensor* managed = to_dlpack(original);
  original = {};
  EXPECT_FALSE(storage.expired());
  Tensor imported = from_dlpack(managed);
  Tensor view = imported.slice(0, 1, 2);
  imported = {};
  EXPECT_FALSE(storage.expired());
  EXPECT_EQ(view.item(), 2);
  view = {};
  EXPECT_TRUE(storage.expired());
}

/// A structure of another library, and whether its deleter ran.
struct Foreign {
  std::vector<float> data{1, 2, 3, 4, 5, 6};
  std::vector<int64_t> shape{2, 3}, strides{3, 1};
  int deleted = 0;
  DLManagedTensor managed{};

  Foreign() {
    managed.dl_tensor = {.data = data.data(),
                         .device = {kCPU, 0},
                         .ndim = 2,
                         .dtype = {kFloat, 32, 1},
                         .shape = shape.data(),
                         .strides = nullptr,
                         .byte_offset = 0};
    managed.manager_ctx = this;
    managed.deleter = [](DLManagedTensor* self) { ++static_cast<Foreign*>(self->manager_ctx)->deleted; };
  }
};

TEST(DLPack, ForeignTensors) {
  Foreign foreign;
  {
    const Tensor t = from_dlpack(&foreign.managed);
    EXPECT_TRUE(same(t, tensor({1, 2, 3, 4, 5, 6}).reshape({2, 3})));
    EXPECT_EQ(foreign.deleted, 0);
  }
  EXPECT_EQ(foreign.deleted, 1);
  foreign.shape = {2, 2};
  foreign.strides = {3, 2};
  foreign.managed.dl_tensor.strides = foreign.strides.data();
  foreign.managed.dl_tensor.byte_offset = 4;
  foreign.shape = {2, 1};
  EXPECT_TRUE(same(from_dlpack(&foreign.managed), tensor({2, 5}).reshape({2, 1})));
}

TEST(DLPack, RefusalsLeaveTheTensorWithItsOwner) {
  const auto refused = [](auto change) {
    Foreign foreign;
    change(foreign, foreign.managed.dl_tensor);
    const std::string text = message_of<Error>([&] { from_dlpack(&foreign.managed); });
    EXPECT_EQ(foreign.deleted, 0);
    return text;
  };
  const auto has = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  EXPECT_TRUE(has(refused([](Foreign&, DLTensor& t) { t.dtype.lanes = 4; }), "4 lanes"));
  EXPECT_TRUE(has(refused([](Foreign&, DLTensor& t) { t.dtype.code = 5; }), "code 5"));
  EXPECT_TRUE(has(refused([](Foreign&, DLTensor& t) { t.ndim = 9; }), "ndim"));
  EXPECT_TRUE(has(refused([](Foreign&, DLTensor& t) { t.data = nullptr; }), "data"));
  EXPECT_TRUE(has(refused([](Foreign&, DLTensor& t) { t.byte_offset = 2; }), "aligned"));
  EXPECT_TRUE(has(refused([](Foreign&, DLTensor& t) { t.device.device_type = 7; }), "device_type"));
  EXPECT_TRUE(has(refused([](Foreign&, DLTensor& t) { t.device = {kCUDA, 99}; }), "device_id 99"));
  EXPECT_TRUE(has(refused([](Foreign& f, DLTensor&) { f.shape[0] = -2; }), "shape"));
  EXPECT_TRUE(has(refused([](Foreign& f, DLTensor& t) {
                    f.strides[0] = -3;
                    t.strides = f.strides.data();
                  }),
                  "strides"));
  EXPECT_TRUE(has(refused([](Foreign& f, DLTensor& t) {
                    f.strides[0] = INT64_MAX;
                    t.strides = f.strides.data();
                  }),
                  "2^63"));
  auto* versioned = to_dlpack_versioned(tensor({1}));
  versioned->flags = kReadOnly;
  EXPECT_TRUE(has(message_of([&] { from_dlpack(versioned); }), "read-only"));
  versioned->flags = 0;
  versioned->version.major = 2;
  EXPECT_TRUE(has(message_of([&] { from_dlpack(versioned); }), "version"));
  versioned->deleter(versioned);
}

}  // namespace
}  // namespace halo::testing
