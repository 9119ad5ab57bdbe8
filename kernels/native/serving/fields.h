// Encoded protobuf messages, field by field.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lumigrad::serving {

enum WireType : std::uint32_t { kVarint = 0, kFixed64 = 1, kLength = 2, kFixed32 = 5 };

// A field of a message: the content of a length-delimited field, the raw bytes of any other.
struct Field {
  std::uint32_t number;
  std::uint32_t type;
  std::string_view content;
};

// The value of a field of type kVarint.
inline std::uint64_t varint_of(const Field& field) {
  std::uint64_t value = 0;
  int shift = 0;
  for (const char byte : field.content) {
    value |= static_cast<std::uint64_t>(byte & 127) << shift;
    shift += 7;
  }
  return value;
}

inline void append_varint(std::string& to, std::uint64_t value) {
  for (; value >= 128; value >>= 7) to += static_cast<char>((value & 127) | 128);
  to += static_cast<char>(value);
}

inline void append_tag(std::string& to, unsigned field, WireType type) { append_varint(to, field << 3 | type); }

// Reads the fields of an encoded message one by one.
class Fields {
 public:
  explicit Fields(std::string_view message) : at_(message.data()), end_(message.data() + message.size()) {}

  bool at_end() const { return at_ == end_; }
  // The next field; nullopt if the bytes are not a valid field or begin a group.
  std::optional<Field> next() {
    std::uint64_t tag = 0;
    if (!read_varint(tag) || tag >> 3 == 0 || tag > UINT32_MAX) return std::nullopt;
    Field field{static_cast<std::uint32_t>(tag >> 3), static_cast<std::uint32_t>(tag & 7), {}};
    const char* begin = at_;
    std::uint64_t value = 0;
    switch (field.type) {
      case kVarint:
        if (!read_varint(value)) return std::nullopt;
        break;
      case kFixed64:
        if (!skip(8)) return std::nullopt;
        break;
      case kFixed32:
        if (!skip(4)) return std::nullopt;
        break;
      case kLength:
        if (!read_varint(value)) return std::nullopt;
        begin = at_;
        if (!skip(value)) return std::nullopt;
        break;
      default:
        return std::nullopt;
    }
    field.content = {begin, static_cast<std::size_t>(at_ - begin)};
    return field;
  }

 private:
  bool skip(std::uint64_t bytes) {
    if (bytes > static_cast<std::uint64_t>(end_ - at_)) return false;
    at_ += bytes;
    return true;
  }
  bool read_varint(std::uint64_t& value) {
    value = 0;
    for (int shift = 0; shift < 64 && at_ < end_; shift += 7) {
      const auto byte = static_cast<unsigned char>(*at_++);
      value |= static_cast<std::uint64_t>(byte & 127) << shift;
      if (byte < 128) return true;
    }
    return false;
  }

  const char* at_;
  const char* end_;
};

// Appends the bytes of a message, except those of its poses, to a key.
class Key {
 public:
  Key(std::string_view raw, std::string& to) : raw_(raw), to_(to) { to_.reserve(raw.size()); }

  void leave_out(std::string_view part) {
    const auto begin = static_cast<std::size_t>(part.data() - raw_.data());
    to_.append(raw_, kept_, begin - kept_);
    kept_ = begin + part.size();
  }
  void finish() { to_.append(raw_, kept_); }

 private:
  std::string_view raw_;
  std::string& to_;
  std::size_t kept_ = 0;
};

}  // namespace lumigrad::serving
