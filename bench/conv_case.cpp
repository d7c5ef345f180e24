#include "conv_case.h"

#include <halo/core/error.h>

#include <algorithm>
#include <fstream>

#include <nlohmann/json.hpp>

namespace halo::bench {

ConvProblem ConvCase::problem() const {
  ConvOptions options{.stride = stride,
                      .padding = padding,
                      .padding_after = {},
                      .dilation = dilation,
                      .output_padding = {},
                      .groups = groups};
  std::vector<int64_t> x{n, in_channels};
  x.insert(x.end(), input.begin(), input.end());
  std::vector<int64_t> w =
      transposed ? std::vector{in_channels, out_channels / groups} : std::vector{out_channels, in_channels / groups};
  w.insert(w.end(), kernel.begin(), kernel.end());
  if (!transposed) return ConvProblem::conv("bench", x, w, options);
  options.output_padding = output_padding;
  return ConvProblem::transposed("bench", x, w, options);
}

ConvPass ConvCase::pass_of_problem(ConvPass pass) const {
  if (!transposed || pass == ConvPass::BackwardWeight) return pass;
  return pass == ConvPass::Forward ? ConvPass::BackwardInput : ConvPass::Forward;
}

ConvCase ConvCase::jittered() const {
  ConvCase result = *this;
  result.id += "~";
  result.n = n > 2 ? n - 1 : n + 1;
  const bool depthwise = groups == in_channels;
  if (depthwise) result.groups = groups - 1;
  const int64_t multiplier = out_channels / groups;
  result.in_channels = depthwise ? result.groups : in_channels + (in_channels > 8 ? -groups : groups);
  result.out_channels = depthwise ? result.groups * multiplier : out_channels + (out_channels > 8 ? -groups : groups);
  for (std::size_t axis = 0; axis < input.size(); ++axis) {
    const auto shift = static_cast<int64_t>(axis);
    result.input[axis] = input[axis] > 8 ? input[axis] - 3 + shift : input[axis] + 1;
    result.kernel[axis] = kernel[axis] > 4 ? kernel[axis] - 1 : kernel[axis] + (axis % 2 == 0 ? 0 : 1);
  }
  return result;
}

ConvCase ConvCase::in_form(const std::string& form) const {
  ConvCase result = *this;
  if (form == "odd_width") {
    --result.input.back();
  } else if (form == "odd") {
    for (int64_t& extent : result.input) extent -= extent % 2 == 0 ? 1 : 0;
  } else if (form == "slice") {
    result.offset = 1;
  } else if (form != "listed") {
    fail("in_form: no form of a problem is called ", form);
  }
  return result;
}

std::vector<ConvCase> read_cases(const std::string& path, const std::vector<std::string>& only) {
  std::ifstream file(path);
  if (!file) fail<FileError>("read_cases: cannot open ", path);
  const auto json = nlohmann::json::parse(file);
  std::vector<ConvCase> cases;
  for (const auto& p : json.at("problems")) {
    ConvCase c;
    c.id = p.at("id").get<std::string>();
    const bool wanted = only.empty() || std::any_of(only.begin(), only.end(), [&](const std::string& id) {
                          return c.id == id || c.id.substr(0, c.id.find('_')) == id;
                        });
    if (!wanted) continue;
    c.transposed = p.at("kind") == "transposed";
    p.at("n").get_to(c.n);
    p.at("in_channels").get_to(c.in_channels);
    p.at("out_channels").get_to(c.out_channels);
    p.at("groups").get_to(c.groups);
    p.at("input").get_to(c.input);
    p.at("kernel").get_to(c.kernel);
    p.at("stride").get_to(c.stride);
    p.at("padding").get_to(c.padding);
    p.at("dilation").get_to(c.dilation);
    p.at("output_padding").get_to(c.output_padding);
    cases.push_back(std::move(c));
  }
  return cases;
}

}  // namespace halo::bench
