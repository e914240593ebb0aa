"""Compile the modules of the usual request with mypyc, for this version of Python and this kind of processor.

    python -m deploy.compile wheel FOLDER            a wheel: the sources, and beside those of _MODULES what mypyc made
    python -m deploy.compile checkout FOLDER WHEEL   this checkout, with what the wheel has compiled, its .venv, and
                                                     the wheel itself in dist/

`make -C FOLDER test` tests such a checkout.

It needs gcc, the headers of Python, and the tools of `make`'s .venv. Nothing is changed but FOLDER.
docs/decisions/0026-compiled-beside-plain.md says why, what mypyc gets wrong, and what is therefore left plain.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import types
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from mypyc.build import mypycify
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

from bench.instructions.kinds import ALL_ON, KINDS
from deploy.sources import ROOT, copy_sources, source_date

__all__ = ["main"]

# Modules of the package velox, and of no other that the wheel has.
# What a usual request passes on its way: JSON or server-sent events, HTTP/1.1 or HTTP/2 on both sides.
# Plain stay: what is pickled or read by msgspec (types, policy/routes/entries), enums with __init__ (errors, outcomes),
# TLS.
_MODULES: Final = (
    # Bytes in, values out: heads, bodies, events, both sides.
    "heads",
    "memo",
    "protocol/json/body",
    "protocol/heads/extras",
    "protocol/heads/layouts",
    "protocol/heads/memory",
    "protocol/head_template",
    "protocol/http1/request",
    "protocol/heads/fields",
    "protocol/http1/request_head",
    "protocol/http1/response",
    "protocol/http1/response_head",
    "protocol/http1/write",
    "protocol/http2/engine",
    "protocol/http2/guard",
    "protocol/http2/request_head",
    "protocol/http2/head_reader",
    "protocol/http2/ngh2_engine",
    "protocol/http2/response_head",
    "protocol/sse",
    # What a reply tells of its tokens.
    "protocol/usage/tokens",
    "protocol/usage/reader",
    # What each request asks before it is forwarded: queue, limits, health.
    "policy/health/breaker",
    "policy/queue/concurrency",
    "policy/limits/estimate",
    "policy/limits/output_guess",
    "policy/queue/fair_queue",
    "policy/health/group",
    "policy/health/keys",
    "policy/health/member",
    "policy/pace",
    "policy/queue/queue_wait",
    "policy/limits/quota",
    "policy/retries/retry",
    "policy/limits/token_bucket",
    "policy/queue/virtual_tokens",
    # Counters that the workers share; without them each count is a call from compiled code into Python.
    "shm/quota_table",
    "shm/quotas",
    "shm/record_ring",
    "shm/budget_table",
    "shm/upstream_table",
    "observe/metrics",
    # The record of a call; record is also what the ledger's process reads it by.
    "ledger/record",
    "ledger/writer",
    # From admission to account. The tunnel is no usual request, but inherits from Exchange and Reply.
    "gateway/auth",
    "gateway/access/endpoints",
    "gateway/request/exchange",
    "gateway/reply/filters",
    "gateway/translation/forward",
    "gateway/limits/reservation",
    "gateway/limits/budgets",
    "gateway/cluster/group",
    "gateway/front/intake",
    "gateway/limits/calls",
    "gateway/limits/limiter",
    "gateway/upstreams/member",
    "gateway/limits/metering",
    "gateway/reply/outcome",
    "gateway/request/parts",
    "gateway/access/plan",
    "gateway/translation/prepared",
    "gateway/reply/headers",
    "gateway/recorder",
    "gateway/request_context",
    "gateway/reply/reply",
    "gateway/cluster/routing",
    "gateway/websocket/tunnel",
    # Connections. ingress.py makes them, and inherits from ingress_state.py.
    "net/client/backlog",
    "net/client/body_budget",
    "net/client/connection",
    "net/client/http1",
    "net/client/http2",
    "net/client/ingress",
    "net/client/ingress_state",
    "net/client/plain_socket",
    "net/turn_budget",
    "net/upstream/connection",
    "net/upstream/http1",
    "net/upstream/http2",
    "net/upstream/interface",
    "net/upstream/pool",
)
# Compiled classes that plain ones inherit from, here or in tests: mypyc has to be told.
_INHERITED: Final = (
    "gateway/request/exchange:Exchange",
    "gateway/request/exchange:ExchangeOwner",
    "gateway/reply/filters:ReplyFilter",
    "gateway/cluster/group:AttemptHost",
    "gateway/front/intake:Gateway",
    "gateway/recorder:Recorder",
    "gateway/request_context:RequestContext",
    "gateway/websocket/tunnel:TunnelExchange",
    "gateway/reply/reply:Reply",
    "gateway/reply/reply:AnsweringAttempt",
    "net/client/connection:ClientConnection",
    "net/client/http1:Http1Replies",
    "net/client/ingress_state:IngressState",
    "net/upstream/connection:HttpConnection",
    "net/upstream/http1:Http1Connection",
    "policy/queue/concurrency:ConcurrencyLimit",
    "policy/queue/concurrency:FixedLimit",
    "policy/limits/estimate:Estimator",
    "policy/health/keys:Keys",
    "policy/health/member:MemberHealth",
    "protocol/http1/response:ResponseDecoder",
    "shm/budget_table:BudgetMemory",
    "shm/budget_table:BudgetTable",
    "shm/budget_table:SharedBudget",
    "shm/quota_table:QuotaMemory",
    "shm/upstream_table:UpstreamCells",
)
# Nothing but the modules' own entries is called from outside: gcc may inline the rest.
# mypyc can leave a register of a generator unset: gcc sees it, and such a module does not belong into the list.
_FLAGS: Final = (
    "-fvisibility=hidden",
    "-fno-semantic-interposition",
    "-Wno-error",
    "-Wall",
    "-Werror=maybe-uninitialized",
    "-Wno-unused-function",
    "-Wno-unused-label",
)
# gcc compiles twice: first with counters; then, knowing how often each branch was taken, as one unit. What was not
# passed in between (_train) is made small instead of fast, and set apart from what was.
_COUNTING: Final = ("-fprofile-generate",)
_COUNTED: Final = ("-fprofile-use", "-fprofile-correction", "-Wno-missing-profile", "-flto=auto")


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0, or 2 with a reason."""
    parser = argparse.ArgumentParser(prog="python -m deploy.compile", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    wheel = commands.add_parser("wheel", help="compile, and put a wheel into FOLDER")
    wheel.add_argument("folder", type=Path, metavar="FOLDER")
    wheel.add_argument("--keep", type=Path, metavar="DIR", help="leave the C files there")
    checkout = commands.add_parser("checkout", help="copy this checkout to FOLDER, with what the wheel has compiled")
    checkout.add_argument("folder", type=Path, metavar="FOLDER")
    checkout.add_argument("wheel", type=Path, metavar="WHEEL", help="one of these very sources")
    options = parser.parse_args(arguments)
    folder: Path = options.folder.resolve()
    try:
        if options.command == "wheel":
            print(_wheel(folder, options.keep and options.keep.resolve()))  # noqa: T201
        else:
            _checkout(folder, options.wheel)
    except _CompileError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 2
    return 0


class _CompileError(Exception):
    """What a person has to see to."""


def _wheel(folder: Path, keep: Path | None) -> Path:
    """Compile; return the wheel, which is in the folder."""
    if missing := _missing():
        raise _CompileError(f"missing: {missing}. On Debian: apt-get install gcc libc6-dev python3.11-dev")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="velox-compiled-") as temporary:
        build = Path(temporary)
        date = source_date(os.environ)
        copy_sources(build, date)
        os.environ["SOURCE_DATE_EPOCH"] = str(date)
        os.chdir(build)
        extensions = _translated(build)
        if keep:
            shutil.copytree(build / "build", keep, dirs_exist_ok=True)
        _set_flags(extensions, _COUNTING)
        _run_setup(extensions, "build_ext", "--inplace")
        _train(build)
        _set_flags(extensions, _COUNTED)
        _run_setup(extensions, "build_ext", "--force", "bdist_wheel", "--dist-dir", str(build / "dist"))
        (made,) = build.glob("dist/*.whl")
        return Path(shutil.copy(made, folder))


def _checkout(folder: Path, wheel: Path) -> None:
    """Copy this checkout, and put what is compiled beside its source. Both must be of the same sources."""
    if folder.exists():
        raise _CompileError(f"{folder} is there already: remove it, or name another folder")
    with zipfile.ZipFile(wheel) as packed:
        compiled = [name for name in packed.namelist() if name.endswith(".so")]
        other = [
            name
            for name in packed.namelist()
            if name.endswith(".py") and packed.read(name) != (ROOT / name).read_bytes()
        ]
        if other or not compiled:
            raise _CompileError(f"{wheel} is not of these sources ({', '.join(other[:3]) or 'nothing is compiled'})")
        _copy_checkout(folder)
        packed.extractall(folder, compiled)
    (folder / "dist").mkdir()
    shutil.copy(wheel, folder / "dist")


def _missing() -> str:
    headers = Path(sysconfig.get_path("include"), "Python.h")
    return "gcc" if shutil.which("gcc") is None else "" if headers.exists() else str(headers)


def _translated(build: Path) -> list[Extension]:
    """Return what is to be compiled; its C files are below build/. The sources are as before."""
    originals = {name: (build / name).read_text() for name in {f"velox/{each.split(':')[0]}.py" for each in _INHERITED}}
    _allow_subclasses(build)
    extensions = mypycify(
        ["--config-file", str(ROOT / "pyproject.toml"), *(f"velox/{each}.py" for each in _MODULES)],
        opt_level="3",
        debug_level="0",
        multi_file=True,
        group_name="velox.compiled",
        target_dir="build",
    )
    is_mended = False
    for each in build.glob("build/**/*.c"):
        text = each.read_text()
        mended = _with_weak_references(text)
        is_mended |= mended != text
        each.write_text(mended)
    if not is_mended:
        raise RuntimeError("this mypyc writes weak references in another way: look whether they are still to be mended")
    for name, text in originals.items():
        (build / name).write_text(text)
    headers = sorted({str(each.parent) for each in (build / "build").glob("**/*.h")})
    for extension in extensions:
        extension.include_dirs = [*extension.include_dirs, *headers]
        extension.extra_compile_args = [each for each in extension.extra_compile_args if each != "-Werror"]
    return extensions


def _set_flags(extensions: Sequence[Extension], flags: Sequence[str]) -> None:
    for extension in extensions:
        before = [each for each in extension.extra_compile_args if each not in {*_FLAGS, *_COUNTING, *_COUNTED}]
        extension.extra_compile_args = [*before, *_FLAGS, *flags]
        extension.extra_link_args = list(flags)


def _run_setup(extensions: Sequence[Extension], *command: str) -> None:
    setup(ext_modules=extensions, cmdclass={"build_ext": _BuildInParallel}, script_args=["--quiet", *command])


def _train(build: Path) -> None:
    """Run requests of each kind that bench.instructions counts through what is compiled, for gcc to see its usual way.

    Among them are some with everything on: what records calls and counts budgets would be taken for seldom used.
    The counts are written beside the object files when the process ends, where the next compilation looks for them.
    """
    command = [sys.executable, "-m", "bench.instructions", "--tree", str(build), "--time"]
    command += [kind.name for kind in (*KINDS, ALL_ON[-1])]
    # Nothing of the caller's, as for a count: the same sources get the same profile.
    environment = {"PATH": os.environ["PATH"], "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=sys.stderr, check=False)  # noqa: S603
    if done.returncode or not any(build.glob("build/**/*.gcda")):
        raise _CompileError(f"{' '.join(command)} ended with {done.returncode}: there is no profile to compile with")


def _allow_subclasses(build: Path) -> None:
    """Decorate the classes, where there is an empty line: the numbers of lines stay, which tracebacks show.

    mypyc alone sees the decorator: nothing is imported when the module runs.
    """
    for each in _INHERITED:
        name, _, class_name = each.partition(":")
        source = build / "velox" / f"{name}.py"
        lines = source.read_text().splitlines()
        (at,) = (number for number, line in enumerate(lines) if re.match(rf"class {class_name}\b", line))
        while lines[at - 1]:
            at -= 1
        lines[at - 1] = "@mypyc_attr(allow_interpreted_subclasses=True)"
        first = "from __future__ import annotations"
        if first in lines:
            at = lines.index(first)
            lines[at] += "; from typing import TYPE_CHECKING as _IS_CHECKED"
            lines[at + 1] = "if _IS_CHECKED: from mypy_extensions import mypyc_attr"
        source.write_text("\n".join(lines) + "\n")


def _with_weak_references(text: str) -> str:
    """Mend what mypyc 2.4 does with weak references to objects that have a `__dict__`, that is, an interpreted base.

    It takes the list of them for an owned reference: the collector counts it, and the end of the object lets it go
    instead of clearing the weak references, which then point to freed memory.
    """
    place = r"\(\*\(\(PyObject \*\*\)\(\(char \*\)self \+ sizeof\(PyObject \*\) \+ sizeof\(\w+\)\)\)\);"
    text = re.sub(rf"Py_VISIT{place}", "", text)
    return re.sub(rf"Py_CLEAR{place}", "if (Py_REFCNT(self) == 0) PyObject_ClearWeakRefs((PyObject *)self);", text)


class _BuildInParallel(build_ext):
    """setuptools compiles one file after the other; there are as many as modules."""

    def build_extensions(self) -> None:
        self.compiler.compile = types.MethodType(_compile_in_parallel, self.compiler)
        super().build_extensions()


def _compile_in_parallel(
    compiler: Any,
    sources: Sequence[str],
    output_dir: str | None = None,
    macros: Any = None,
    include_dirs: Any = None,
    debug: bool = False,
    extra_preargs: Any = None,
    extra_postargs: Any = None,
    depends: Any = None,
) -> list[str]:
    macros, objects, extra_postargs, options, build = compiler._setup_compile(
        output_dir, macros, include_dirs, sources, depends, extra_postargs
    )
    arguments = compiler._get_cc_args(options, debug, extra_preargs)
    largest_first = sorted(objects, key=lambda each: -Path(build[each][0]).stat().st_size)
    with ThreadPoolExecutor(os.cpu_count()) as executor:
        jobs = [
            executor.submit(compiler._compile, each, *build[each], arguments, extra_postargs, options)
            for each in largest_first
        ]
        for number, job in enumerate(jobs):
            job.result()
            print(f"\r{number + 1} of {len(jobs)} files compiled", end="", file=sys.stderr, flush=True)  # noqa: T201
    print(file=sys.stderr)  # noqa: T201
    return objects  # type: ignore[no-any-return]


# What the Makefile installs beside .venv, as some tests need it.
_BESIDE: Final = (".engine", ".phoenix", ".release", ".helm", ".schemathesis", ".litellm")


def _copy_checkout(folder: Path) -> None:
    """Copy what is not ignored, and what is installed: its files are shared, but for those that name a path."""
    ignored = [line.rstrip("/").rpartition("/")[2] for line in (ROOT / ".gitignore").read_text().splitlines() if line]
    shutil.copytree(ROOT, folder, symlinks=True, ignore=shutil.ignore_patterns(".git", *ignored))
    for name in (".venv", *_BESIDE, "tests/e2e/node/node_modules"):
        if (ROOT / name).exists():
            shutil.copytree(ROOT / name, folder / name, symlinks=True, copy_function=os.link)
    here = str(ROOT).encode()
    scripts = [*(folder / ".venv/bin").iterdir(), folder / ".venv/pyvenv.cfg"]
    installed = (folder / ".venv/lib").glob("python*/site-packages/__editable__*")
    for each in [*scripts, *installed]:
        if each.is_file() and not each.is_symlink() and here in (text := each.read_bytes()):
            mode = each.stat().st_mode
            each.unlink()
            each.write_bytes(text.replace(here, str(folder).encode()))
            each.chmod(mode)


if __name__ == "__main__":
    code = main()
    # Not by sys.exit(): mypy is compiled itself, and once its end went round in the collector for ever.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
