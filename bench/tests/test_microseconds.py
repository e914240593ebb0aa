"""Where a sample of CPU time is counted, and that the tables add up to what was measured."""

from bench.microsecond_shares import KERNEL, LOOP, OURS, Place, by_place, by_step, place_of, step_of
from bench.microseconds import Cell, tables

SCRIPT = """
\tffffffff82011ec8 tcp_sendmsg_locked ([kernel.kallsyms])
\tffffffff816bba2a ksys_write ([kernel.kallsyms])
\tffffffff821ef691 do_syscall_64 ([kernel.kallsyms])
\t          f838f __GI___libc_write (/usr/lib/x86_64-linux-gnu/libc.so.6)

\tffffffff821ef691 do_syscall_64 ([kernel.kallsyms])

\t          12b759 _PyEval_EvalFrameDefault (/usr/bin/python3.11)
\t          950020 [unknown] ([unknown])

\t           16a70 uv__io_poll (/venv/uvloop/loop.cpython-311-x86_64-linux-gnu.so)
"""


def test_by_place_counts_each_stack_once() -> None:
    """A stack of perf's is counted by the system call that it is in, else by where the processor was."""
    places = by_place(SCRIPT.splitlines())
    assert places == {
        Place(KERNEL, "writing to sockets"): 1,
        Place(KERNEL, "in and out of the kernel, interrupts"): 1,
        Place(OURS, "interpreter: evaluation of bytecode"): 1,
        Place(LOOP, "uvloop and libuv"): 1,
    }


def test_place_of_other_system_call() -> None:
    """A system call that has no row of its own is no entry into the kernel."""
    stack = [("futex_wait", "[kernel.kallsyms]"), ("__x64_sys_futex", "[kernel.kallsyms]")]
    assert place_of(stack).name == "other system calls"


def test_step_of_library_counts_for_its_caller() -> None:
    """What runs in the standard library is the step's that called it; what plays the client is nobody's."""
    outer = ["<module>", "bench.instructions.rig.Rig.run"]
    read = "velox.protocol.json.body.BodyReader.read"
    assert step_of([*outer, "velox.gateway.request.exchange.Exchange.read", read, "json.loads"]) == "read the body"
    assert step_of([*outer, read, "bench.instructions.wires.Http1Client.write"]) == ""
    assert step_of(outer) == step_of(["<module>"]) == "all else (the loop's callbacks, tasks)"


def test_by_step_leaves_out_what_the_bench_does() -> None:
    """Shares are of what is ours, and add up to one."""
    shares = by_step(
        [
            "rig;bench.instructions.wires.Http1Origin.write 700",
            "rig;velox.gateway.reply.reply.Reply.on_reply 100",
            "rig;velox.observe.series.Counter.add 300",
        ]
    )
    assert shares == {"reply": 0.25, "account, metrics": 0.75}


def test_tables_add_up_to_what_was_measured() -> None:
    """The rows of the first table are the measured total, those of the second one its part that is ours."""
    places = by_place(SCRIPT.splitlines())
    text = tables([Cell("JSON", 100.0, places, {"reply": 0.4, "queue": 0.6})])
    first, second = text.split("Of those that are ours")
    assert _numbers(first)[:-1] == [25.0, 25.0, 25.0, 10.0, 15.0]
    assert _numbers(first)[-1] == 100.0
    assert _numbers(second) == [25.0, 25.0]


def _numbers(table: str) -> list[float]:
    cells = [line.split("|")[2].strip(" *") for line in table.splitlines() if line.startswith("| ")]
    return [float(cell) for cell in cells[2:]]
