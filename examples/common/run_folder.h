// Where a training leaves what it made: metrics.jsonl, checkpoints and pictures in one folder.
#pragma once

#include <halo/core/tensor.h>

#include <fstream>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

namespace example {

class RunFolder {
 public:
  /// Makes the folder. A run that is resumed appends to its metrics from step `resume_step` on.
  explicit RunFolder(const std::string& path, int64_t resume_step = 0);
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  /// One line of metrics.jsonl: {"step": 3, "loss": 0.5, ...}
  void log(int64_t step, std::initializer_list<std::pair<const char*, double>> values);
  /// The (step, value) pairs logged under `key`, those of a resumed run's past included.
  std::vector<std::pair<double, double>> series(const std::string& key) const;

 private:
  std::string path_;
  std::ofstream metrics_;
};

/// One line of a chart.
struct Curve {
  std::string label;
  std::vector<std::pair<double, double>> points;
};

/// A line chart as a PNG: axes with numbers, a legend, thin raw lines under a smoothed one.
void write_chart(const std::string& path, const std::string& title, const std::string& x_label,
                 const std::vector<Curve>& curves);

/// The filters [K, C, h, w] of a first layer as a grid, each scaled to its own range; C of 3 in colour, else the mean
/// of C.
void write_filters(const std::string& path, const halo::Tensor& weight, int64_t zoom = 4);

}  // namespace example
