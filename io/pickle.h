// Python pickles as plain data. Nothing is ever called or imported: where Python would call a class or function, the
// result here is a note of what would have been called with what.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace halo::io {

struct PickleValue {
  enum class Kind { None, Bool, Int, Float, String, Sequence, Dict, Global, Call, Persistent, Other };
  Kind kind = Kind::None;
  int64_t integer = 0;  ///< Int, Bool
  double real = 0;      ///< Float
  std::string text{};   ///< String; Global: "module.name"
  std::vector<PickleValue*>
      items{};  ///< Sequence (tuple, list, set); Call: the callable, the arguments; Persistent: the id
  std::vector<std::pair<PickleValue*, PickleValue*>> entries{};  ///< Dict, and Calls that made one

  bool is_string(std::string_view wanted) const { return kind == Kind::String && text == wanted; }
  /// A call of the function or class of that name.
  bool is_call(std::string_view wanted) const {
    return kind == Kind::Call && items[0]->kind == Kind::Global && items[0]->text == wanted;
  }
};

/// The values of one pickle. They may refer to each other in circles and to any depth, so that one place owns them all.
class Pickle {
 public:
  /// @throws FileError, beginning with `path`, for an operation that is malformed or not known.
  Pickle(const std::string& path, std::string_view bytes);
  Pickle(const Pickle&) = delete;
  Pickle& operator=(const Pickle&) = delete;

  const PickleValue& root() const { return *root_; }

 private:
  std::deque<PickleValue> values_;
  PickleValue* root_ = nullptr;
};

}  // namespace halo::io
