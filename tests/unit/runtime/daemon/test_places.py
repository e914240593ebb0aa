"""Where a daemon's files are: as the settings say, else where the system and the XDG base directories have them."""

from __future__ import annotations

from pathlib import Path

from velox.runtime.daemon.places import places_of


def test_files_of_root_are_where_services_have_them() -> None:
    assert places_of({"HOME": "/root"}, {}, uid=0) == ("/run/velox/velox.pid", "/var/log/velox/velox.log", "")


def test_files_of_others_are_where_xdg_says() -> None:
    state = "/home/a/.local/state/velox"
    assert places_of({"HOME": "/home/a"}, {}, uid=7) == (f"{state}/velox.pid", f"{state}/velox.log", "")
    given = {"HOME": "/home/a", "XDG_RUNTIME_DIR": "/run/user/7", "XDG_STATE_HOME": "/s"}
    assert places_of(given, {}, uid=7) == ("/run/user/7/velox/velox.pid", "/s/velox/velox.log", "")


def test_settings_say_otherwise_also_where_others_are_invalid(tmp_path: Path) -> None:
    """The command line counts before the environment, the environment before the file; paths are made absolute."""
    file = tmp_path / "velox.yaml"
    file.write_text("workers: many\npid_file: /a/file.pid\nlog_file: /a/file.log\naccess_log_file: /a/access.log\n")
    environ = {"VELOX_CONFIG": str(file), "VELOX_LOG_FILE": "/a/environment.log"}
    assert places_of(environ, {}) == ("/a/file.pid", "/a/environment.log", "/a/access.log")
    found = places_of(environ, {"VELOX_PID_FILE": "here.pid", "VELOX_LOG_FILE": "/a/line.log"})
    assert found == (str(Path.cwd() / "here.pid"), "/a/line.log", "/a/access.log")
