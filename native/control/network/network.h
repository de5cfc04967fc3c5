// The network of a job, as the rest of the engine and Python see it: which processes and agents
// there are on other hosts, which of them have left or are lost, their control messages, and the
// end of this process. `Endpoint` (endpoint.h) is that of a job on several hosts; `NoNetwork` that
// of a job on one.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "control/messages.h"
#include "transport/peers.h"

namespace lockstep {

class Network : public Peers {
 public:
  virtual ~Network() = default;

  // Whether the job has other hosts.
  virtual bool spans_hosts() const = 0;
  // Whether there is a connection to that process, or will be when it is needed.
  virtual bool reaches(int process) const = 0;
  // The address to which others connect, "10.0.0.1:4411".
  virtual const std::string& address() const = 0;

  // Begins with the connections to that process, which `send_control` otherwise waits for.
  enum class Connecting { kNever, kBegun, kDone };
  virtual Connecting connect(int process) = 0;
  // Whether control messages to that process need not wait for connections.
  virtual bool is_connected(int process) = 0;
  // Sends a control message to a process of another host. False when that is not possible: the
  // process is lost, there is no time left, or the message is longer than
  // ControlMessages::kMaxLength. That does not fail the job.
  virtual bool send_control(int process, std::span<const std::byte> bytes,
                            double timeout_seconds) = 0;
  virtual ControlMessage next_control(double timeout_seconds) = 0;
  // Ends the control messages: from here on none are sent or taken.
  virtual void end_control() = 0;
  // The wake-up of the watchdog of this process, which outlives this; null: there is none.
  virtual void set_watchdog(const WakeUp* watchdog) = 0;

  // Reports to the others that this process's program has ended and makes no more calls.
  virtual void leave() = 0;
  // Waits for threads that still send; nothing is sent or read after it.
  virtual void stop() = 0;
  // In a forked child: closes its copies of the connections, which are its parent's.
  virtual void abandon() = 0;
};

// No process is on another host.
class NoNetwork final : public Network {
 public:
  void reach(int, const WaitLimits&) override {}
  const std::atomic<std::uint32_t>& has_left(int) const override { return never_; }
  bool is_lost(int) const override { return false; }
  bool spans_hosts() const override { return false; }
  bool reaches(int) const override { return false; }
  const std::string& address() const override { return address_; }
  Connecting connect(int) override { return Connecting::kNever; }
  bool is_connected(int) override { return false; }
  bool send_control(int, std::span<const std::byte>, double) override { return false; }
  ControlMessage next_control(double) override { return {ControlMessage::kOver, {}}; }
  void end_control() override {}
  void set_watchdog(const WakeUp*) override {}
  void leave() override {}
  void stop() override {}
  void abandon() override {}

 private:
  const std::atomic<std::uint32_t> never_{0};
  const std::string address_;
};

}  // namespace lockstep
