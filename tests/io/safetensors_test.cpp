#include <halo/io/safetensors.h>

#include <string_view>

#include "io_testing.h"
#include "tests/testing.h"
#include <sys/stat.h>

namespace halo::testing {
namespace {

class SafetensorsTest : public FolderTest {
 protected:
  /// A file of this header and so many bytes of data.
  std::string file(const std::string& header, std::size_t data_bytes) const {
    return write("case.safetensors", little_endian(header.size(), 8) + header + std::string(data_bytes, '\0'));
  }

  /// What loading the file said; it must name the path.
  std::string refusal(const std::string& path) const {
    const std::string text = message_of<FileError>([&] { load_safetensors(path); });
    EXPECT_TRUE(text.starts_with(path)) << text;
    return text.substr(std::min(text.size(), path.size()));
  }

  void expect_refused(const std::string& path, const std::string& reason) const {
    const std::string text = refusal(path);
    EXPECT_NE(text.find(reason), std::string::npos) << "said: " << text << "\nwanted: " << reason;
  }

  std::string entry(const std::string& name, const std::string& shape, const std::string& offsets,
                    const std::string& dtype = "F32") const {
    return "\"" + name + R"(":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
  }
};

TEST_F(SafetensorsTest, EveryDtypeComesBackBitForBit) {
  StateDict tensors;
  for (DType dtype : {float32, float64, bfloat16, float16, int64, int32, uint8, boolean}) {
    tensors[std::string("of ") + name(dtype)] = randint(0, 2, {3, 5}).to(dtype);
  }
  tensors["scalar"] = full({}, 2.5);
  tensors["empty"] = zeros({0, 3});
  tensors["one"] = full({1}, -1, {.dtype = int64});
  tensors["odd \"name\" \xC3\xA9"] = tensor({NAN, INFINITY, -0.0f});
  save_safetensors(path("all"), tensors, {{"who", "a test"}, {"empty", ""}});
  const SafetensorsContent back = load_safetensors(path("all"));
  EXPECT_EQ(back.metadata, (Metadata{{"who", "a test"}, {"empty", ""}}));
  ASSERT_EQ(back.tensors.size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    ASSERT_TRUE(same(back.tensors.at(name), tensor)) << name;
    const auto bytes = [](const Tensor& t) { return std::string_view(static_cast<const char*>(t.data()), t.nbytes()); };
    EXPECT_EQ(bytes(back.tensors.at(name)), bytes(tensor)) << name;  // an empty one may have no address
  }
  EXPECT_EQ(files(), 1u);
}

TEST_F(SafetensorsTest, DataAreAlignedAndOneTensorCanBeReadAlone) {
  save_safetensors(path("f"), {{"a", ones({1}, {.dtype = boolean})}, {"b", ones({2}, {.dtype = float64})}});
  const SafetensorsReader reader(path("f"));
  EXPECT_EQ(reader.entries().at("b").begin, 0u);
  const std::string bytes = read(path("f"));
  EXPECT_EQ(static_cast<unsigned char>(bytes[0]) % 8, 0);
  EXPECT_TRUE(same(reader.load("b"), ones({2}, {.dtype = float64})));
  EXPECT_NE(message_of([&] { reader.load("c"); }).find("no tensor \"c\""), std::string::npos);
}

// Storage written instead of values: a transposed tensor came back with its rows and columns mixed, a slice with too
// few bytes, an expanded one with one row.
TEST_F(SafetensorsTest, ViewsAndTiedTensorsAreSavedByValue) {
  const Tensor a = arange(6, {.dtype = float32}).reshape({2, 3});
  const StateDict tensors{{"transposed", a.transpose(0, 1)},
                          {"slice", a.slice(0, 0, 1)},
                          {"offset", a.slice(1, 1, 3)},
                          {"expanded", a.expand({4, 2, 3})},
                          {"tied.1", a},
                          {"tied.2", a}};
  save_safetensors(path("views"), tensors);
  const SafetensorsReader reader(path("views"));
  for (const auto& [name, tensor] : tensors) {
    EXPECT_TRUE(same(reader.load(name), tensor)) << name;
    EXPECT_EQ(reader.entries().at(name).end - reader.entries().at(name).begin, tensor.nbytes()) << name;
  }
  EXPECT_EQ(reader.entries().at("transposed").end - reader.entries().at("transposed").begin, 24u);
  EXPECT_EQ(reader.entries().at("slice").end - reader.entries().at("slice").begin, 12u);
  EXPECT_EQ(reader.entries().at("expanded").end - reader.entries().at("expanded").begin, 96u);
}

TEST_F(SafetensorsTest, LengthsAndSizesThatLie) {
  expect_refused(write("f", std::string(8, '\xFF')), "header length expected at most 100000000");
  expect_refused(write("f", little_endian(100'000'001, 8) + "{}"), "header length expected at most 100000000");
  expect_refused(write("f", little_endian(0, 8)), "expected to begin with {");
  expect_refused(write("f", std::string(7, '\2')), "expected at least 8 bytes, got 7");
  expect_refused(write("f", little_endian(3, 8) + "{}"), "header length 3 expected within the file of 10 bytes");
  expect_refused(file("{" + entry("x", "[3,2]", "[0,20]") + "}", 20),
                 "tensor \"x\": shape [3, 2] of float32 expected 24");
  expect_refused(file("{" + entry("x", "[2]", "[8,0]") + "}", 8), "tensor \"x\": data_offsets expected begin <= end");
  expect_refused(file("{" + entry("x", "[2]", "[0]") + "}", 8),
                 "tensor \"x\": data_offsets expected two numbers, got 1");
  expect_refused(file("{" + entry("x", "[2]", "[]") + "}", 8),
                 "tensor \"x\": data_offsets expected two numbers, got 0");
  expect_refused(file("{" + entry("x", "[2]", "[0,4,8]") + "}", 8), "data_offsets expected two numbers, got more");
  expect_refused(file("{" + entry("x", "[2]", "[0,-4]") + "}", 8), "tensor \"x\": data_offsets expected numbers of 0");
  expect_refused(file("{" + entry("x", "[250]", "[0,1000]") + "}", 8), "tensor \"x\": data_offsets [0, 1000] expected");
  expect_refused(file("{" + entry("x", "[4611686018427387904,4]", "[0,0]") + "}", 0), "passes 2^63 bytes");
  expect_refused(file("{" + entry("x", "[18446744073709551615]", "[0,0]") + "}", 0), "extents below 2^63");
  expect_refused(file("{" + entry("x", "[99999999999999999999]", "[0,0]") + "}", 0), "integers below 2^64");
  expect_refused(file("{" + entry("x", "[1.0]", "[0,4]") + "}", 4), "shape expected integers");
  expect_refused(file("{" + entry("x", "[1,1,1,1,1,1,1,1,1]", "[0,4]") + "}", 4), "shape expected at most 8 axes");
  expect_refused(file("{" + entry("x", "[2]", "[0,8]") + "}", 9), "expected 8 bytes of data (the end of the last");
  expect_refused(file("{" + entry("x", "[2]", "[0,8]") + "}", 7), "within the 7 bytes of data");
  expect_refused(path("absent"), "cannot open");
  expect_refused(std::filesystem::temp_directory_path().string(), "expected a regular file");
}

TEST_F(SafetensorsTest, EmptyFilesAndAnyOrderLoad) {
  EXPECT_TRUE(load_safetensors(write("f", little_endian(2, 8) + "{}")).tensors.empty());
  EXPECT_TRUE(load_safetensors(file("{}     ", 0)).tensors.empty());
  const auto both = load_safetensors(file(
      "{" + entry("b", "[1]", "[8,12]") + "," + entry("a", "[2]", "[0,8]") + "," + entry("e", "[0]", "[8,8]") + "}",
      12));
  EXPECT_EQ(both.tensors.size(), 3u);
  EXPECT_EQ(both.tensors.at("e").shape(), Shape({0}));
}

TEST_F(SafetensorsTest, OverlapsHolesAndDuplicates) {
  const auto two = [&](const std::string& a, const std::string& b, const std::string& name = "b") {
    return "{" + entry("a", "[2]", a) + "," + entry(name, "[2]", b) + "}";
  };
  expect_refused(file(two("[0,8]", "[4,12]"), 12), "\"a\" and \"b\" overlap");
  expect_refused(file(two("[0,8]", "[12,20]"), 20), "hole before tensor \"b\": bytes 8 to 12");
  expect_refused(file(two("[4,12]", "[12,20]"), 20), "hole before tensor \"a\": bytes 0 to 4");
  expect_refused(file(two("[0,8]", "[8,16]", "a"), 16), "duplicate key \"a\"");
  expect_refused(file(two("[0,8]", "[0,8]"), 8), "\"a\" and \"b\" overlap");
}

TEST_F(SafetensorsTest, HeadersThatAreNotTheForm) {
  expect_refused(file(R"({"__metadata__":{"n":1}})", 0), "__metadata__: \"n\" expected a string, got a number");
  expect_refused(file(R"({"__metadata__":{"n":-1}})", 0), "__metadata__: \"n\" expected a string, got a number");
  expect_refused(file(R"({"__metadata__":{"n":{}}})", 0), "__metadata__: expected no further object");
  expect_refused(file(R"({"__metadata__":{"n":"1","n":"2"}})", 0), "__metadata__: duplicate key \"n\"");
  expect_refused(file(R"({"__metadata__":[]})", 0), "__metadata__: expected an object, got an array");
  expect_refused(file("{\"\xFF\":{}}", 0), "not JSON in UTF-8");
  expect_refused(file(R"({"x":3})", 0), "tensor \"x\": expected an object, got a number");
  expect_refused(file(R"({"x":null})", 0), "tensor \"x\": expected an object, got null");
  expect_refused(file(R"({"x":{}})", 0), "tensor \"x\": field dtype is missing");
  expect_refused(file(R"({"x":{"dtype":"F32","data_offsets":[0,0]}})", 0), "field shape is missing");
  expect_refused(file(R"({"x":{"dtype":"F32","shape":[0],"shape":[1]}})", 0), "tensor \"x\": duplicate key \"shape\"");
  expect_refused(file(R"({"x":{"dtype":"F32","form":[0]}})", 0), "tensor \"x\": expected the fields dtype");
  expect_refused(file("{" + entry("x", "[0]", "[0,0]", "F8_E4M3") + "}", 0), "got \"F8_E4M3\"");
  expect_refused(file("{" + entry("x", "[[1]]", "[0,4]") + "}", 4), "tensor \"x\": shape expected");
  expect_refused(file("{" + entry("x", "\"1\"", "[0,4]") + "}", 4), "tensor \"x\": shape expected");
  expect_refused(file("[]", 0), "expected to begin with {");
  expect_refused(file("{}{}", 0), "not JSON");
  expect_refused(file("{", 0), "not JSON");
  std::string deep = "{\"x\":";
  for (int i = 0; i < 100'000; ++i) deep += "{\"x\":";
  expect_refused(file(deep, 0), "tensor \"x\"");
  expect_refused(file("{\"x\":" + std::string(100'000, '['), 0), "tensor \"x\"");
}

TEST_F(SafetensorsTest, BoolsHoldZeroOrOne) {
  const std::string header = "{" + entry("x", "[1]", "[0,1]", "BOOL") + "}";
  expect_refused(write("f", little_endian(header.size(), 8) + header + "\2"), "BOOL expected bytes 0 and 1");
}

TEST_F(SafetensorsTest, WritingFailsWithoutTouchingWhatWasThere) {
  save_safetensors(path("f"), {{"x", tensor({1})}});
  EXPECT_NE(message_of([&] { save_safetensors(path("f"), {{"y", Tensor()}}); }).find("\"y\""), std::string::npos);
  EXPECT_NE(message_of([&] { save_safetensors(path("f"), {{"\xFF", tensor({1})}}); }).find("UTF-8"), std::string::npos);
  EXPECT_NE(message_of([&] {
              save_safetensors(path("f"), {{"__metadata__", tensor({1})}});
            }).find("__metadata__"),
            std::string::npos);
  message_of<FileError>([&] { save_safetensors(path("no/such/folder"), {}); });
  std::filesystem::create_directory(path("folder"));
  message_of<FileError>([&] { save_safetensors(path("folder"), {{"x", tensor({1})}}); });
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  EXPECT_NE(message_of<FileError>([&] { save_safetensors(path("pipe"), {}); }).find("regular file"), std::string::npos);
  EXPECT_TRUE(std::filesystem::is_fifo(path("pipe")));
  EXPECT_TRUE(same(load_safetensors(path("f")).tensors.at("x"), tensor({1})));
  EXPECT_EQ(files(), 3u);
}

}  // namespace
}  // namespace halo::testing
