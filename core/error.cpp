#include <halo/core/error.h>

namespace halo::detail {

MessageStream::MessageStream() { *this << std::boolalpha; }
MessageStream::~MessageStream() = default;
std::string MessageStream::text() const { return str(); }

}  // namespace halo::detail
