"""Other hosts: the agent of each, the connection to it, and the checks before a start.

A job has its agents from one of two commands. Under ``lockstep run --hosts`` the launcher starts
one on each host, and the agent starts the processes:

    host_list, allocation                  which hosts; on a batch system, those of the allocation
    starters                               the command that starts an agent there: ssh, srun
    fleet, connection                      all agents, and the connection to each
    agent, host_agent, host_attempt        the agent: its loop, what it serves, and its processes
                                           in one attempt
    several_hosts                          the hosts of a job over all its attempts
    remote_processes, remote_process       the processes, as the launcher sees them
    returning_hosts, host_changes          hosts that are lost, and come back
    host_network, host_query, host_records what an agent answers: to watchdogs, to
                                           ``lockstep report``, and the records that it sends
    relay                                  connections of processes, carried to the launcher

Under ``lockstep worker`` a cluster's launcher starts the agents, each the parent of one program:

    agent, worker_agent, worker_attempt    the agent: its loop, what it obeys, and its program in
                                           one attempt
    joined_agents                          all agents, as the supervisor sees them
    agent_messages                         what an agent sends over it
    agent_attempts, agent_processes        all attempts, and the programs of one, as the
                                           supervisor sees them
    node_range                             ``--nnodes``: with how many nodes a job runs

Both have `lease`, under which a host ends before others get its place, and `membership`, which
says which hosts run processes.
"""
