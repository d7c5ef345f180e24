#include <halo/core/error.h>
#include <halo/io/checkpoint.h>
#include <halo/io/safetensors.h>

#include <charconv>
#include <string_view>

namespace halo {
namespace {

constexpr std::string_view kModel = "model.", kOptimizer = "optimizer.", kPrefix = "halo.checkpoint.";

std::string key(const char* field) { return std::string(kPrefix) + field; }

void add_with_prefix(StateDict& all, std::string_view prefix, const StateDict& part) {
  for (const auto& [name, tensor] : part) all.emplace(std::string(prefix) + name, tensor);
}

/// Takes one of our numbers out of the metadata.
template <class T>
T take_number(const std::string& path, Metadata& metadata, const char* field) {
  const auto entry = metadata.extract(key(field));
  if (entry.empty()) fail<FileError>(path, ": expected a checkpoint, metadata ", key(field), " is missing");
  const std::string& text = entry.mapped();
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    fail<FileError>(path, ": metadata ", key(field), " expected an integer, got \"", text, "\"");
  }
  return value;
}

}  // namespace

void save_checkpoint(const std::string& path, const Checkpoint& checkpoint) {
  StateDict tensors;
  add_with_prefix(tensors, kModel, checkpoint.model);
  add_with_prefix(tensors, kOptimizer, checkpoint.optimizer);
  Metadata metadata = checkpoint.metadata;
  for (const auto& [name, text] : metadata) {
    if (name.starts_with(kPrefix)) fail("save_checkpoint: metadata expected no name beginning with ", kPrefix);
  }
  metadata[key("step")] = std::to_string(checkpoint.step);
  metadata[key("seed")] = std::to_string(checkpoint.generator.seed);
  metadata[key("offset")] = std::to_string(checkpoint.generator.offset);
  save_safetensors(path, tensors, metadata);
}

Checkpoint load_checkpoint(const std::string& path, Device device) {
  SafetensorsContent content = load_safetensors(path, device);
  Checkpoint checkpoint;
  checkpoint.step = take_number<int64_t>(path, content.metadata, "step");
  checkpoint.generator.seed = take_number<uint64_t>(path, content.metadata, "seed");
  checkpoint.generator.offset = take_number<uint64_t>(path, content.metadata, "offset");
  checkpoint.metadata = std::move(content.metadata);
  for (const auto& [name, tensor] : content.tensors) {
    if (name.starts_with(kModel)) {
      checkpoint.model.emplace(name.substr(kModel.size()), tensor);
    } else if (name.starts_with(kOptimizer)) {
      checkpoint.optimizer.emplace(name.substr(kOptimizer.size()), tensor);
    } else {
      fail<FileError>(path, ": tensor \"", name, "\" expected to begin with model. or optimizer.");
    }
  }
  return checkpoint;
}

}  // namespace halo
