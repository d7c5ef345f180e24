// Errors: one exception type a kind of fault, and one way of building their text.
//
// The form of a message is "function: argument expected ..., got ...": it names the function, the
// argument, what was expected and what came.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace halo {

/// Base of everything Halo throws.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The caller's arguments do not fit: shape, dtype, device, value or graph state.
class ArgumentError : public Error {
 public:
  using Error::Error;
};

/// A device cannot do what was asked: no driver, no such GPU, a failed launch, a missing library.
class DeviceError : public Error {
 public:
  using Error::Error;
};

/// An allocation could not be served; the process stays usable.
class OutOfMemoryError : public Error {
 public:
  using Error::Error;
};

/// A file is absent, unreadable, malformed, or could not be written.
class FileError : public Error {
 public:
  using Error::Error;
};

/// Halo broke its own rule. Seeing one is a bug in Halo.
class InternalError : public Error {
 public:
  using Error::Error;
};

namespace detail {

/// A stream whose construction and end are not repeated in each of the several hundred places that write a message.
class MessageStream : public std::ostringstream {
 public:
  MessageStream();
  ~MessageStream() override;
  std::string text() const;
};

}  // namespace detail

/// Joins its arguments with `operator<<` into one string.
template <class... Parts>
std::string concat(const Parts&... parts) {
  detail::MessageStream stream;
  (stream << ... << parts);
  return stream.text();
}

/// Throws `ErrorType` (ArgumentError unless given) with the joined text.
template <class ErrorType = ArgumentError, class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  throw ErrorType(concat(parts...));
}

}  // namespace halo
