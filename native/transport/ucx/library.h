// The functions of UCX that the transport needs, from a libucp that is opened at run time.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "base/symbol.h"
#include "transport/ucx/ucp.h"

namespace lockstep::ucp {

class Library {
 public:
  // Opens the first of these that there is. Throws Error, with what was tried, when there is none,
  // or when it is too old.
  explicit Library(const std::vector<std::string>& candidates);

  const std::string& version() const { return version_; }
  // Before 1.14 UCX has crashed when two processes connected to each other over several network
  // interfaces with TCP.
  bool takes_several_networks() const { return numbers_[1] >= 14; }
  std::string text_of(Status status) const { return status_string(status); }
  // Throws Error, of what has failed, unless the status is kOk.
  void check(Status status, const char* what) const;

 private:
  void* const handle_;  // stays open for good: UCX has threads, and handlers for the exit

 public:
  void* symbol(const char* name) const;

  Symbol<void(unsigned*, unsigned*, unsigned*)> get_version{*this, "ucp_get_version"};
  Symbol<const char*(Status)> status_string{*this, "ucs_status_string"};
  Symbol<Status(const char*, const char*, Config**)> config_read{*this, "ucp_config_read"};
  Symbol<Status(Config*, const char*, const char*)> config_modify{*this, "ucp_config_modify"};
  Symbol<void(Config*)> config_release{*this, "ucp_config_release"};
  Symbol<Status(unsigned, unsigned, const Params*, const Config*, Context**)> init{
      *this, "ucp_init_version"};
  Symbol<void(Context*)> cleanup{*this, "ucp_cleanup"};
  Symbol<Status(Context*, const WorkerParams*, Worker**)> worker_create{*this, "ucp_worker_create"};
  Symbol<void(Worker*)> worker_destroy{*this, "ucp_worker_destroy"};
  Symbol<Status(Worker*, WorkerAttributes*)> worker_query{*this, "ucp_worker_query"};
  Symbol<void(Worker*, void*)> worker_release_address{*this, "ucp_worker_release_address"};
  Symbol<unsigned(Worker*)> worker_progress{*this, "ucp_worker_progress"};
  Symbol<Status(Worker*, int*)> worker_get_efd{*this, "ucp_worker_get_efd"};
  Symbol<Status(Worker*)> worker_arm{*this, "ucp_worker_arm"};
  Symbol<Status(Worker*)> worker_signal{*this, "ucp_worker_signal"};
  Symbol<StatusPointer(Worker*, const RequestParam*)> worker_flush{*this, "ucp_worker_flush_nbx"};
  Symbol<Status(Worker*, const HandlerParam*)> set_handler{*this, "ucp_worker_set_am_recv_handler"};
  Symbol<Status(Worker*, const EpParams*, Ep**)> ep_create{*this, "ucp_ep_create"};
  Symbol<StatusPointer(Ep*, const RequestParam*)> ep_close{*this, "ucp_ep_close_nbx"};
  Symbol<StatusPointer(Ep*, unsigned, const void*, std::size_t, const void*, std::size_t,
                       const RequestParam*)>
      send{*this, "ucp_am_send_nbx"};
  Symbol<StatusPointer(Worker*, void*, void*, std::size_t, const RequestParam*)> receive{
      *this, "ucp_am_recv_data_nbx"};
  Symbol<void(Worker*, void*)> request_cancel{*this, "ucp_request_cancel"};
  Symbol<Status(void*)> request_status{*this, "ucp_request_check_status"};
  Symbol<void(void*)> request_free{*this, "ucp_request_free"};

 private:
  const std::array<unsigned, 3> numbers_;
  const std::string version_;
};

}  // namespace lockstep::ucp
