// The part of XLA's FFI that kernels on CPUs need: how XLA hands a call to a function of this
// library, as `xla/ffi/api/c_api.h` of jaxlib lays it out.
//
// The structs are declared here because the engine is built where there is no jaxlib. XLA asks
// every kernel for the version that it was made for when it is registered, and refuses one that it
// does not know; `tests/facts/test_ffi_facts.py` holds the declarations to the header of the jaxlib
// at hand.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <new>
#include <span>

namespace lockstep::ffi {

// The structs are the same in versions 0.1 to 0.5. XLA takes a kernel of an older version than its
// own.
constexpr int kMajor = 0;
constexpr int kOldestMinor = 1;
constexpr int kNewestMinor = 3;

struct Extension {
  std::size_t struct_size;
  int type;
  Extension* next;
};
constexpr int kMetadata = 1;

struct Version {
  std::size_t struct_size;
  Extension* extensions;
  int major, minor;
};

struct Metadata {
  std::size_t struct_size;
  Version version;
  std::uint32_t traits;
};

struct MetadataExtension {
  Extension base;
  Metadata* metadata;
};

enum class Type : int { kS32 = 4, kF32 = 11, kF64 = 12, kC64 = 15, kC128 = 18 };

inline bool is_number(Type type) {
  return type == Type::kF32 || type == Type::kF64 || type == Type::kC64 || type == Type::kC128;
}

struct Buffer {
  std::size_t struct_size;
  Extension* extensions;
  Type type;
  void* data;
  std::int64_t rank;
  const std::int64_t* dims;

  std::span<const std::int64_t> shape() const { return {dims, static_cast<std::size_t>(rank)}; }
  bool is(Type wanted, std::initializer_list<std::int64_t> shape) const {
    return type == wanted && rank == static_cast<std::int64_t>(shape.size()) &&
           std::equal(shape.begin(), shape.end(), dims);
  }
  bool is_like(const Buffer& other) const {
    return type == other.type && std::ranges::equal(shape(), other.shape());
  }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

struct Error;

struct ErrorArgs {
  std::size_t struct_size;
  Extension* extensions;
  const char* message;
  int code;
};
constexpr int kInvalidArgument = 3;
constexpr int kResourceExhausted = 8;

struct Api {
  std::size_t struct_size;
  Extension* extensions;
  Version version;
  const void* internal;
  Error* (*create_error)(ErrorArgs*);
};

struct Buffers {
  std::size_t struct_size;
  Extension* extensions;
  std::int64_t size;
  const int* types;
  Buffer** buffers;

  const Buffer& operator[](std::size_t i) const { return *buffers[i]; }
};

struct Frame {
  std::size_t struct_size;
  Extension* extensions;
  const Api* api;
  void* context;
  int stage;
  Buffers arguments;
  Buffers results;

  // Whether the first result lies in the first argument; both must be there.
  bool is_in_place() const {
    return results[0].is_like(arguments[0]) && results[0].data == arguments[0].data;
  }
};

// The error that XLA raises in the program; the text is copied.
inline Error* error(const Frame& frame, const char* text, int code = kInvalidArgument) {
  ErrorArgs args{sizeof(ErrorArgs), nullptr, text, code};
  return frame.api->create_error(&args);
}

// Runs a kernel; where it finds no memory, that is the program's error.
template <typename Run>
Error* run(const Frame& frame, const Run& kernel) {
  try {
    kernel();
  } catch (const std::bad_alloc&) {
    return error(frame, "lockstep: a kernel finds no memory.", kResourceExhausted);
  }
  return nullptr;
}

// Answers XLA's question for the version. True: the call was that question, and nothing is to do.
inline bool is_question(const Frame& frame) {
  if (frame.extensions == nullptr || frame.extensions->type != kMetadata) return false;
  Metadata* metadata = reinterpret_cast<MetadataExtension*>(frame.extensions)->metadata;
  metadata->version.major = kMajor;
  // The call frame of this question carries no API in jaxlib 0.8.0, whose version is 0.1.
  const int minor = frame.api == nullptr ? kOldestMinor : frame.api->version.minor;
  metadata->version.minor = std::min(minor, kNewestMinor);
  metadata->traits = 0;
  return true;
}

}  // namespace lockstep::ffi
