// Result<T>: a value or an Error, returned where a caller is expected to act on failure.
//
// Role: the one error carrier of the project. Exceptions of libraries (torch, nlohmann, std::filesystem) are caught
// at named edges and turned into an Error there. Context is added where an error crosses a room; it is logged once,
// at the top.
// Threads: values; no synchronisation of their own.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "runner/base/check.h"

namespace lockstep {

// Codes are named by what the caller does next.
enum class ErrorCode {
  kInvalid,      // a person must change the input (flag, file, environment)
  kNotFound,     // the thing asked for does not exist
  kCorrupt,      // damaged bytes; use another copy
  kRetry,        // may succeed later without any change
  kConflict,     // it belongs to another owner (run, job, process), or another writer was faster
  kExists,       // exists already: look at what is there
  kForbidden,    // a person must grant a right, or raise a quota
  kGone,         // existed and does not exist any more
  kCancelled,    // this program was asked to stop
  kUnavailable,  // the disk, network or device refuses (full, read-only, unreachable)
};

const char* to_string(ErrorCode code);

struct Error {
  ErrorCode code = ErrorCode::kInvalid;
  std::string message;      // a sentence: what failed, what was found, what was expected, what to do
  std::string reason = {};  // CamelCase, for programs ("AlreadyExists"); empty when the source gives none

  // The same error with "context: " before its message.
  [[nodiscard]] Error with_context(const std::string& context) const {
    return Error{code, context + ": " + message, reason};
  }
};

// What most checks of input end with: `return invalid("--nproc: found \"x\", expected a number");`
inline Error invalid(std::string message) { return {.code = ErrorCode::kInvalid, .message = std::move(message)}; }
// The same, where a path to the wrong value begins the message.
inline Error invalid(const std::string& where, const std::string& why) { return invalid(where + ": " + why); }
// The same for checks of a file's bytes; `what` names the file.
inline Error corrupt(std::string_view what, const std::string& message) {
  return {.code = ErrorCode::kCorrupt, .message = std::string(what) + ": " + message};
}

// The value of a Result<void>.
struct Unit {};

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}      // NOLINT(google-explicit-constructor)
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT(google-explicit-constructor)

  [[nodiscard]] bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  // Only when ok(); anything else is a programmer's error and aborts.
  T& value() & {
    LOCKSTEP_CHECK(ok(), error_or_empty().c_str());
    return std::get<0>(state_);
  }
  const T& value() const& {
    LOCKSTEP_CHECK(ok(), error_or_empty().c_str());
    return std::get<0>(state_);
  }
  T&& value() && {
    LOCKSTEP_CHECK(ok(), error_or_empty().c_str());
    return std::get<0>(std::move(state_));
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  // Only when not ok().
  [[nodiscard]] const Error& error() const {
    LOCKSTEP_CHECK(!ok(), "Result holds a value, not an error");
    return std::get<1>(state_);
  }

 private:
  [[nodiscard]] std::string error_or_empty() const { return ok() ? std::string() : std::get<1>(state_).message; }

  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Unit) {}                                    // NOLINT(google-explicit-constructor)
  Result(Error error) : error_(std::move(error)) {}  // NOLINT(google-explicit-constructor)

  [[nodiscard]] bool ok() const { return !error_.has_value(); }
  explicit operator bool() const { return ok(); }
  [[nodiscard]] const Error& error() const {
    LOCKSTEP_CHECK(!ok(), "Result holds no error");
    return *error_;
  }

 private:
  std::optional<Error> error_;
};

using Status = Result<void>;

}  // namespace lockstep

#define LOCKSTEP_CONCAT_INNER(a, b) a##b
#define LOCKSTEP_CONCAT(a, b) LOCKSTEP_CONCAT_INNER(a, b)

// TRY(expression): returns the error of a Result from the enclosing function, which itself returns a Result.
#define TRY(expression)                                                \
  do {                                                                 \
    auto&& lockstep_try_result = (expression);                         \
    if (!lockstep_try_result.ok()) return lockstep_try_result.error(); \
  } while (false)

// TRY_ASSIGN(auto x, expression): the same, keeping the value.
#define TRY_ASSIGN(declaration, expression) \
  TRY_ASSIGN_INNER(declaration, expression, LOCKSTEP_CONCAT(lockstep_try_, __LINE__))
#define TRY_ASSIGN_INNER(declaration, expression, name) \
  auto name = (expression);                             \
  if (!name.ok()) return name.error();                  \
  declaration = std::move(name).value()
