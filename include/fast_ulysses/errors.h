// Typed errors. One table makes the code, the C++ class, the name and the Python exception.
#pragma once

#include <stdexcept>
#include <string>

#include "fast_ulysses/visibility.h"

// X(enumerator and class, Python builtin twin)
#define FU_FOR_EACH_ERROR(X)      \
  X(InvalidArgument, ValueError)  \
  X(StateError, RuntimeError)     \
  X(TransportError, RuntimeError) \
  X(CudaError, RuntimeError)      \
  X(PeerTimeout, TimeoutError)    \
  X(PeerError, ConnectionError)   \
  X(CollectiveMismatch, RuntimeError)

namespace fast_ulysses {

enum class ErrorCode : int {
  kNone = 0,
#define X(name, twin) k##name,
  FU_FOR_EACH_ERROR(X)
#undef X
};

class FU_API Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& text) : std::runtime_error(text), code_(code) {}
  ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

#define X(name, twin)                                                           \
  class FU_API name : public Error {                                            \
   public:                                                                      \
    explicit name(const std::string& text) : Error(ErrorCode::k##name, text) {} \
  };
FU_FOR_EACH_ERROR(X)
#undef X

FU_API const char* error_name(ErrorCode code) noexcept;

// Throws the class that belongs to `code`: how an error that another rank found first is raised here.
[[noreturn]] FU_API void throw_error(ErrorCode code, const std::string& text);

}  // namespace fast_ulysses
