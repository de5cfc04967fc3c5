// The choice of an algorithm for each call of a collective: one table for jobs of one host, one for
// several hosts, of which LOCKSTEP_ALGORITHMS may prescribe a row. jaxlib calls
// api/communicator.cc, where the leader of a process has the calls of all its ranks and calls
// run_collective() here; the row that holds runs, from within_host/ or between_hosts/.
#include "collectives/collectives.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <limits>
#include <optional>
#include <string_view>

#include "base/copy.h"
#include "base/error.h"
#include "collectives/slice.h"

namespace lockstep {

namespace {

// Up to this size every process adds up all: of more, that costs more than a second round.
constexpr std::size_t kOneRoundBytes = 32 << 10;
// With more hosts, slices of one member become short, and messages many.
constexpr std::size_t kMaxDirectHosts = 16;
// With shorter slices the many messages of a ring take longer than doubling with all bytes.
constexpr std::size_t kMinRingSlice = 16 << 10;

using Condition = bool (*)(CollectiveContext&, Calls);

bool in_one_process(CollectiveContext& context, Calls) { return context.locals() == 1; }
bool is_small(CollectiveContext&, Calls calls) { return calls[0]->bytes() <= kOneRoundBytes; }
bool always(CollectiveContext&, Calls) { return true; }

// Which algorithm runs: the first row of the operation whose condition holds. A condition has the
// same value in every process of the clique.
struct Algorithm {
  Op op;
  Condition condition;
  void (*run)(CollectiveContext&, Calls);
};
constexpr Algorithm kWithinHost[] = {
    {Op::kAllReduce, in_one_process, all_reduce_local},
    {Op::kAllReduce, is_small, all_reduce_one_round},
    {Op::kAllReduce, always, all_reduce_two_rounds},
    {Op::kAllGather, in_one_process, all_gather_local},
    {Op::kAllGather, always, all_gather_direct},
    {Op::kReduceScatter, in_one_process, reduce_scatter_local},
    {Op::kReduceScatter, always, reduce_scatter_direct},
    {Op::kAllToAll, in_one_process, all_to_all_local},
    {Op::kAllToAll, all_to_all_can_read, all_to_all_single_copy},
    {Op::kAllToAll, always, all_to_all_direct},
};

std::size_t num_hosts(CollectiveContext& context) { return context.clique().hosts().size(); }
bool parts_are_small(CollectiveContext& context, Calls calls) {
  return calls[0]->bytes() * static_cast<std::size_t>(context.clique().size()) <=
         kSmallBetweenHosts;
}
bool blocks_are_small(CollectiveContext& context, Calls calls) {
  return all_to_all_is_small(context.clique(), calls[0]->bytes());
}
bool is_power_of_two(CollectiveContext& context, Calls) {
  return std::has_single_bit(num_hosts(context));
}
// Between two hosts, recursive doubling sends no more bytes than the others do.
bool latency_decides(CollectiveContext& context, Calls calls) {
  return calls[0]->bytes() <= kSmallBetweenHosts || num_hosts(context) == 2;
}
bool hosts_are_few(CollectiveContext& context, Calls) {
  return num_hosts(context) <= kMaxDirectHosts;
}
bool has_long_slices(CollectiveContext& context, Calls calls) {
  return calls[0]->bytes() >= kMinRingSlice * num_hosts(context);
}

// Likewise between hosts; a job may prescribe another row, if that is `possible`.
struct CrossingAlgorithm {
  Op op;
  const char* name;
  Condition possible;
  Condition preferred;
  void (*run)(CollectiveContext&, Calls);
};
constexpr CrossingAlgorithm kBetweenHosts[] = {
    {Op::kAllReduce, "recursive-doubling", always, latency_decides, all_reduce_recursive_doubling},
    {Op::kAllReduce, "halving-doubling", is_power_of_two, always, all_reduce_halving_doubling},
    {Op::kAllReduce, "direct", always, hosts_are_few, all_reduce_direct},
    {Op::kAllReduce, "ring", always, has_long_slices, all_reduce_ring},
    {Op::kAllReduce, "recursive-doubling", always, always, all_reduce_recursive_doubling},
    {Op::kAllGather, "bruck", parts_are_small, always, all_gather_bruck},
    {Op::kAllGather, "pairwise", always, always, all_gather_pairwise},
    {Op::kReduceScatter, "recursive-doubling", parts_are_small, always,
     reduce_scatter_recursive_doubling},
    {Op::kReduceScatter, "pairwise", always, always, reduce_scatter_pairwise},
    {Op::kAllToAll, "bruck", blocks_are_small, always, all_to_all_bruck},
    {Op::kAllToAll, "pairwise", always, always, all_to_all_pairwise},
};

std::string names_of(Op op) {
  std::string names;
  for (const CrossingAlgorithm& algorithm : kBetweenHosts)
    if (algorithm.op == op && names.find(algorithm.name) == std::string::npos)
      names += (names.empty() ? "" : ", ") + std::string(algorithm.name);
  return names;
}

// "65536", "64KiB", "1MiB"; nothing for any other text.
std::optional<std::size_t> bytes_of(std::string_view text) {
  constexpr std::string_view kUnits[] = {"", "KiB", "MiB", "GiB"};
  std::size_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return {};
  const auto* const unit = std::ranges::find(kUnits, text.substr(end - text.data()));
  if (unit == std::end(kUnits)) return {};
  const auto shift = 10 * static_cast<unsigned>(unit - kUnits);
  if (number > std::numeric_limits<std::size_t>::max() >> shift) return {};
  return number << shift;
}

// "all-reduce=ring", or up to a size, "all-reduce=ring:64KiB".
Prescribed prescribed(const std::string& text) {
  constexpr Op kOps[] = {Op::kAllReduce, Op::kAllGather, Op::kReduceScatter, Op::kAllToAll};
  const std::size_t equals = std::min(text.find('='), text.size());
  const std::string op = text.substr(0, equals);
  const std::size_t colon = std::min(text.find(':', equals), text.size());
  const std::string name =
      text.substr(std::min(equals + 1, colon), colon - std::min(equals + 1, colon));
  const auto most = colon == text.size() ? std::numeric_limits<std::size_t>::max()
                                         : bytes_of(std::string_view(text).substr(colon + 1));
  for (const CrossingAlgorithm& row : kBetweenHosts)
    if (op == name_of(row.op) && name == row.name && most) return {row.op, name, *most};
  std::string all;
  for (const Op each : kOps)
    all += (all.empty() ? "" : "; ") + std::string(name_of(each)) + "=" + names_of(each);
  throw Error("lockstep: LOCKSTEP_ALGORITHMS has \"" + text + "\". There is " + all +
              ". A size may follow, as in " + name_of(Op::kAllReduce) + "=" +
              kBetweenHosts[0].name + ":64KiB: up to that many bytes of each device.");
}

// What a device puts in: the call counts the results of a reduce-scatter, and one block of an
// all-to-all.
std::size_t input_bytes(CollectiveContext& context, Calls calls) {
  const bool counts_a_part = calls[0]->op == Op::kReduceScatter || calls[0]->op == Op::kAllToAll;
  const int parts = counts_a_part ? context.clique().size() : 1;
  return calls[0]->bytes() * static_cast<std::size_t>(parts);
}

const CrossingAlgorithm& choose_between_hosts(CollectiveContext& context, Calls calls) {
  const Op op = calls[0]->op;
  for (const Prescribed& wanted : context.clique().job().algorithms())
    for (const CrossingAlgorithm& algorithm : kBetweenHosts)
      if (wanted.op == op && algorithm.op == op && wanted.algorithm == algorithm.name &&
          input_bytes(context, calls) <= wanted.max_bytes && algorithm.possible(context, calls))
        return algorithm;
  for (const CrossingAlgorithm& algorithm : kBetweenHosts)
    if (algorithm.op == op && algorithm.possible(context, calls) &&
        algorithm.preferred(context, calls))
      return algorithm;
  throw Error("lockstep: not a collective of the whole group.");
}

}  // namespace

std::vector<Prescribed> prescribed_algorithms(const std::string& text) {
  std::vector<Prescribed> found;
  for (std::size_t start = 0; start < text.size();) {
    const std::size_t end = std::min(text.find(',', start), text.size());
    found.push_back(prescribed(text.substr(start, end - start)));
    start = end + 1;
  }
  return found;
}

// Prepares the memory of the results of one rank.
void prepare_results(const Clique& clique, const Call& call) {
  const std::size_t parts = call.op == Op::kAllGather ? static_cast<std::size_t>(clique.size()) : 1;
  if (call.out != nullptr) ask_for_huge_pages(call.out, parts * call.bytes());
  for (std::byte* out : call.outs)
    if (out != nullptr) ask_for_huge_pages(out, call.bytes());
}

void run_collective(Clique& clique, Calls calls, std::uint32_t sequence) {
  CollectiveContext context(clique, calls, sequence);
  for (const Call* call : calls) prepare_results(clique, *call);
  if (clique.hosts().size() > 1) return choose_between_hosts(context, calls).run(context, calls);
  for (const Algorithm& algorithm : kWithinHost)
    if (algorithm.op == calls[0]->op && algorithm.condition(context, calls))
      return algorithm.run(context, calls);
  throw Error("lockstep: not a collective of the whole group.");
}

std::size_t elements_per_part(const Clique& clique, std::size_t parts, std::size_t width) {
  const std::size_t bytes = clique.capacity() / parts;
  if (bytes < width)
    throw Error("lockstep: " + clique.describe() + " are too many for one message of " +
                std::to_string(clique.capacity() >> 10) + " KiB.");
  return (bytes < kCacheLine ? bytes : bytes / kCacheLine * kCacheLine) / width;
}

}  // namespace lockstep
