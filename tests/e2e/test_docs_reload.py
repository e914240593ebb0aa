"""What docs/reload.md shows is what the command prints, word for word."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from tests.e2e.harness import VeloxProcess
from tests.e2e.tools import free_port, run_velox
from tests.markdown import ROOT, blocks, commands

PAGE = ROOT / "docs" / "reload.md"

BEFORE = """\
upstreams:
  - {name: openai, origin: http://127.0.0.1:9}
routes:
  - {name: chat, to: openai}
"""
AFTER = """\
queue_depth: 100
upstreams:
  - {name: openai, origin: http://127.0.0.1:9}
  - {name: azure, origin: http://127.0.0.1:9}
routes:
  - {name: chat, to: [openai, azure]}
"""
BAD = "upstreams:\n  - {name: openai, orign: http://127.0.0.1:9}\n"


def test_command_prints_as_shown(tmp_path: Path) -> None:
    """It finds the gateway by the file's own fields; a file that is put right in between changes nothing."""
    file = tmp_path / "velox.yaml"
    here = f"admin_listen: 127.0.0.1:{free_port()}\n"
    (command,) = [command for command in commands(PAGE) if "velox reload" in command]
    words = [str(file) if word == "velox.yaml" else word for word in shlex.split(command)[1:]]
    good, bad = blocks(PAGE, "text")

    file.write_text(here + BEFORE)
    with VeloxProcess({"VELOX_CONFIG": str(file), "VELOX_ADMIN_LISTEN": ""}):
        file.write_text(here + AFTER)
        done = run_velox({"VELOX_ADMIN_LISTEN": ""}, *words)
        assert done.returncode == 0
        # The change of the file may have been seen before the command came.
        assert re.sub(r", taken \d+ s ago:", ":", done.stdout) == good

        file.write_text(BAD + here)
        done = run_velox({"VELOX_ADMIN_LISTEN": ""}, *words)
        assert done.returncode == 1
        assert done.stderr.replace(f"{file}:", "velox.yaml:") == bad.replace("number 1", "number 2")
