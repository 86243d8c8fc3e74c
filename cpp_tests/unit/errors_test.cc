#include "fast_ulysses/errors.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <type_traits>

namespace fast_ulysses {
namespace {

// What throw_error makes of a code: caught as `Class` and nothing more special.
template <class Class>
void expect_thrown(ErrorCode code, const char* name) {
  EXPECT_STREQ(error_name(code), name);
  try {
    throw_error(code, "what happened");
  } catch (const Class& error) {
    EXPECT_EQ(error.code(), code);
    EXPECT_STREQ(error.what(), "what happened");
    EXPECT_NE(dynamic_cast<const Error*>(&error), nullptr);
    EXPECT_TRUE((std::is_base_of_v<std::runtime_error, Class>));
    return;
  } catch (...) {
  }
  ADD_FAILURE() << name << " was thrown as another class";
}

TEST(Errors, EachCodeHasItsClassAndName) {
#define X(name, twin) expect_thrown<name>(ErrorCode::k##name, #name);
  FU_FOR_EACH_ERROR(X)
#undef X
}

// Codes travel between processes in shared memory: they are numbers that must not move.
TEST(Errors, CodesStayWhatTheyAre) {
  EXPECT_EQ(static_cast<int>(ErrorCode::kNone), 0);
  EXPECT_EQ(static_cast<int>(ErrorCode::kInvalidArgument), 1);
  EXPECT_EQ(static_cast<int>(ErrorCode::kStateError), 2);
  EXPECT_EQ(static_cast<int>(ErrorCode::kTransportError), 3);
  EXPECT_EQ(static_cast<int>(ErrorCode::kCudaError), 4);
  EXPECT_EQ(static_cast<int>(ErrorCode::kPeerTimeout), 5);
  EXPECT_EQ(static_cast<int>(ErrorCode::kPeerError), 6);
  EXPECT_EQ(static_cast<int>(ErrorCode::kCollectiveMismatch), 7);
}

TEST(Errors, NoCodeIsStillAnError) {
  EXPECT_THROW(throw_error(ErrorCode::kNone, "?"), StateError);
  EXPECT_THROW(throw_error(static_cast<ErrorCode>(99), "?"), StateError);
  EXPECT_STREQ(error_name(ErrorCode::kNone), "no error");
  EXPECT_STREQ(error_name(static_cast<ErrorCode>(99)), "unknown error");
}

TEST(Errors, NamesAreDistinct) {
  std::set<std::string> names;
  int count = 0;
#define X(name, twin)                           \
  names.insert(error_name(ErrorCode::k##name)); \
  ++count;
  FU_FOR_EACH_ERROR(X)
#undef X
  EXPECT_EQ(static_cast<int>(names.size()), count);
}

}  // namespace
}  // namespace fast_ulysses
