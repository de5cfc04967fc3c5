// What a test is made of: TEST registers one, CHECK ends it with the place and the values.
//
// A failed CHECK is an exception, so that a rank's thread can hand it to the harness, which ends
// the other ranks of the job with its text.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <future>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/futex_wait.h"

namespace lockstep::testing {

class CheckFailed : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

using Body = void (*)();
// The group is the file's name: `tests.cc` runs the tests of one group with one argument.
bool add_test(const char* file, const char* name, Body body);

[[noreturn]] void fail(const char* file, int line, const std::string& text);

template <typename A, typename B>
std::string show(const A& a, const B& b) {
  std::ostringstream text;
  text << a << " against " << b;
  return text.str();
}

// The text of the Error that the body throws, "" for none.
template <typename Body>
std::string error_or_none(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// Fails unless the condition is met in a while.
template <typename Condition>
void eventually(const Condition& condition, const char* what) {
  const auto end = Clock::now() + std::chrono::seconds(60);
  while (!condition()) {
    if (Clock::now() > end) throw CheckFailed(std::string("in vain waited for: ") + what);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// Runs the body in a thread of its own, which the future's end waits for.
template <typename Body>
auto in_background(Body body) {
  return std::async(std::launch::async,
                    std::function<std::invoke_result_t<Body>()>(std::move(body)));
}

// Calls body(i) for each i below `count`, each in a thread of its own.
template <typename Body>
void in_threads(std::size_t count, const Body& body) {
  std::vector<std::jthread> threads;
  for (std::size_t i = 0; i < count; ++i) threads.emplace_back([&body, i] { body(i); });
}

// Fails unless `text` holds every one of `parts`.
void check_contains(const char* file, int line, const std::string& text,
                    std::initializer_list<std::string> parts);

}  // namespace lockstep::testing

#define TEST(NAME)                                        \
  static void NAME();                                     \
  [[maybe_unused]] static const bool NAME##_added =       \
      lockstep::testing::add_test(__FILE__, #NAME, NAME); \
  static void NAME()

#define CHECK(CONDITION) \
  ((CONDITION) ? (void)0 : lockstep::testing::fail(__FILE__, __LINE__, #CONDITION))

#define CHECK_EQUAL(A, B)                                   \
  ((A) == (B) ? (void)0                                     \
              : lockstep::testing::fail(__FILE__, __LINE__, \
                                        #A " == " #B ": " + lockstep::testing::show((A), (B))))

#define CHECK_CONTAINS(TEXT, ...) \
  lockstep::testing::check_contains(__FILE__, __LINE__, (TEXT), {__VA_ARGS__})

// The text of the Error that EXPRESSION throws.
#define ERROR_OF(EXPRESSION)                                                   \
  ([&]() -> std::string {                                                      \
    try {                                                                      \
      EXPRESSION;                                                              \
    } catch (const lockstep::Error& error) {                                   \
      return error.what();                                                     \
    }                                                                          \
    lockstep::testing::fail(__FILE__, __LINE__, #EXPRESSION " threw nothing"); \
  }())
