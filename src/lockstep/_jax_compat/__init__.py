"""All uses of private JAX, and all code that depends on the version of JAX.

For a new jax, check this folder for Python's names, and for jaxlib's internals `callsites`
(farmhash, highwayhash), `hlo.proto`, native/xla_probe and native/api/mpitrampoline; tests/facts
holds what they rely on. No module here imports jax at import time, because
`import lockstep` must come before jaxlib is loaded and must be fast. Hooks fail soft (`hooks`): if
a jax lacks a name that a hook needs, the hook is left out, and one line names the lost feature.
"""

from lockstep._jax_compat.arrays import failure as failure
from lockstep._jax_compat.arrays import note_ambiguous_shardings as note_ambiguous_shardings
from lockstep._jax_compat.arrays import note_unreadable_values as note_unreadable_values
from lockstep._jax_compat.arrays import under_derivatives as under_derivatives
from lockstep._jax_compat.arrays import varying_axes as varying_axes
from lockstep._jax_compat.arrays import watch_failures as watch_failures
from lockstep._jax_compat.backends import all_devices as all_devices
from lockstep._jax_compat.backends import around_backends as around_backends
from lockstep._jax_compat.backends import around_cpu_client as around_cpu_client
from lockstep._jax_compat.backends import check_collectives as check_collectives
from lockstep._jax_compat.backends import computing_devices as computing_devices
from lockstep._jax_compat.backends import device_lists as device_lists
from lockstep._jax_compat.backends import end_wait_for_devices as end_wait_for_devices
from lockstep._jax_compat.backends import has_backend as has_backend
from lockstep._jax_compat.backends import live_executables as live_executables
from lockstep._jax_compat.backends import local_devices as local_devices
from lockstep._jax_compat.backends import platforms as platforms
from lockstep._jax_compat.backends import wait_for_dispatched as wait_for_dispatched
from lockstep._jax_compat.barriers import BARRIERS as BARRIERS
from lockstep._jax_compat.barriers import BARRIERS_LOST as BARRIERS_LOST
from lockstep._jax_compat.barriers import fail_barriers_together as fail_barriers_together
from lockstep._jax_compat.callbacks import CALLBACKS as CALLBACKS
from lockstep._jax_compat.callbacks import CALLBACKS_LOST as CALLBACKS_LOST
from lockstep._jax_compat.callbacks import watch_callbacks as watch_callbacks
from lockstep._jax_compat.cluster import HasRank as HasRank
from lockstep._jax_compat.cluster import register_cluster as register_cluster
from lockstep._jax_compat.distributed import check_distributed as check_distributed
from lockstep._jax_compat.distributed import coordination_service as coordination_service
from lockstep._jax_compat.distributed import coordinator_address as coordinator_address
from lockstep._jax_compat.distributed import distributed_client as distributed_client
from lockstep._jax_compat.distributed import distributed_place as distributed_place
from lockstep._jax_compat.distributed import heartbeat_seconds as heartbeat_seconds
from lockstep._jax_compat.distributed import is_taken as is_taken
from lockstep._jax_compat.distributed import is_timeout as is_timeout
from lockstep._jax_compat.distributed import is_unreachable as is_unreachable
from lockstep._jax_compat.distributed import service_answers as service_answers
from lockstep._jax_compat.distributed import set_client_aside as set_client_aside
from lockstep._jax_compat.distributed import wait_for_others as wait_for_others
from lockstep._jax_compat.hooks import install as install
from lockstep._jax_compat.hooks import is_in as is_in
from lockstep._jax_compat.hooks import report as report
from lockstep._jax_compat.hooks import report_version as report_version
from lockstep._jax_compat.importing import after_jax_import as after_jax_import
from lockstep._jax_compat.importing import jaxlib_is_loaded as jaxlib_is_loaded
from lockstep._jax_compat.launches import LAUNCHES as LAUNCHES
from lockstep._jax_compat.launches import LAUNCHES_LOST as LAUNCHES_LOST
from lockstep._jax_compat.launches import note_launches as note_launches
from lockstep._jax_compat.planning import plan_devices as plan_devices
from lockstep._jax_compat.plug import jaxlib_library as jaxlib_library
from lockstep._jax_compat.plug import names_missing as names_missing
from lockstep._jax_compat.plug import names_wanted as names_wanted
from lockstep._jax_compat.programs import add_to_cache_key as add_to_cache_key
from lockstep._jax_compat.programs import around_compilations as around_compilations
from lockstep._jax_compat.programs import around_executions as around_executions
from lockstep._jax_compat.programs import before_executions as before_executions
from lockstep._jax_compat.programs import bytes_of_module as bytes_of_module
from lockstep._jax_compat.programs import executes as executes
from lockstep._jax_compat.programs import has_collectives as has_collectives
from lockstep._jax_compat.programs import has_passes as has_passes
from lockstep._jax_compat.programs import is_compiled_function as is_compiled_function
from lockstep._jax_compat.programs import is_refused_type as is_refused_type
from lockstep._jax_compat.programs import note_programs as note_programs
from lockstep._jax_compat.programs import register_pass as register_pass
from lockstep._jax_compat.programs import text_of_module as text_of_module
from lockstep._jax_compat.settings import choose_collectives as choose_collectives
from lockstep._jax_compat.settings import setting as setting
from lockstep._jax_compat.survival import SURVIVAL as SURVIVAL
from lockstep._jax_compat.survival import SURVIVAL_LOST as SURVIVAL_LOST
from lockstep._jax_compat.survival import Survival as Survival
from lockstep._jax_compat.survival import is_recoverable as is_recoverable
from lockstep._jax_compat.survival import survive_dead_peers as survive_dead_peers
from lockstep._jax_compat.texts import is_of_collective as is_of_collective
from lockstep._jax_compat.tracing import current_mesh as current_mesh
from lockstep._jax_compat.tracing import is_tracer as is_tracer
from lockstep._jax_compat.tracing import meshes_in as meshes_in
from lockstep._jax_compat.tracing import ordered_devices as ordered_devices
from lockstep._jax_compat.tracing import unmapped as unmapped
from lockstep._jax_compat.versions import KNOWN_PROBLEMS as KNOWN_PROBLEMS
from lockstep._jax_compat.versions import NEWEST_TESTED_JAX as NEWEST_TESTED_JAX
from lockstep._jax_compat.versions import OLDEST_JAX as OLDEST_JAX
from lockstep._jax_compat.versions import device_id_bytes as device_id_bytes
from lockstep._jax_compat.versions import dotted as dotted
from lockstep._jax_compat.versions import is_untested as is_untested
from lockstep._jax_compat.versions import jaxlib_version_on_disk as jaxlib_version_on_disk
from lockstep._jax_compat.versions import numbers_programs as numbers_programs
from lockstep._jax_compat.versions import pin as pin
from lockstep._jax_compat.versions import release as release
from lockstep._jax_compat.versions import unreadable_requests as unreadable_requests
from lockstep._jax_compat.versions import untested_note as untested_note
