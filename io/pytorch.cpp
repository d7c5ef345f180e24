#include <halo/core/copy.h>
#include <halo/core/error.h>
#include <halo/io/pytorch.h>

#include <algorithm>
#include <array>
#include <optional>

#include "pickle.h"
#include "zip.h"

namespace halo {
namespace {

using io::PickleValue;
using Kind = PickleValue::Kind;

/// Far above the pickle of any model, which holds no elements; its values take a hundred times as much memory.
constexpr uint64_t kMaxPickle = 1 << 24;

struct StorageName {
  const char* text;
  DType dtype;
};
constexpr std::array<StorageName, 8> kStorages{{{"torch.FloatStorage", DType::Float32},
                                                {"torch.DoubleStorage", DType::Float64},
                                                {"torch.BFloat16Storage", DType::BFloat16},
                                                {"torch.HalfStorage", DType::Float16},
                                                {"torch.LongStorage", DType::Int64},
                                                {"torch.IntStorage", DType::Int32},
                                                {"torch.ByteStorage", DType::UInt8},
                                                {"torch.BoolStorage", DType::Bool}}};

/// Turns the notes of calls in the pickle into tensors.
class TensorReader {
 public:
  TensorReader(const std::string& path, const io::ZipReader& zip, std::string folder)
      : path_(path), zip_(zip), folder_(std::move(folder)) {}

  /// The tensor that `value` stands for, undefined where it is something else.
  Tensor read(const std::string& name, const PickleValue& value) {
    name_ = name;
    if (value.is_call("torch._utils._rebuild_parameter")) return read_view(argument(value, 0, Kind::Call));
    return value.is_call("torch._utils._rebuild_tensor_v2") ? read_view(value) : Tensor();
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const { fail<FileError>(path_, ": tensor \"", name_, "\": ", why); }

  const PickleValue& item(const PickleValue& sequence, std::size_t index, Kind kind) const {
    if (sequence.kind != Kind::Sequence || sequence.items.size() <= index || sequence.items[index]->kind != kind) {
      refuse("its pickle has not the form that PyTorch writes");
    }
    return *sequence.items[index];
  }

  const PickleValue& argument(const PickleValue& call, std::size_t index, Kind kind) const {
    return item(*call.items[1], index, kind);
  }

  Shape shape_of(const PickleValue& sequence) const {
    Shape shape;
    if (sequence.items.size() > kMaxRank) refuse(concat("expected at most ", kMaxRank, " axes"));
    for (std::size_t i = 0; i < sequence.items.size(); ++i) {
      const int64_t value = item(sequence, i, Kind::Int).integer;
      if (value < 0) refuse(concat("shape and strides expected 0 or more, got ", value));
      shape.push_back(value);
    }
    return shape;
  }

  /// _rebuild_tensor_v2(storage, offset, shape, strides, ...).
  Tensor read_view(const PickleValue& call) {
    if (!call.is_call("torch._utils._rebuild_tensor_v2")) refuse("its pickle has not the form that PyTorch writes");
    const Tensor whole = read_storage(argument(call, 0, Kind::Persistent));
    const int64_t offset = argument(call, 1, Kind::Int).integer;
    const Shape shape = shape_of(argument(call, 2, Kind::Sequence));
    const Shape strides = shape_of(argument(call, 3, Kind::Sequence));
    if (shape.rank() != strides.rank() || offset < 0) refuse("shape, strides and offset do not fit each other");
    const bool empty = std::find(shape.begin(), shape.end(), 0) != shape.end();
    int64_t last = offset, numel = 1;
    for (int i = 0; i < shape.rank() && !empty; ++i) {
      int64_t reach = 0;
      if (__builtin_mul_overflow(shape[i] - 1, strides[i], &reach) || __builtin_add_overflow(last, reach, &last) ||
          __builtin_mul_overflow(numel, shape[i], &numel)) {
        refuse(concat("shape ", shape, " and strides ", strides, " pass 2^63 elements"));
      }
    }
    if (empty) return halo::empty(shape, whole.options());
    if (last >= whole.numel()) {
      refuse(concat("shape ", shape, ", strides ", strides, " and offset ", offset, " expected within the ",
                    whole.numel(), " elements of its storage"));
    }
    return Tensor(whole.storage(), whole.dtype(), shape, strides, offset);
  }

  /// The id ("storage", type, key, place, elements): a member of the archive.
  Tensor read_storage(const PickleValue& persistent) {
    const PickleValue& id = *persistent.items[0];
    if (!item(id, 0, Kind::String).is_string("storage")) refuse("its pickle has not the form that PyTorch writes");
    const std::string& type = item(id, 1, Kind::Global).text;
    const std::string& key = item(id, 2, Kind::String).text;
    const auto known = std::find_if(kStorages.begin(), kStorages.end(), [&](const auto& s) { return s.text == type; });
    if (known == kStorages.end()) refuse(concat("Halo has no type for ", type));
    Tensor& whole = storages_[key];
    if (whole.defined()) {
      if (whole.dtype() != known->dtype) refuse("its storage is also used with another type");
      return whole;
    }
    const std::string member = folder_ + "data/" + key;
    const uint64_t bytes = zip_.size(member), element = size_of(known->dtype);
    if (bytes % element != 0) refuse(concat("storage of ", bytes, " bytes expected whole elements of ", element));
    const Tensor read = empty({static_cast<int64_t>(bytes / element)}, {.dtype = known->dtype});
    zip_.read(member, read.data());
    if (known->dtype == DType::Bool) {
      const auto* values = static_cast<const uint8_t*>(read.data());
      if (std::any_of(values, values + bytes, [](uint8_t byte) { return byte > 1; })) {
        refuse("bool expected bytes 0 and 1, got another");
      }
    }
    whole = read;
    return whole;
  }

  const std::string& path_;
  const io::ZipReader& zip_;
  std::string folder_;  // of the archive, with its slash
  std::string name_;
  std::map<std::string, Tensor> storages_;  // by key
};

std::string member_text(const io::ZipReader& zip, const std::string& name) {
  std::string text(static_cast<std::size_t>(zip.size(name)), '\0');
  zip.read(name, text.data());
  return text;
}

/// The value under `key`, or null.
const PickleValue* entry(const PickleValue& dict, const char* key) {
  for (const auto& [name, value] : dict.entries) {
    if (name->is_string(key)) return value;
  }
  return nullptr;
}

}  // namespace

StateDict load_pytorch(const std::string& path, Device device) {
  const io::ZipReader zip(path);
  const std::string pickle_name = "data.pkl";
  std::optional<std::string> folder;
  for (const auto& [name, member] : zip.members()) {
    if (name.ends_with("/" + pickle_name)) folder = name.substr(0, name.size() - pickle_name.size());
  }
  if (!folder) fail<FileError>(path, ": expected a file of torch.save, no data.pkl is in it");
  if (zip.contains(*folder + "byteorder") && member_text(zip, *folder + "byteorder") != "little") {
    fail<FileError>(path, ": byteorder expected little");
  }
  if (zip.size(*folder + pickle_name) > kMaxPickle) {
    fail<FileError>(path, ": data.pkl expected at most ", kMaxPickle, " bytes, got ", zip.size(*folder + pickle_name));
  }
  const std::string bytes = member_text(zip, *folder + pickle_name);
  const io::Pickle pickle(path, bytes);
  const PickleValue* dict = &pickle.root();
  if (const PickleValue* inner = entry(*dict, "state_dict")) dict = inner;
  TensorReader reader(path, zip, *folder);
  StateDict state;
  for (const auto& [name, value] : dict->entries) {
    if (name->kind != Kind::String) continue;
    const Tensor tensor = reader.read(name->text, *value);
    if (tensor.defined()) state[name->text] = convert(tensor, tensor.dtype(), device);
  }
  if (state.empty()) fail<FileError>(path, ": expected a dictionary of tensors, found none");
  return state;
}

}  // namespace halo
