#include "fast_ulysses/errors.h"

namespace fast_ulysses {

const char* error_name(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::kNone:
      return "no error";
#define X(name, twin)      \
  case ErrorCode::k##name: \
    return #name;
      FU_FOR_EACH_ERROR(X)
#undef X
  }
  return "unknown error";
}

void throw_error(ErrorCode code, const std::string& text) {
  switch (code) {
#define X(name, twin)      \
  case ErrorCode::k##name: \
    throw name(text);
    FU_FOR_EACH_ERROR(X)
#undef X
    case ErrorCode::kNone:
      break;
  }
  throw StateError(text);
}

}  // namespace fast_ulysses
