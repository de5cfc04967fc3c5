// What tests use of this machine: children, stops, sockets and libraries.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "base/descriptor.h"

namespace lockstep::testing {

// What the body returns, or the text of what it throws, in a child of this process: limits cannot
// be taken back, Engine::instance() is there for good, and some libraries are loaded once.
std::string in_child(const std::function<std::string()>& body);
// Fails with the text of what the body throws there.
void run_in_child(const std::function<void()>& body);

// This process stops (SIGSTOP).
void stop_for(std::chrono::seconds time);

// A listening socket of this machine, and its address.
struct Listener {
  Descriptor fd;
  std::string address;
};
Listener listen_anywhere();

// In all tests of this run UCX carries the messages between hosts, from the library of this name.
std::vector<std::string> ucx_libraries();

}  // namespace lockstep::testing
