"""Variables that real launchers set, captured, for tests of what Lockstep reads from them."""

from __future__ import annotations

from lockstep.bootstrap.cluster_env import RankInfo, detect
from lockstep.bootstrap.cluster_env._place import Read


def parse(dump: str) -> dict[str, str]:
    return dict(line.strip().split("=", 1) for line in dump.strip().splitlines())


# Task 5 of `srun -N 3 -n 8`, second step of job 123456.
SLURM = parse("""
    SLURM_CLUSTER_NAME=hpc
    SLURM_JOB_ID=123456
    SLURM_JOBID=123456
    SLURM_JOB_NODELIST=n[001-004]
    SLURM_JOB_NUM_NODES=4
    SLURM_LAUNCH_NODE_IPADDR=10.1.0.1
    SLURM_LOCALID=1
    SLURM_NNODES=3
    SLURM_NODEID=1
    SLURM_NODELIST=n[002-004]
    SLURM_NPROCS=8
    SLURM_NTASKS=8
    SLURM_PROCID=4
    SLURM_SRUN_COMM_PORT=38745
    SLURM_STEPID=1
    SLURM_STEP_ID=1
    SLURM_STEP_NODELIST=n[002-004]
    SLURM_STEP_NUM_NODES=3
    SLURM_STEP_NUM_TASKS=8
    SLURM_STEP_TASKS_PER_NODE=3(x2),2
    SLURM_TASKS_PER_NODE=3(x2),2
    SLURM_TASK_PID=4711
    SLURM_TOPOLOGY_ADDR=n003
""")
# A batch script: variables of the allocation only.
SBATCH = parse("""
    SLURM_JOB_ID=123456
    SLURM_JOB_NODELIST=n[001-004]
    SLURM_JOB_NUM_NODES=4
    SLURM_LOCALID=0
    SLURM_NODEID=0
    SLURM_NTASKS=8
    SLURM_PROCID=0
    SLURM_TASKS_PER_NODE=2(x4)
""")
OPEN_MPI_4 = parse("""
    OMPI_APP_CTX_NUM_PROCS=2
    OMPI_COMMAND=python
    OMPI_COMM_WORLD_LOCAL_RANK=1
    OMPI_COMM_WORLD_LOCAL_SIZE=2
    OMPI_COMM_WORLD_NODE_RANK=1
    OMPI_COMM_WORLD_RANK=1
    OMPI_COMM_WORLD_SIZE=2
    OMPI_MCA_ess_base_jobid=33751041
    OMPI_MCA_orte_hnp_uri=33751040.0;tcp://192.0.2.2:49697;tcp6://[fd00::2]:54391
    OMPI_MCA_orte_num_nodes=1
    OMPI_UNIVERSE_SIZE=2
    PMIX_HOSTNAME=vm
    PMIX_ID=33751041.1
    PMIX_NAMESPACE=33751041
    PMIX_RANK=1
    PMIX_SERVER_URI41=33751040.0;tcp4://127.0.0.1:54889
    PMIX_VERSION=4.2.2rc2
""")
OPEN_MPI_5 = parse("""
    OMPI_COMM_WORLD_LOCAL_RANK=0
    OMPI_COMM_WORLD_LOCAL_SIZE=2
    OMPI_COMM_WORLD_NODE_RANK=0
    OMPI_COMM_WORLD_RANK=2
    OMPI_COMM_WORLD_SIZE=4
    OMPI_UNIVERSE_SIZE=8
    PMIX_HOSTNAME=n002
    PMIX_NAMESPACE=prterun-n001-28413@1
    PMIX_RANK=2
    PMIX_SERVER_URI41=prterun-n001-28413@0.1;tcp4://10.1.0.2:40911
    PMIX_VERSION=5.0.3
    PRTE_LAUNCHED=1
""")
MPICH = parse("""
    HYDI_CONTROL_FD=7
    MPI_LOCALNRANKS=2
    MPI_LOCALRANKID=1
    PMI_FD=11
    PMI_HOSTNAME=vm
    PMI_RANK=1
    PMI_SIZE=2
""")
CRAY_PALS = parse("""
    PALS_APID=8f9d3c52-f5a4-4b6a-9a1f-6ed3c5a4c7de
    PALS_DEPTH=1
    PALS_LOCAL_RANKID=3
    PALS_LOCAL_SIZE=4
    PALS_NODEID=1
    PALS_RANKID=7
    PMI_LOCAL_RANK=3
    PMI_LOCAL_SIZE=4
    PMI_RANK=7
    PMI_SIZE=8
""")
TORCHRUN = parse("""
    GROUP_RANK=1
    GROUP_WORLD_SIZE=2
    LOCAL_RANK=1
    LOCAL_WORLD_SIZE=2
    MASTER_ADDR=n001
    MASTER_PORT=29500
    RANK=3
    ROLE_RANK=3
    TORCHELASTIC_RUN_ID=none
    TORCHELASTIC_USE_AGENT_STORE=True
    WORLD_SIZE=4
""")
# The second of two pods of a TrainJob "train" with the runtime jax-distributed. The index is from
# the controller of the Job that the Trainer makes.
TRAINJOB = parse("""
    HOSTNAME=train-node-0-1
    JAX_COORDINATOR_ADDRESS=train-node-0-0.train:29500
    JAX_COORDINATOR_PORT=29500
    JAX_DISTRIBUTED_BACKEND=gloo
    JAX_NUM_PROCESSES=2
    JAX_PROCESS_ID=1
    JOB_COMPLETION_INDEX=1
    KUBERNETES_SERVICE_HOST=10.96.0.1
""")
# The third of three pods of a JAXJob of the training operator.
JAXJOB = parse("""
    COORDINATOR_ADDRESS=jaxjob-simple-worker-0
    COORDINATOR_PORT=6666
    HOSTNAME=jaxjob-simple-worker-2
    NUM_PROCESSES=3
    PROCESS_ID=2
    PYTHONUNBUFFERED=1
""")
# The second of two nodes of a SkyPilot task; it puts one address on each line.
SKYPILOT = {
    "SKYPILOT_NODE_IPS": "10.0.0.4\n10.0.0.5",
    "SKYPILOT_NODE_RANK": "1",
    "SKYPILOT_NUM_GPUS_PER_NODE": "0",
    "SKYPILOT_NUM_NODES": "2",
    "SKYPILOT_TASK_ID": "sky-2026-11-27-10-00-00-000000_train_1",
}


def torchrun(
    rank: int, size: int, each: int, port: int | str, address: str = "127.0.0.1"
) -> dict[str, str]:
    """The variables by which torchrun places a process, with ``each`` processes on a node."""
    place = {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank % each)}
    at = {"MASTER_ADDR": address, "MASTER_PORT": str(port)}
    return {**place, **at, "LOCAL_WORLD_SIZE": str(each)}


def place(*values: object) -> RankInfo:
    return RankInfo(*values)  # type: ignore[arg-type]


def coordinator(environ: dict[str, str], *read: Read) -> str | None:
    """The address of the coordinator, where the variables place a process."""
    found = detect(environ, *read)
    assert found is not None
    return found.coordinator
