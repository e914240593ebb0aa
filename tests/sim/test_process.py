"""The simulator as a process: its command line, its one line of output, its signals."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import socket
from multiprocessing.connection import Connection

import pytest

from velox_sim.options import SimOptions, add_arguments, read_options
from velox_sim.server import run

STREAM = (
    b'POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 43\r\n\r\n{"model": "m", "prompt": "", "stream":true}'
)


def parse(*words: str) -> SimOptions:
    """Return the options of a command line."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return read_options(parser.parse_args(words))


def test_no_arguments_give_the_defaults() -> None:
    """Without arguments the simulator runs as SimOptions says."""
    assert parse() == SimOptions()


def test_each_argument_reaches_its_option() -> None:
    """Each argument sets what its name says, with its unit."""
    words = "--listen [::1]:0 --ttft 1.5s --token-rate 0 --tokens 7 --error-rate 0.25 --cert c --key k"
    words += " --capacity 9 --batch-slowdown --prefill-rate 8000 --prefix-cache 4096 --slow-rate 0.1 --slow-by 2s"
    words += " --stall-rate 0.2 --stall-after 3 --flap 20s,500ms --flap-as refuse --name a.b-1 --load-metrics sglang"
    options = parse(*words.split(), "--no-http2", "--models", "a, b", "--seed", "3", "--grace", "0")

    assert options == SimOptions(
        host="::1",
        port=0,
        ttft_s=1.5,
        token_rate=0,
        tokens=7,
        capacity=9,
        batch_slowdown=True,
        prefill_rate=8000,
        prefix_cache=4096,
        error_rate=0.25,
        slow_rate=0.1,
        slow_by_s=2,
        stall_rate=0.2,
        stall_after=3,
        flap=(20, 0.5),
        flap_as="refuse",
        cert_file="c",
        key_file="k",
        http2=False,
        models=("a", "b"),
        name="a.b-1",
        load_metrics="sglang",
        seed=3,
        grace_s=0,
    )


@pytest.mark.parametrize(
    "words",
    [
        "--listen nowhere",
        "--listen unix:/tmp/x",
        "--ttft 5",
        "--tokens 0",
        "--tokens 100001",
        "--token-rate -1",
        "--token-rate nan",
        "--error-rate 1.01",
        "--capacity -1",
        "--batch-slowdown",
        "--prefill-rate -1",
        "--prefix-cache -1",
        "--prefix-cache 16000001",
        "--slow-rate 2",
        "--slow-by 1",
        "--stall-rate -0.1",
        "--stall-after -1",
        "--flap 5s",
        "--flap 5,5",
        "--flap 5s,0",
        "--flap 5s,5s,5s",
        "--name a/b",
        f"--name {'a' * 65}",
        "--cert c",
        "--models a,,b",
    ],
)
def test_argument_out_of_range_is_refused(words: str) -> None:
    """A value that can't be meant is refused with a text that says what is expected."""
    with pytest.raises(ValueError, match=r"expected|only|both|empty|without"):
        parse(*words.split())


def _child(options: SimOptions, lines: Connection) -> None:
    run(options, lines.send)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_signal_lets_the_stream_end_and_the_process_leaves(signum: signal.Signals) -> None:
    """Told to stop, the simulator says the answer to its end and leaves with status 0."""
    context = multiprocessing.get_context("spawn")
    lines, child_lines = context.Pipe(duplex=False)
    options = SimOptions(port=0, ttft_s=0, token_rate=50, tokens=20)
    process = context.Process(target=_child, args=(options, child_lines))
    process.start()
    try:
        assert lines.poll(10)
        line = lines.recv()
        assert line.startswith("velox sim listening on http://127.0.0.1:")
        with socket.create_connection(("127.0.0.1", int(line.rpartition(":")[2])), timeout=10) as client:
            client.sendall(STREAM)
            answer = client.recv(65_536)
            assert process.pid is not None
            os.kill(process.pid, signum)
            while piece := client.recv(65_536):
                answer += piece
        process.join(10)

        assert answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        assert process.exitcode == 0
    finally:
        process.kill()
        process.join()
