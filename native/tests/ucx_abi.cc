// Our copies of UCX's structures against UCX's headers, where those are installed.
#include "transport/ucx/ucp.h"

#if __has_include(<ucp/api/ucp.h>)
#include <ucp/api/ucp.h>

namespace lockstep::ucp {

#define SAME_SIZE(OURS, THEIRS) static_assert(sizeof(OURS) <= sizeof(THEIRS))
#define SAME_PLACE(OURS, FIELD, THEIRS, THEIR_FIELD)                     \
  static_assert(offsetof(OURS, FIELD) == offsetof(THEIRS, THEIR_FIELD)); \
  static_assert(sizeof(OURS::FIELD) == sizeof(THEIRS::THEIR_FIELD))

static_assert(sizeof(Status) == sizeof(ucs_status_t));
static_assert(kOk == UCS_OK && kInProgress == UCS_INPROGRESS);
static_assert(UCS_ERR_LAST == -100);

SAME_SIZE(Params, ucp_params_t);
SAME_PLACE(Params, field_mask, ucp_params_t, field_mask);
SAME_PLACE(Params, features, ucp_params_t, features);
SAME_PLACE(Params, estimated_num_eps, ucp_params_t, estimated_num_eps);
static_assert(Params::kFeatures == UCP_PARAM_FIELD_FEATURES);
static_assert(Params::kEstimatedEps == UCP_PARAM_FIELD_ESTIMATED_NUM_EPS);
static_assert(Params::kWakeUp == UCP_FEATURE_WAKEUP && Params::kActiveMessages == UCP_FEATURE_AM);

SAME_SIZE(WorkerParams, ucp_worker_params_t);
SAME_PLACE(WorkerParams, thread_mode, ucp_worker_params_t, thread_mode);
SAME_PLACE(WorkerParams, cpu_mask, ucp_worker_params_t, cpu_mask);
SAME_PLACE(WorkerParams, flags, ucp_worker_params_t, flags);
static_assert(WorkerParams::kThreadMode == UCP_WORKER_PARAM_FIELD_THREAD_MODE);
static_assert(WorkerParams::kSerialized == UCS_THREAD_MODE_SERIALIZED);

SAME_SIZE(WorkerAttributes, ucp_worker_attr_t);
SAME_PLACE(WorkerAttributes, address_flags, ucp_worker_attr_t, address_flags);
SAME_PLACE(WorkerAttributes, address, ucp_worker_attr_t, address);
SAME_PLACE(WorkerAttributes, address_length, ucp_worker_attr_t, address_length);
SAME_PLACE(WorkerAttributes, max_am_header, ucp_worker_attr_t, max_am_header);
static_assert(WorkerAttributes::kAddress == UCP_WORKER_ATTR_FIELD_ADDRESS);
static_assert(WorkerAttributes::kAddressFlags == UCP_WORKER_ATTR_FIELD_ADDRESS_FLAGS);
static_assert(WorkerAttributes::kMaxHeader == UCP_WORKER_ATTR_FIELD_MAX_AM_HEADER);
static_assert(WorkerAttributes::kNetworkOnly == UCP_WORKER_ADDRESS_FLAG_NET_ONLY);

SAME_SIZE(EpParams, ucp_ep_params_t);
SAME_PLACE(EpParams, address, ucp_ep_params_t, address);
SAME_PLACE(EpParams, err_mode, ucp_ep_params_t, err_mode);
SAME_PLACE(EpParams, error_handler, ucp_ep_params_t, err_handler);
SAME_PLACE(EpParams, sockaddr, ucp_ep_params_t, sockaddr);
static_assert(EpParams::kAddress == UCP_EP_PARAM_FIELD_REMOTE_ADDRESS);
static_assert(EpParams::kErrorMode == UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE);
static_assert(EpParams::kErrorHandler == UCP_EP_PARAM_FIELD_ERR_HANDLER);
static_assert(EpParams::kPeerFailure == UCP_ERR_HANDLING_MODE_PEER);

SAME_SIZE(RequestParam, ucp_request_param_t);
SAME_PLACE(RequestParam, op_attr_mask, ucp_request_param_t, op_attr_mask);
SAME_PLACE(RequestParam, flags, ucp_request_param_t, flags);
SAME_PLACE(RequestParam, callback, ucp_request_param_t, cb);
SAME_PLACE(RequestParam, user_data, ucp_request_param_t, user_data);
static_assert(RequestParam::kCallback == UCP_OP_ATTR_FIELD_CALLBACK);
static_assert(RequestParam::kUserData == UCP_OP_ATTR_FIELD_USER_DATA);
static_assert(RequestParam::kFlags == UCP_OP_ATTR_FIELD_FLAGS);
static_assert(RequestParam::kForce == UCP_EP_CLOSE_FLAG_FORCE);

SAME_SIZE(ReceiveParam, ucp_am_recv_param_t);
SAME_PLACE(ReceiveParam, attributes, ucp_am_recv_param_t, recv_attr);
static_assert(ReceiveParam::kRendezvous == UCP_AM_RECV_ATTR_FLAG_RNDV);

SAME_SIZE(HandlerParam, ucp_am_handler_param_t);
SAME_PLACE(HandlerParam, id, ucp_am_handler_param_t, id);
SAME_PLACE(HandlerParam, flags, ucp_am_handler_param_t, flags);
SAME_PLACE(HandlerParam, callback, ucp_am_handler_param_t, cb);
SAME_PLACE(HandlerParam, argument, ucp_am_handler_param_t, arg);
static_assert(HandlerParam::kId == UCP_AM_HANDLER_PARAM_FIELD_ID);
static_assert(HandlerParam::kFlags == UCP_AM_HANDLER_PARAM_FIELD_FLAGS);
static_assert(HandlerParam::kCallback == UCP_AM_HANDLER_PARAM_FIELD_CB);
static_assert(HandlerParam::kArgument == UCP_AM_HANDLER_PARAM_FIELD_ARG);
static_assert(HandlerParam::kWholeMessage == UCP_AM_FLAG_WHOLE_MSG);

}  // namespace lockstep::ucp
#endif
