// Field cases of files: what lies, what overlaps, what is not dense, and what is written half.
#include <csignal>

#include "field_testing.h"
#include "tests/io/io_testing.h"
#include <sys/resource.h>
#include <sys/wait.h>

namespace halo {
namespace {

using namespace testing;

class FieldFiles : public FolderTest {
 protected:
  /// A safetensors file of this header and so many data bytes.
  std::string safetensors(const std::string& header, std::size_t data_bytes) const {
    return write("f", little_endian(header.size(), 8) + header + std::string(data_bytes, '\0'));
  }
  std::string refusal(const std::string& file) const {
    return message_of<FileError>([&] { load_safetensors(file); });
  }
  std::string npy(const std::string& dictionary, const std::string& data, int version = 1) const {
    std::string head("\x93NUMPY");
    head += static_cast<char>(version);
    head += '\0';
    return write("f", head + little_endian(dictionary.size(), version == 1 ? 2 : 4) + dictionary + data);
  }
  static std::string floats(const std::vector<float>& values) {
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
  }
};

/// Memory that a process may take, for a scope: a reader that believes a lying length fails here.
class MemoryLimit {
 public:
  explicit MemoryLimit(rlim_t bytes) {
    getrlimit(RLIMIT_AS, &previous_);
    rlimit limit = previous_;
    limit.rlim_cur = bytes;
    setrlimit(RLIMIT_AS, &limit);
  }
  ~MemoryLimit() { setrlimit(RLIMIT_AS, &previous_); }
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;

 private:
  rlimit previous_{};
};

// Case 70. A header length near 2^64 wrapped the allocation; a buffer sized from the shape was filled by the offsets.
TEST_F(FieldFiles, SafetensorsLengthsThatLie) {
  for (uint64_t length : {~uint64_t{0}, uint64_t{0}, uint64_t{100000001}}) {
    EXPECT_TRUE(mentions(refusal(write("f", little_endian(length, 8) + "{}")), {"header"})) << length;
  }
  EXPECT_TRUE(mentions(refusal(write("f", "1234567")), {"8 bytes", "got 7"}));
  EXPECT_TRUE(load_safetensors(write("f", little_endian(2, 8) + "{}")).tensors.empty());
  const auto with = [](const std::string& shape, const std::string& offsets) {
    return R"({"a":{"dtype":"F32","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
  };
  for (const auto& [shape, offsets, bytes] :
       std::vector<std::tuple<std::string, std::string, std::size_t>>{{"[3,2]", "[0,20]", 20},
                                                                      {"[2]", "[8,0]", 8},
                                                                      {"[2]", "[0]", 8},
                                                                      {"[2]", "[]", 8},
                                                                      {"[2]", "[0,-4]", 8},
                                                                      {"[2]", "[0,1008]", 8},
                                                                      {"[2]", "[0,18446744073709551615]", 8},
                                                                      {"[4611686018427387904,4]", "[0,0]", 0},
                                                                      {"[-1]", "[0,4]", 4},
                                                                      {"[1.5]", "[0,4]", 4}}) {
    EXPECT_TRUE(mentions(refusal(safetensors(with(shape, offsets), bytes)), {"tensor \"a\""})) << shape << offsets;
  }
  EXPECT_TRUE(mentions(refusal(safetensors(with("[2]", "[0,8]"), 9)), {"8 bytes", "got 9"}));
}

// Case 71. Tensors that share bytes, holes, and two equal keys of which a JSON reader keeps the last.
TEST_F(FieldFiles, SafetensorsOverlapHolesAndDuplicates) {
  const auto entry = [](const std::string& name, int begin, int end) {
    return concat("\"", name, "\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[", begin, ",", end, "]}");
  };
  const auto two = [](const std::string& a, const std::string& b) { return "{" + a + "," + b + "}"; };
  EXPECT_TRUE(mentions(refusal(safetensors(two(entry("a", 0, 8), entry("b", 4, 12)), 12)), {"overlap"}));
  EXPECT_TRUE(mentions(refusal(safetensors(two(entry("a", 0, 8), entry("b", 12, 20)), 20)), {"hole"}));
  EXPECT_TRUE(mentions(refusal(safetensors(two(entry("a", 0, 8), entry("a", 8, 16)), 16)), {"duplicate", "\"a\""}));
  EXPECT_TRUE(mentions(refusal(safetensors(two(entry("a", 0, 8), entry("b", 0, 8)), 8)), {"overlap"}));
  EXPECT_TRUE(mentions(refusal(safetensors(R"({"__metadata__":{"n":3}})", 0)), {"__metadata__", "string"}));
  EXPECT_TRUE(mentions(refusal(safetensors("{\"\xFF\":{}}", 0)), {"UTF-8"}));
  refusal(safetensors(R"({"a":)" + std::string(100000, '['), 0));
  refusal(safetensors(std::string(100000, '{'), 0));
  EXPECT_EQ(load_safetensors(safetensors(two(entry("b", 8, 16), entry("a", 0, 8)), 16)).tensors.size(), 2u);
}

// Case 73. A view saved with the bytes of its storage, and tied weights stored twice or refused.
TEST_F(FieldFiles, ViewsAndTiedWeights) {
  const Tensor a = arange(6, {.dtype = float32}).reshape({2, 3});
  for (const Tensor& t : {a.transpose(0, 1), a.slice(0, 0, 1), a.expand({4, 2, 3})}) {
    save_safetensors(path("v"), {{"t", t}});
    EXPECT_TRUE(same(load_safetensors(path("v")).tensors.at("t"), t));
    const std::string bytes = read(path("v"));
    EXPECT_EQ(bytes.size(), 8 + static_cast<unsigned char>(bytes[0]) + t.nbytes());
    save_npy(path("n"), t);
    EXPECT_TRUE(same(load_npy(path("n")), t));
  }
  struct Tied : nn::Module {
    nn::Embedding& embedding = register_module("embedding", nn::Embedding(5, 3));
    nn::Linear& head = register_module("head", nn::Linear(3, 5, false));
    Tied() { head.weight = embedding.weight; }
  };
  Tied net, other;
  save_safetensors(path("t"), net.state_dict());
  const auto loaded = load_safetensors(path("t")).tensors;
  EXPECT_TRUE(same(loaded.at("embedding.weight"), loaded.at("head.weight")));
  other.load_state_dict(loaded);
  EXPECT_TRUE(other.head.weight.is_same(other.embedding.weight));
  EXPECT_TRUE(same(other.head.weight.detach(), net.head.weight.detach()));
}

// Case 74. An order misread by one character, a version-2 header at the wrong place, a 16-bit length read as signed.
TEST_F(FieldFiles, NpyForms) {
  const Tensor expected = from_vector<float>({1, 2, 3, 4, 5, 6}, {2, 3});
  const std::string rows = floats({1, 2, 3, 4, 5, 6});
  const std::string c = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";
  for (int version : {1, 2, 3}) EXPECT_TRUE(same(load_npy(npy(c, rows, version)), expected)) << version;
  EXPECT_TRUE(
      same(load_npy(npy("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3), }", floats({1, 4, 2, 5, 3, 6}))),
           expected));
  EXPECT_TRUE(same(load_npy(npy("{\"shape\"  :  (2,3)  ,\"fortran_order\":False,\"descr\":\"<f4\"}", rows)), expected));
  std::string swapped = rows;
  for (std::size_t i = 0; i < swapped.size(); i += 4)
    std::reverse(swapped.begin() + static_cast<long>(i), swapped.begin() + static_cast<long>(i) + 4);
  EXPECT_TRUE(same(load_npy(npy("{'descr': '>f4', 'fortran_order': False, 'shape': (2, 3), }", swapped)), expected));
  const auto shaped = [&](const std::string& shape, std::size_t count) {
    const std::string text = "{'descr': '<f4', 'fortran_order': False, 'shape': " + shape + ", }";
    return load_npy(npy(text, std::string(4 * count, '\0'))).shape();
  };
  EXPECT_EQ(shaped("()", 1), Shape());
  EXPECT_EQ(shaped("(3,)", 3), Shape({3}));
  EXPECT_EQ(shaped("(0, 3)", 0), Shape({0, 3}));
  const auto refuse = [&](const std::string& file) { return message_of<FileError>([&] { load_npy(file); }); };
  EXPECT_TRUE(mentions(refuse(write("f", std::string("\x93NUMPY\x01\x00\xF8\xFF", 10))), {"header length"}));
  EXPECT_TRUE(mentions(refuse(npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", "x")), {"descr", "|O"}));
  EXPECT_TRUE(
      mentions(refuse(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776, 1099511627776), }", rows)),
               {"shape"}));
}

// The kind behind case 70, in every reader: a small file that asks for much memory. The limit would refuse the memory.
TEST_F(FieldFiles, SmallFilesCannotAskForMuchMemory) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer reserves more address space than the limit";
#endif
  parallel_for(64, 1, [](int64_t, int64_t) {});  // threads have their stacks before the limit
  const std::string idx = write("idx", std::string("\0\0\x08\x03\0\0\xFF\xFF\0\0\x0F\xFF\0\0\0\xFF", 16));
  const std::string two_bit = write("2bit", "HALO2BIT" + little_endian(uint64_t{1} << 36, 8));
  std::string png("\x89PNG\r\n\x1A\n\0\0\0\rIHDR\0\0\x3F\xFF\0\0\x3F\xFF\x08\x02\0\0\0", 29);
  png += std::string("\x51\x5B\x2F\xD6", 4);
  const std::string image = write("png", png);
  rlimit now{};
  getrlimit(RLIMIT_AS, &now);
  std::ifstream statm("/proc/self/statm");
  rlim_t pages = 0;
  statm >> pages;
  const MemoryLimit limit(pages * 4096 + (rlim_t{200} << 20));
  EXPECT_THROW(data::read_idx(idx), FileError);
  EXPECT_THROW(data::read_two_bit(two_bit), FileError);
  EXPECT_THROW(data::read_image(image), FileError);
}

// A download that broke off: zlib ends a compressed file that was cut as if it were whole, and the JPEG decoder paints
// what is missing grey. Every beginning of a whole file must be refused, or give all that is in the whole.
TEST_F(FieldFiles, FilesThatWereCutOff) {
  using Read = std::function<Tensor(const std::string&)>;
  const auto text = [](const std::string& sequence) {
    return from_vector(std::vector<uint8_t>(sequence.begin(), sequence.end()), {static_cast<int64_t>(sequence.size())});
  };
  const std::vector<std::pair<std::string, Read>> cases{
      {"safetensors/two", [](const std::string& f) { return load_safetensors(f).tensors.at("a"); }},
      {"npy/fortran_big", [](const std::string& f) { return load_npy(f); }},
      {"pytorch/tensors", [](const std::string& f) { return load_pytorch(f).at("w"); }},
      {"idx/images", [](const std::string& f) { return data::read_idx(f); }},
      {"idx/gzipped", [](const std::string& f) { return data::read_idx(f); }},
      {"cifar/gzipped", [](const std::string& f) { return data::read_cifar10({f}).images; }},
      {"fasta/gzipped", [&](const std::string& f) { return text(data::read_fasta(f).back().sequence); }},
      {"two_bit/seven", [&](const std::string& f) { return text(data::read_two_bit(f)); }},
      {"image/rgb.png", [](const std::string& f) { return data::read_image(f); }},
      {"image/interlaced.png", [](const std::string& f) { return data::read_image(f); }},
      {"image/baseline.jpg", [](const std::string& f) { return data::read_image(f); }},
      {"image/progressive.jpg", [](const std::string& f) { return data::read_image(f); }}};
  for (const auto& [name, load] : cases) {
    const std::string whole = read(std::string(HALO_CORPUS "/") + name);
    const Tensor expected = load(write("whole", whole));
    for (std::size_t bytes = 1; bytes < whole.size(); ++bytes) {
      try {
        EXPECT_TRUE(same(load(write("part", whole.substr(0, bytes))), expected)) << name << " cut at " << bytes;
      } catch (const FileError& error) {
        EXPECT_GT(std::string(error.what()).size(), 10u);
      }
    }
  }
}

// What the fuzzers start from, and what they found: each file is read, or refused with a reason. Nothing else.
TEST_F(FieldFiles, TheWholeCorpusIsReadOrRefused) {
  using Read = std::function<void(const std::string&)>;
  const std::map<std::string, Read> readers{
      {"safetensors", [](const std::string& f) { load_safetensors(f); }},
      {"npy", [](const std::string& f) { load_npy(f); }},
      {"pytorch", [](const std::string& f) { load_pytorch(f); }},
      {"pickle",
       [this](const std::string& f) {
         load_pytorch(write("p", zip({{"a/data.pkl", read(f)}, {"a/data/0", std::string(24, 'x')}})));
       }},
      {"idx", [](const std::string& f) { data::read_idx(f); }},
      {"cifar", [](const std::string& f) { data::read_cifar10({f}); }},
      {"image", [](const std::string& f) { data::read_image(f); }},
      {"fasta", [](const std::string& f) { data::read_fasta(f); }},
      {"two_bit", [](const std::string& f) { data::read_two_bit(f); }}};
  std::size_t read_well = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(HALO_CORPUS)) {
    if (!entry.is_regular_file()) continue;
    try {
      readers.at(entry.path().parent_path().filename().string())(entry.path().string());
      ++read_well;
    } catch (const FileError& error) {
      EXPECT_GT(std::string(error.what()).size(), 10u) << entry.path();
    }
  }
  EXPECT_GE(read_well, 20u);
}

// A writer that is killed, or finds the disk full, leaves the old file whole and no half of a new one under its name.
TEST_F(FieldFiles, NothingIsWrittenHalf) {
  const Tensor old_value = tensor({1, 2, 3}), image = zeros({3, 64, 64}, {.dtype = uint8});
  save_safetensors(path("s"), {{"x", old_value}});
  save_npy(path("n"), old_value);
  data::write_png(path("p"), image);
  data::write_two_bit(path("b"), "ACGT");
  const std::vector<std::string> names{"s", "n", "p", "b"};
  std::vector<std::string> before;
  for (const std::string& name : names) before.push_back(read(path(name)));
  const Tensor noise = randint(0, 256, {3, 256, 256}).to(uint8);
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit previous{};
  getrlimit(RLIMIT_FSIZE, &previous);
  rlimit small = previous;
  small.rlim_cur = 4096;
  setrlimit(RLIMIT_FSIZE, &small);  // as on a disk that is full
  EXPECT_THROW(save_safetensors(path("s"), {{"x", randn({10000})}}), FileError);
  EXPECT_THROW(save_npy(path("n"), randn({10000})), FileError);
  EXPECT_THROW(data::write_png(path("p"), noise), FileError);
  EXPECT_THROW(data::write_two_bit(path("b"), std::string(100000, 'C')), FileError);
  setrlimit(RLIMIT_FSIZE, &previous);
  std::signal(SIGXFSZ, SIG_DFL);
  for (std::size_t i = 0; i < names.size(); ++i) EXPECT_EQ(read(path(names[i])), before[i]) << names[i];
  EXPECT_EQ(files(), names.size());
}

// A training killed at any moment goes on from the last whole checkpoint.
TEST_F(FieldFiles, CheckpointsSurviveAKill) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer does not follow a process with threads into its child";
#endif
  const std::string file = path("checkpoint");
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {  // no thread of the pool lives here: the arrays are small, and filled on this thread
    for (int64_t step = 1;; ++step) {
      save_checkpoint(
          file,
          {.model = {{"w", from_vector(std::vector<float>(50000, static_cast<float>(step)), {50000})}}, .step = step});
    }
  }
  for (int wait = 0; wait < 20000 && !std::filesystem::exists(file); ++wait) ::usleep(1000);
  ::usleep(30000);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  const Checkpoint last = load_checkpoint(file);
  EXPECT_GE(last.step, 1);
  EXPECT_TRUE(all_equal(last.model.at("w"), static_cast<double>(last.step)));
}

}  // namespace
}  // namespace halo
