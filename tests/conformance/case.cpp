#include "tests/conformance/case.h"

#include <halo/autograd/arithmetic.h>
#include <halo/autograd/engine.h>
#include <halo/core/error.h>
#include <halo/io/safetensors.h>

#include <charconv>
#include <cmath>
#include <filesystem>
#include <limits>
#include <sstream>

namespace halo::conformance {
namespace {

template <class T>
T parse(const std::string& key, const std::string& text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) {
    fail<FileError>("metadata ", key, ": expected a number, got \"", text, "\"");
  }
  return value;
}

double relative_frobenius(const Tensor& got, const Tensor& expected) {
  if (!got.defined() || got.shape() != expected.shape()) return std::numeric_limits<double>::infinity();
  const auto a = got.to_vector<double>(), b = expected.to_vector<double>();
  double difference = 0, scale = 0, largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i]) || std::isnan(b[i])) return std::numeric_limits<double>::infinity();
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    scale += b[i] * b[i];
    largest = std::max(largest, std::abs(a[i]));
  }
  if (scale == 0) return largest == 0 ? 0 : std::numeric_limits<double>::infinity();  // zero must be exactly zero
  return std::sqrt(difference / scale);
}

}  // namespace

Case::Case(const std::string& path, const Setting& setting)
    : name_(std::filesystem::path(path).stem().string()), setting_(setting) {
  auto file = load_safetensors(path);
  tensors_ = std::move(file.tensors);
  metadata_ = std::move(file.metadata);
  op_ = text("op", "");
  if (op_.empty()) fail<FileError>(path, ": metadata expected an \"op\"");
}

Tensor Case::input(const std::string& tensor) {
  const auto known = inputs_.find(tensor);
  if (known != inputs_.end()) return known->second;
  if (!has(tensor)) fail(op_, ": file expected a tensor \"", tensor, "\"");
  Tensor value = tensors_.at(tensor).to(setting_.dtype).to(setting_.device).clone();
  if (has("grad." + tensor)) {
    value.requires_grad_();
    leaves_.emplace_back(tensor, value);
  }
  inputs_.emplace(tensor, value);
  return value;
}

Tensor Case::raw(const std::string& tensor) const {
  if (!has(tensor)) fail(op_, ": file expected a tensor \"", tensor, "\"");
  return tensors_.at(tensor).to(setting_.device);
}

std::string Case::text(const std::string& key, const std::string& missing) const {
  const auto found = metadata_.find(key);
  return found == metadata_.end() ? missing : found->second;
}

double Case::real(const std::string& key, double missing) const {
  return has_parameter(key) ? parse<double>(key, metadata_.at(key)) : missing;
}

int64_t Case::integer(const std::string& key, int64_t missing) const {
  return has_parameter(key) ? parse<int64_t>(key, metadata_.at(key)) : missing;
}

bool Case::flag(const std::string& key, bool missing) const {
  const std::string value = text(key, missing ? "True" : "False");
  if (value == "True" || value == "true" || value == "1") return true;
  if (value == "False" || value == "false" || value == "0") return false;
  fail<FileError>("metadata ", key, ": expected True or False, got \"", value, "\"");
}

std::vector<int64_t> Case::integers(const std::string& key, const std::vector<int64_t>& missing) const {
  if (!has_parameter(key)) return missing;
  std::vector<int64_t> values;
  std::istringstream list(metadata_.at(key));
  for (std::string item; std::getline(list, item, ',');) {
    const auto first = item.find_first_not_of(" ([");
    const auto last = item.find_last_not_of(" )]");
    if (first != std::string::npos) values.push_back(parse<int64_t>(key, item.substr(first, last - first + 1)));
  }
  return values;
}

ConvOptions Case::conv_options(int rank) const {
  ConvOptions options;
  options.stride = integers("stride", {});
  options.dilation = integers("dilation", {});
  options.groups = integer("groups", 1);
  const std::vector<int64_t> output_padding = integers("output_padding", {});
  for (int64_t v : output_padding) {
    if (v != 0) options.output_padding = output_padding;
  }
  const std::string padding = text("padding", "0");
  if (padding == "same") {
    options.auto_padding = AutoPadding::Same;
  } else if (padding == "valid") {
    options.auto_padding = AutoPadding::Valid;
  } else if (has_parameter("padding_form")) {
    const auto pairs = integers("padding", {});
    if (pairs.size() != 2 * static_cast<std::size_t>(rank)) {
      fail<FileError>("metadata padding: expected ", 2 * rank, " numbers (before and after an axis), got \"", padding,
                      "\"");
    }
    for (std::size_t i = 0; i < pairs.size(); i += 2) {
      options.padding.push_back(pairs[i]);
      options.padding_after.push_back(pairs[i + 1]);
    }
  } else {
    options.padding = integers("padding", {});
  }
  return options;
}

double largest_error(Case& c, const Result& result, std::string& worst) {
  std::map<std::string, Tensor> got = result.outputs;
  std::vector<Tensor> inputs;
  for (const auto& leaf : c.leaves()) inputs.push_back(leaf.second);
  const bool second_order = c.integer("order", 1) == 2;
  if (!inputs.empty()) {
    Tensor upstream = result.root_grad;
    if (second_order) upstream = upstream.detach().clone().requires_grad_();
    const auto grads = grad({result.root}, inputs, {upstream}, {.create_graph = second_order, .allow_unused = true});
    Tensor contraction;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const std::string& name = c.leaves()[i].first;
      got["grad." + name] = grads[i].detach();
      if (!c.has("v." + name)) continue;
      const Tensor term = sum(grads[i] * c.input("v." + name));
      contraction = contraction.defined() ? contraction + term : term;
    }
    if (second_order && contraction.defined()) {
      inputs.push_back(upstream);
      const auto second = grad({contraction}, inputs, {}, {.allow_unused = true});
      for (std::size_t i = 0; i < second.size(); ++i) {
        got["second." + (i < c.leaves().size() ? c.leaves()[i].first : std::string("grad_output"))] = second[i];
      }
    }
  }
  double largest = 0;
  for (const auto& [name, expected] : c.tensors()) {
    const bool checked = name == "output" || name == "logits" || name == "hidden" || name == "loss" ||
                         name.starts_with("grad.") || name.starts_with("second.");
    if (!checked) continue;
    const auto found = got.find(name);
    const double error = relative_frobenius(found == got.end() ? Tensor() : found->second, expected);
    if (worst.empty() || error > largest) {
      largest = error;
      worst = name;
    }
  }
  if (worst.empty()) fail<FileError>(c.name(), ": expected an output to compare with");
  return largest;
}

}  // namespace halo::conformance
