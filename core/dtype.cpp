#include <halo/core/dtype.h>

namespace halo {

BFloat16::BFloat16(float value) {
  const auto u = std::bit_cast<uint32_t>(value);
  if (value != value) {
    bits = static_cast<uint16_t>((u >> 16) | 0x40u);  // stay a NaN when the payload sat in the low half
  } else {
    bits = static_cast<uint16_t>((u + 0x7FFFu + ((u >> 16) & 1u)) >> 16);
  }
}

BFloat16::operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

Float16::Float16(float value) {
  const auto u = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((u >> 16) & 0x8000u);
  const uint32_t magnitude = u & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) {
    bits = static_cast<uint16_t>(sign | 0x7E00u);
  } else if (magnitude >= 0x477FF000u) {  // 65520 and above round to infinity
    bits = static_cast<uint16_t>(sign | 0x7C00u);
  } else if (magnitude >= 0x38800000u) {  // normal half
    const uint32_t rounded = magnitude + 0xFFFu + ((magnitude >> 13) & 1u);
    bits = static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
  } else {
    // Subnormal: adding 0.5 lines the half's last bit up with the float's, and the addition rounds to even.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    bits = static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3F000000u));
  }
}

Float16::operator float() const {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1Fu;
  const uint32_t mantissa = bits & 0x3FFu;
  if (exponent == 0x1Fu) return std::bit_cast<float>(sign | 0x7F800000u | (mantissa << 13));
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  return sign != 0 ? -magnitude : magnitude;
}

const char* name(DType dtype) {
  switch (dtype) {
    case DType::Float32: return "float32";
    case DType::Float64: return "float64";
    case DType::BFloat16: return "bfloat16";
    case DType::Float16: return "float16";
    case DType::Int64: return "int64";
    case DType::Int32: return "int32";
    case DType::UInt8: return "uint8";
    case DType::Bool: return "bool";
  }
  fail<InternalError>("name: unknown dtype");
}

std::size_t size_of(DType dtype) {
  return dispatch_dtype(dtype, [](auto type) { return sizeof(typename decltype(type)::type); });
}

bool is_floating_point(DType dtype) { return dtype <= DType::Float16; }

}  // namespace halo
