// Classifies the images named on the command line with a model that alexnet_train left.
//
//   alexnet_classify runs/alexnet/model.safetensors shoe.png bag.jpg
#include <halo/data/transform.h>
#include <halo/halo.h>

#include <cstdio>

#include "examples/common/program.h"
#include "model.h"
#include <CLI/CLI.hpp>

namespace {

using namespace halo;

std::string class_name(const Metadata& metadata, int64_t index) {
  const auto found = metadata.find("class." + std::to_string(index));
  return found == metadata.end() ? "class " + std::to_string(index) : found->second;
}

/// A picture as the net was trained on: its size, and grey where the net has one channel.
Tensor read(const std::string& path, const example::ClassifierSpec& spec) {
  Tensor image = data::read_image(path).unsqueeze(0);
  if (spec.channels == 1) image = mean(image.to(float32), {1}, true).to(uint8);
  return example::prepare(data::resize(image, spec.size, spec.size), spec.channels);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Classifies images", "alexnet_classify"};
  std::string model, device_name;
  std::vector<std::string> paths;
  int64_t top = 3;
  app.add_option("model", model, "model.safetensors of a training")->required()->check(CLI::ExistingFile);
  app.add_option("images", paths, "PNG or JPEG files")->required();
  example::add_count(app, "--top", top, "classes shown an image");
  example::add_device(app, device_name);
  return example::run_program(app, argc, argv, [&] {
    const NoGradGuard no_grad;
    const Device device = example::device_of(device_name);
    const SafetensorsContent file = load_safetensors(model);
    const auto spec = example::ClassifierSpec::from(file.metadata);
    example::Classifier net(spec);
    net.load_state_dict(file.tensors);
    net.to(device);
    net.eval();
    int failures = 0;
    for (const std::string& path : paths) {
      try {
        const auto best = topk(softmax(net(read(path, spec).to(device)), 1), std::min(top, spec.classes), 1);
        const auto shares = best.values.to_vector<double>();
        const auto classes = best.indices.to_vector<int64_t>();
        std::printf("%s:", path.c_str());
        for (std::size_t i = 0; i < classes.size(); ++i) {
          std::printf("%s %s %.1f %%", i > 0 ? "," : "", class_name(file.metadata, classes[i]).c_str(),
                      100 * shares[i]);
        }
        std::printf("\n");
      } catch (const FileError& e) {
        std::fprintf(stderr, "alexnet_classify: %s\n", e.what());
        ++failures;
      }
    }
    return failures == 0 ? 0 : 1;
  });
}
