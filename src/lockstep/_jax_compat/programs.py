"""Compiled programs: noting them, running code around their executions, a compiler pass."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import io
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from types import CodeType
from typing import Any

from lockstep._jax_compat import hooks

_EXECUTES = os.path.join("jax", "_src", "interpreters", "pxla.py")
_PASSES = ("jax._src.xla_transform", "jax.extend.xla")
"""Modules that register compiler passes. An import of jax.extend imports Pallas too, which took a
fifth of the start of each process."""
_noting: dict[str, Callable[[Any], None]] = {}
"""Platform -> what is called with each program of a client for it."""


def note_programs(client: Any, note: Callable[[Any], None]) -> None:
    """Calls ``note`` with each program that ``client`` compiles or loads from now on.

    The programs of later clients for the same platform are passed too. ``note`` must raise nothing.
    Raises TypeError or AttributeError where the class of this jaxlib's clients cannot be changed.
    """
    kind, platform = type(client), client.platform
    if platform in _noting:
        _noting[platform] = note
        return
    # The two that are known have to be there; what may come beside them is named like them.
    names = {"compile_and_load", "deserialize_executable"}
    names |= {name for name in dir(kind) if name.startswith(("compile", "deserialize", "load"))}
    makers = {name: getattr(kind, name) for name in names}

    def wrap(make: Any) -> Any:
        def making(self: Any, *args: Any, **options: Any) -> Any:
            made = make(self, *args, **options)
            if hasattr(made, "local_devices") and self.platform == platform:
                _noting[platform](made)
            return made

        return making

    _noting[platform] = note
    for name, make in makers.items():
        setattr(kind, name, wrap(make))


def around_executions(around: Callable[[Callable[[], Any]], Any]) -> None:
    """Passes every execution of a compiled program to ``around``, which has to call it.

    The call returns when the program has run. JAX's fast path, which executes a known program
    without running Python code, is disabled.
    """
    import jax

    pxla: Any = importlib.import_module("jax._src.interpreters.pxla")
    call, _ = pxla.ExecuteReplicated.__call__, pxla.MeshExecutableFastpathData

    def execute(self: Any, *args: Any) -> Any:
        def run() -> Any:
            results = jax.block_until_ready(call(self, *args))
            if not results and (self.has_unordered_effects or self.ordered_effects):
                jax.effects_barrier()
            return results

        return around(run)

    pxla.ExecuteReplicated.__call__ = execute
    _disable_fast_path(pxla)


def _disable_fast_path(pxla: Any) -> None:
    # What a program's first execution hands to the shortcut; None is "there is none".
    pxla.MeshExecutableFastpathData = lambda *_: None


def before_executions(watch: Callable[[Any, str], Callable[[Sequence[Any]], None]]) -> None:
    """Passes the arguments of every execution of a compiled program to a function of that program.

    ``watch`` makes the function, from the program and its name, at the first execution. It gets the
    arguments as the program does: those that it uses, with the program's shardings, keys as
    integers. What it raises is raised in place of the execution. JAX's fast path is disabled.
    """
    pxla: Any = importlib.import_module("jax._src.interpreters.pxla")
    call, _ = pxla.ExecuteReplicated.__call__, pxla.MeshExecutableFastpathData
    _ = pxla.ExecuteReplicated.in_handler, pxla.ExecuteReplicated.xla_executable

    def execute(self: Any, *args: Any) -> Any:
        if not isinstance(self.in_handler, _Watched):
            self.in_handler = _Watched(self.in_handler, watch(self.xla_executable, self.name))
        return call(self, *args)

    pxla.ExecuteReplicated.__call__ = execute
    _disable_fast_path(pxla)


class _Watched(hooks.InPlaceOf):
    """What makes the arguments of a program out of those of a call, and passes them on."""

    def __init__(self, handler: Any, before: Callable[[Sequence[Any]], None]) -> None:
        super().__init__(handler)
        self._before = before

    def __call__(self, given: Any) -> Any:
        arguments = self._original(given)
        self._before(arguments)
        return arguments


def around_compilations(
    around: Callable[[Any, Sequence[Any], Any, Callable[[], Any]], Any],
) -> None:
    """Passes every compilation to ``around``: the module, its devices in order, the options of the
    compiler, and the work.

    ``around`` has to do the work and return what it returns. Programs that come from the persistent
    cache are passed too.
    """
    compiler: Any = importlib.import_module("jax._src.compiler")
    compile_or_get_cached = compiler.compile_or_get_cached

    @functools.wraps(compile_or_get_cached)
    def compiling(backend: Any, module: Any, devices: Any, *args: Any, **options: Any) -> Any:
        def run() -> Any:
            return compile_or_get_cached(backend, module, devices, *args, **options)

        given = args[0] if args else options.get("compile_options")
        return around(module, list(devices.flat), given, run)

    compiler.compile_or_get_cached = compiling


def executes(code: CodeType) -> bool:
    """Whether this is JAX's code that executes a compiled program where its fast path does not."""
    return code.co_name == "__call__" and code.co_filename.endswith(_EXECUTES)


def is_compiled_function(value: Any) -> bool:
    """Whether this is a function of ``jax.jit``, which jaxlib calls on its fast path."""
    return type(value).__name__ == "PjitFunction"


_ATTRIBUTES = "mhlo.frontend_attributes"
_OPTIMIZATIONS = (
    "optimization_level",
    "exec_time_optimization_effort",
    "xla_backend_optimization_level",
    "xla_llvm_disable_expensive_passes",
    "xla_disable_hlo_passes",
)
"""What JAX's settings change in the options of the compiler, and what may change a number."""


def changed_options(options: Any) -> list[str]:
    """``["xla_cpu_enable_fast_math=True"]``: what a program asks of the compiler for itself."""
    found = [f"{name}={value}" for name, value in options.env_option_overrides]
    given, default = (one.executable_build_options for one in (options, type(options)()))
    for name in _OPTIMIZATIONS:
        value, usual = (
            getattr(one if hasattr(one, name) else one.debug_options, name, None)
            for one in (given, default)
        )
        if value != usual:
            found.append(f"{name}={value}")
    return sorted(found)


@contextlib.contextmanager
def marked(module: Any, name: str, value: str) -> Iterator[None]:
    """Makes an attribute a part of a module that is compiled in the block.

    It is in the text and the fingerprint of the executable. The compiler does nothing with it.
    """
    ir: Any = importlib.import_module("jaxlib.mlir.ir")
    attributes = module.operation.attributes
    has_others = _ATTRIBUTES in attributes
    before: Any = attributes[_ATTRIBUTES] if has_others else ()
    with module.context:
        own = {one.name: one.attr for one in before} | {name: ir.StringAttr.get(value)}
        attributes[_ATTRIBUTES] = ir.DictAttr.get(own)
    try:
        yield
    finally:
        if has_others:
            attributes[_ATTRIBUTES] = before
        else:
            del attributes[_ATTRIBUTES]


def bytes_of_module(module: Any) -> tuple[str, bytes, bytes]:
    """The name of a module that is to be compiled, its bytes without locations, and with them."""
    manager: Any = importlib.import_module("jaxlib.mlir.passmanager")
    name = str(module.operation.attributes["sym_name"]).strip('"')
    with module.context:
        bare = module.operation.clone()
        strip = manager.PassManager.parse("builtin.module(strip-debuginfo)")
        strip.enable_verifier(False)  # which takes nearly all of the time, for locations alone
        strip.run(bare.operation)
        data = _bytecode(bare)
        if any(word in data for word in _WITH_POINTERS):
            bare.operation.walk(_without_pointers)
            data = _bytecode(bare)
    return name, data, _bytecode(module)


_WITH_POINTERS = (b"callback", b"CustomSPMDPartitioning")


def _without_pointers(operation: Any) -> Any:
    """Removes what is another number in each process, as JAX does for its compilation cache."""
    ir: Any = importlib.import_module("jaxlib.mlir.ir")
    if operation.name == "stablehlo.custom_call":
        target = operation.attributes["call_target_name"].value
        if any(word.decode() in target for word in _WITH_POINTERS):
            operation.attributes["backend_config"] = ir.StringAttr.get("")
    return ir.WalkResult.ADVANCE


def _bytecode(module: Any) -> bytes:
    written = io.BytesIO()
    module.operation.write_bytecode(file=written)
    return written.getvalue()


_COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-")


def text_of_executable(executable: Any, *, origins: bool = False) -> str:
    """The text of a compiled program, without large constants; "" where jaxlib has none.

    ``origins``: with the lines and names of the Python program, and with what the compiler chose
    for each instruction. A third of the text is that.
    """
    try:
        return "\n".join(_text(module, origins) for module in executable.hlo_modules())
    except Exception:  # an executable of another backend may have no HLO; its type of error varies
        return ""


def _text(module: Any, origins: bool) -> str:
    # jaxlib 0.8 has the options in another module than later ones.
    options = sys.modules[type(module).__module__].HloPrintOptions()
    options.print_metadata = options.print_backend_config = origins
    options.print_program_shape = False  # the parameters of each computation say it again
    text = module.to_string(options)
    if " custom-call(" in text and not origins:  # its configuration says what it computes
        options.print_backend_config = True
        text = module.to_string(options)
    return text


_NAME_OF_ARGUMENT = re.compile(r'loc\("((?:[^"\\]|\\.)*)"[()]')
"""The location of an argument; a colon follows the name of a file."""


def names_of_arguments(module: Any) -> tuple[str, ...]:
    """The names that JAX gave to the arguments of a module that is to be compiled."""
    for one in module.body.operations:
        if one.operation.name == "func.func" and one.attributes["sym_name"].value == "main":
            return tuple(_name_at(each.location) for each in one.arguments)
    return ()


def _name_at(location: Any) -> str:
    if type(location).__name__ == "NameLoc":  # of newer jaxlibs: a fifth of the time of its text
        return location.name_str
    found = _NAME_OF_ARGUMENT.match(str(location))
    return found[1] if found else ""


def has_collectives(text: str) -> bool:
    """Whether a compiled program has collectives; True where its text is not known."""
    return not text or any(name in text for name in _COLLECTIVES)


def text_of_module(bytecode: bytes) -> str:
    """The text of a module with its locations, from what `bytes_of_module` has made.

    Without the values of large constants, which may have gigabytes.
    """
    mlir: Any = importlib.import_module("jax._src.interpreters.mlir")
    ir: Any = importlib.import_module("jaxlib.mlir.ir")
    with mlir.make_ir_context() as context:
        module = ir.Module.parse(bytecode, context)
        return module.operation.get_asm(enable_debug_info=True, large_elements_limit=1 << 12)


def has_passes() -> bool:
    """Whether this jax has a place for a compiler pass (`register_pass`): 0.10.2 and later."""
    return any(importlib.util.find_spec(name) for name in _PASSES)


def is_refused_type(error: BaseException) -> bool:
    """Whether XLA raised this because its MPI interface does not support a collective's type."""
    return "Unsupported primitive type" in str(error)


def register_pass(name: str, transform: Callable[[bytes], bytes | None]) -> None:
    """Makes XLA call ``transform`` with each CPU program after partitioning (a serialized module).

    Since jax 0.11 this makes JAX's backends, so JAX must be distributed by then.
    """
    passes: Any = importlib.import_module(next(filter(importlib.util.find_spec, _PASSES)))

    def blamed(module: bytes) -> bytes | None:
        with hooks.blaming():
            return transform(module)

    passes.register_hlo_module_transformation(blamed, name=name, platforms="cpu")


def add_to_cache_key(part: Callable[[], str]) -> None:
    """Makes ``part()`` a part of the key of each program in JAX's persistent compilation cache.

    Raises AttributeError where this jax has no place for it.
    """
    cache_key: Any = importlib.import_module("jax._src.cache_key")
    before: Callable[[], str] = cache_key.custom_hook
    cache_key.custom_hook = lambda: before() + part()
