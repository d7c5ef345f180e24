#include "pickle.h"

#include <halo/core/error.h>

#include <bit>
#include <cstring>
#include <unordered_map>

namespace halo::io {
namespace {

using Value = PickleValue;
using Kind = PickleValue::Kind;

/// The stack machine of Python's pickletools, protocols 2 to 5, without its calls.
class Machine {
 public:
  Machine(const std::string& path, std::string_view bytes, std::deque<Value>& values)
      : path_(path), bytes_(bytes), values_(values) {}

  Value* run() {
    while (true) {
      const auto op = static_cast<unsigned char>(take(1)[0]);
      if (op == '.') return pop();
      if (!(constant(op) || text(op) || container(op) || memo(op) || object(op))) {
        refuse(concat("operation ", static_cast<int>(op), " is not known"));
      }
    }
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const {
    fail<FileError>(path_, ": pickle at byte ", at_, ": ", why);
  }

  // --- Bytes --------------------------------------------------------------------------------------------------------

  std::string_view take(uint64_t count) {
    if (count > bytes_.size() - at_) refuse("ends too early");
    const std::string_view taken = bytes_.substr(at_, static_cast<std::size_t>(count));
    at_ += taken.size();
    return taken;
  }

  template <class T>
  T number() {
    T value{};
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }

  std::string line() {
    const std::size_t end = bytes_.find('\n', at_);
    if (end == std::string_view::npos) refuse("ends too early");
    const std::string taken(take(end - at_));
    take(1);
    return taken;
  }

  // --- Stack --------------------------------------------------------------------------------------------------------

  Value* make(Kind kind) {
    values_.push_back({.kind = kind});
    return &values_.back();
  }
  void push(Value* value) { stack_.push_back(value); }
  void push_integer(int64_t value, Kind kind = Kind::Int) {
    push(make(kind));
    stack_.back()->integer = value;
  }
  void push_text(std::string_view value, Kind kind = Kind::String) {
    push(make(kind));
    stack_.back()->text = value;
  }

  Value* pop() {
    if (stack_.size() <= floor()) refuse("takes a value from an empty stack");
    Value* const value = stack_.back();
    stack_.pop_back();
    return value;
  }
  Value* top() {
    if (stack_.size() <= floor()) refuse("takes a value from an empty stack");
    return stack_.back();
  }
  /// Values above the last mark belong to it.
  std::size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }

  std::vector<Value*> pop_to_mark() {
    if (marks_.empty()) refuse("takes values up to a mark that is not there");
    std::vector<Value*> values(stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back()), stack_.end());
    stack_.resize(marks_.back());
    marks_.pop_back();
    return values;
  }

  void push_sequence(std::vector<Value*> items) {
    push(make(Kind::Sequence));
    stack_.back()->items = std::move(items);
  }
  void push_tuple(std::size_t count) {
    std::vector<Value*> items(count);
    for (std::size_t i = count; i-- > 0;) items[i] = pop();
    push_sequence(std::move(items));
  }
  void push_call(Value* callable, Value* arguments) {
    push(make(Kind::Call));
    stack_.back()->items = {callable, arguments};
  }
  void set_entries(const std::vector<Value*>& pairs) {
    if (pairs.size() % 2 != 0) refuse("a key has no value");
    Value* const dict = top();
    for (std::size_t i = 0; i < pairs.size(); i += 2) dict->entries.emplace_back(pairs[i], pairs[i + 1]);
  }
  void extend(const std::vector<Value*>& items) {
    Value* const list = top();
    // A call that made something listlike keeps callable and arguments in `items`.
    if (list->kind == Kind::Sequence) list->items.insert(list->items.end(), items.begin(), items.end());
  }

  // --- Operations, by what they give --------------------------------------------------------------------------------

  bool constant(unsigned char op) {
    switch (op) {
      case 0x80: take(1); return true;  // protocol
      case 0x95: take(8); return true;  // frame
      case 'N': push(make(Kind::None)); return true;
      case 0x88: push_integer(1, Kind::Bool); return true;
      case 0x89: push_integer(0, Kind::Bool); return true;
      case 'K': push_integer(number<uint8_t>()); return true;
      case 'M': push_integer(number<uint16_t>()); return true;
      case 'J': push_integer(number<int32_t>()); return true;
      case 0x8a: push_long(number<uint8_t>()); return true;
      case 0x8b: push_long(number<uint32_t>()); return true;
      case 'G': {
        push(make(Kind::Float));
        stack_.back()->real = std::bit_cast<double>(__builtin_bswap64(number<uint64_t>()));
        return true;
      }
      default: return false;
    }
  }

  /// A little-endian two's complement number of so many bytes.
  void push_long(uint64_t count) {
    const std::string_view digits = take(count);
    if (count > sizeof(int64_t)) return push(make(Kind::Other));
    uint64_t value = 0;
    std::memcpy(&value, digits.data(), digits.size());
    const bool negative = count > 0 && (static_cast<unsigned char>(digits.back()) & 0x80) != 0;
    if (negative && count < sizeof value) value |= ~uint64_t{0} << (8 * count);
    push_integer(static_cast<int64_t>(value));
  }

  bool text(unsigned char op) {
    switch (op) {
      case 0x8c: push_text(take(number<uint8_t>())); return true;
      case 'X': push_text(take(number<uint32_t>())); return true;
      case 0x8d: push_text(take(number<uint64_t>())); return true;
      case 'U':
      case 'C': push_text(take(number<uint8_t>())); return true;
      case 'T':
      case 'B': push_text(take(number<uint32_t>())); return true;
      case 0x8e: push_text(take(number<uint64_t>())); return true;
      default: return false;
    }
  }

  bool container(unsigned char op) {
    switch (op) {
      case '(': marks_.push_back(stack_.size()); return true;
      case ')':
      case ']':
      case 0x8f: push(make(Kind::Sequence)); return true;
      case '}': push(make(Kind::Dict)); return true;
      case 0x85: push_tuple(1); return true;
      case 0x86: push_tuple(2); return true;
      case 0x87: push_tuple(3); return true;
      case 't':
      case 'l':
      case 0x91: push_sequence(pop_to_mark()); return true;
      case 'd': {
        const auto pairs = pop_to_mark();
        push(make(Kind::Dict));
        set_entries(pairs);
        return true;
      }
      case 'a': {
        Value* const item = pop();
        extend({item});
        return true;
      }
      case 'e':
      case 0x90: extend(pop_to_mark()); return true;
      case 's': {
        Value* const value = pop();
        Value* const key = pop();
        set_entries({key, value});
        return true;
      }
      case 'u': set_entries(pop_to_mark()); return true;
      case '0': pop(); return true;
      case '1': pop_to_mark(); return true;
      case '2': push(top()); return true;
      default: return false;
    }
  }

  bool memo(unsigned char op) {
    switch (op) {
      case 'q': memo_[number<uint8_t>()] = top(); return true;
      case 'r': memo_[number<uint32_t>()] = top(); return true;
      case 0x94: {
        const std::size_t next = memo_.size();
        memo_[next] = top();
        return true;
      }
      case 'h': push(remembered(number<uint8_t>())); return true;
      case 'j': push(remembered(number<uint32_t>())); return true;
      default: return false;
    }
  }

  Value* remembered(uint64_t key) const {
    const auto found = memo_.find(key);
    if (found == memo_.end()) refuse(concat("memo ", key, " is empty"));
    return found->second;
  }

  bool object(unsigned char op) {
    switch (op) {
      case 'c': {
        const std::string module = line();
        push_text(module + "." + line(), Kind::Global);
        return true;
      }
      case 0x93: {
        const Value* const name = pop();
        const Value* const module = pop();
        push_text(module->text + "." + name->text, Kind::Global);
        return true;
      }
      case 'R':
      case 0x81: {
        Value* const arguments = pop();
        push_call(pop(), arguments);
        return true;
      }
      case 0x92: {  // a call with named arguments, which nothing here needs
        pop();
        Value* const arguments = pop();
        push_call(pop(), arguments);
        return true;
      }
      case 'b':
        pop();
        top();
        return true;  // the state of an object
      case 'Q': {
        Value* const id = pop();
        push(make(Kind::Persistent));
        stack_.back()->items = {id};
        return true;
      }
      default: return false;
    }
  }

  const std::string& path_;
  std::string_view bytes_;
  std::size_t at_ = 0;
  std::deque<Value>& values_;
  std::vector<Value*> stack_;
  std::vector<std::size_t> marks_;
  std::unordered_map<uint64_t, Value*> memo_;
};

}  // namespace

Pickle::Pickle(const std::string& path, std::string_view bytes) { root_ = Machine(path, bytes, values_).run(); }

}  // namespace halo::io
