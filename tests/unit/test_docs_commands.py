"""What README.md and docs/ tell a person to type is run by a test; what they point to exists."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from tests.markdown import PAGES, ROOT, anchors, blocks, commands, links
from velox.errors import Reason, VeloxError
from velox.gateway.reply.respond import error_body
from velox.settings import load
from velox.settings.model import VARIABLES

EXAMPLES = "tests/e2e/test_docs_examples.py"
DEPLOY = "tests/unit/deploy/test_deploy_files.py"
# Run as they stand, with other ports and shorter times.
ACCOUNTS = "tests/unit/runtime/commands/test_account_commands.py::test_commands_of_the_page"
API = "tests/e2e/test_admin_api.py::test_commands_of_the_page"
CURL = f"{EXAMPLES}::test_curl_command_works"
DEMO = f"{EXAMPLES}::test_make_run_streams_an_answer"
# No container is built here: the settings and files that the command names are checked.
DOCKER = "tests/unit/test_docs_commands.py::test_docker_command_starts_with_what_it_sets"
COMPOSE = f"{DEPLOY}::test_compose_file_sets_only_known_variables_and_leaves_time_to_drain"
ASK = (
    "curl -N http://127.0.0.1:8080/v1/chat/completions -H 'content-type: application/json' -d "
    '\'{"model": "velox-sim", "stream": true, "messages": [{"role": "user", "content": "Hello"}]}\''
)
SIDECAR = (
    "docker run -d --name velox --network container:my-app --stop-timeout 30 --read-only "
    "-e VELOX_LISTEN=127.0.0.1:8080 -e OPENAI_API_KEY velox"
)

UNIX_SIDECAR = (
    "docker run -d --name velox --volume velox:/run/velox --stop-timeout 30 --read-only "
    "-e VELOX_LISTEN=unix:/run/velox/velox.sock -e VELOX_LISTEN_MODE=0666 -e OPENAI_API_KEY velox"
)
LEDGER_VOLUME = (
    "docker run -d --name my-velox -p 127.0.0.1:8080:8080 --volume velox-ledger:/var/lib/velox "
    "--stop-timeout 30 --read-only -e VELOX_LEDGER=/var/lib/velox -e VELOX_API_KEYS=$GATEWAY_KEY "
    "-e OPENAI_API_KEY velox"
)
UNIX_PAGE = "tests/e2e/test_docs_tls.py::test_unix_command_and_snippet_work"
CLIENT_CERTIFICATES = "tests/e2e/test_docs_tls.py::test_client_certificates_are_made_and_used_as_shown"

KEYS = "tests/e2e/test_docs_keys.py"
ADMIN = f"{KEYS}::test_admin_commands_work_with_the_token"
VECTORS = "tests/vectors/test_command.py"
FUZZ = "tests/fuzz/test_fuzz.py"
H2SPEC = "tests/h2spec/test_command.py"

FLEET = "tests/e2e/test_docs_fleet.py::test_fleet_of_the_page_answers_by_its_names"

MOVING_IN = "tests/migrate/test_import_litellm.py::test_page_shows_what_its_commands_write"

MOVING_KEYS = "tests/e2e/test_moving.py::test_keys_of_a_dump_work_and_their_spend_goes_on"
MOVING_SCRIPTS = "tests/e2e/test_moving.py::test_scripts_of_litellm_work"

AUDIT = "tests/unit/ledger/test_audit.py::test_cost_of_a_row_is_what_its_columns_and_prices_make"
PRICES = "tests/unit/prices/test_price_file.py::test_commands_of_the_page_are_run"
EXPORT = "tests/unit/runtime/commands/test_export.py::test_command_of_the_page"
INSTALL = "tests/e2e/test_packages.py::test_commands_of_the_page_install_the_service"
# No cluster is here: what the commands install is rendered and checked.
CHART = "tests/e2e/test_chart.py::test_what_the_chart_makes_is_kubernetes"
RELEASE = "tests/e2e/test_release.py::test_release_is_whole_and_can_be_checked_as_shown"
DAEMON = "tests/e2e/test_daemon.py::test_daemon_is_started_upgraded_and_stopped"
FOLLOWED = "tests/e2e/test_daemon.py::test_logs_are_rotated_and_followed"
RUN_WHEEL = "tests/e2e/test_packages.py::test_wheel_is_run_without_being_installed"
LEDGER = "tests/e2e/test_ledger.py::test_commands_of_the_page"
POSTGRES = "tests/e2e/test_postgres.py::test_commands_of_the_page"

PURGE = "tests/e2e/test_cache.py::test_purge_takes_out_what_is_named_at_all_workers"
OPERATING = "tests/e2e/test_operating.py::test_shared_gateway_in_ten_lines"

# Each command that the pages show, and what runs it: a test, or a line of .ci/run.
RUN_BY = {
    "make run": DEMO,
    "OPENAI_API_KEY=sk-... VELOX_UPSTREAM_ORIGIN=https://api.openai.com make run KEY=yes": (
        f"{EXAMPLES}::test_make_run_with_a_key_asks_the_origin"
    ),
    "OPENAI_API_KEY=... VELOX_UPSTREAM_ORIGIN=https://llm.example.com make run": (
        f"{EXAMPLES}::test_make_run_sends_nothing_that_may_cost"
    ),
    "make check": ".ci/run: make --keep-going lint",
    "make check-gateway": "tests/arch/test_selection.py::test_every_package_has_a_command_of_its_own",
    "make test": ".ci/run: tests test",
    # Two gigabytes of clients are no part of CI.
    "make test-clients": "tests/arch/test_selection.py::test_every_test_is_run_by_one_command",
    "make test-all": ".ci/run: tests -C .compiled test-broken",
    "make compiled": ".ci/run: make wheel compiled dist",
    "make wheel": ".ci/run: make wheel compiled dist",
    **dict.fromkeys(commands(ROOT / "docs/kubernetes.md"), CHART),
    "make image": f"{DEPLOY}::test_stage_that_is_not_needed_is_left_out",
    "make release": RELEASE,
    **dict.fromkeys(commands(ROOT / "docs/releasing.md"), RELEASE),
    **{f".venv/bin/velox {words} --config velox.yaml": DAEMON for words in ("start", "status", "restart", "stop")},
    ".venv/bin/velox logs -f --errors --config velox.yaml": FOLLOWED,
    "make dist": ".ci/run: make wheel compiled dist",
    "uvx --from dist/velox_gateway-0.1.0-py3-none-any.whl velox serve --sim": RUN_WHEEL,
    "pipx run --spec dist/velox_gateway-0.1.0-py3-none-any.whl velox serve --sim": RUN_WHEEL,
    "python3 -m venv /opt/velox": INSTALL,
    "/opt/velox/bin/pip install --require-hashes --only-binary :all: -r dist/requirements.lock": INSTALL,
    "/opt/velox/bin/pip install --no-deps dist/velox_gateway-0.1.0-py3-none-any.whl": INSTALL,
    ".venv/bin/python -m tests.interop.restarts": "tests/interop/test_restarts.py::test_command_prints_its_table",
    ".venv/bin/python -m tests.vectors": f"{VECTORS}::test_command_prints_its_table",
    ".venv/bin/python -m tests.vectors --through nginx,haproxy,caddy,envoy,uvicorn": (
        f"{VECTORS}::test_command_prints_what_came_of_it_between_servers"
    ),
    ".venv/bin/python -m tests.vectors --from nginx,haproxy,caddy,envoy": (
        f"{VECTORS}::test_command_prints_what_came_of_it_between_servers"
    ),
    ".venv/bin/python -m tests.floods": "tests/floods/test_command.py::test_command_prints_its_table",
    ".venv/bin/python -m tests.h2spec": f"{H2SPEC}::test_command_prints_its_table",
    ".venv/bin/python -m tests.h2spec --gateway": f"{H2SPEC}::test_command_prints_its_table",
    ".venv/bin/python -m tests.h2spec --all": f"{H2SPEC}::test_command_prints_every_case_when_asked",
    ".venv/bin/python -m tests.wall --write docs/faults.md": (
        "tests/wall/test_command.py::test_command_runs_the_tests_of_a_fault_and_writes_their_row"
    ),
    ".venv/bin/python -m tests.arch.lines": (
        "tests/arch/test_shape.py::test_lines_of_code_have_no_comments_and_docstrings"
    ),
    ".venv/bin/python -m tests.failover": "tests/e2e/test_failover_bench.py::test_command_prints_its_table",
    ".venv/bin/python -m tests.storm": "tests/storm/test_storm.py::test_command_prints_its_tables",
    "make soak-short": ".ci/run: make -C .compiled soak-short",
    # The same program as soak-short, for an hour.
    "make soak": "tests/soak/test_command.py::test_short_soak_finds_nothing",
    ".venv/bin/python -m tests.soak.translated": (
        "tests/soak/test_command.py::test_translated_requests_leave_memory_flat"
    ),
    "make fuzz": f"{FUZZ}::test_every_target_is_fuzzed_for_a_second",
    ".venv/bin/python -m tests.fuzz --seconds 1800 --log .fuzz/long.jsonl": (
        f"{FUZZ}::test_run_goes_on_where_its_log_ends"
    ),
    ".venv/bin/python -m tests.fuzz --report .fuzz/long.jsonl": f"{FUZZ}::test_report_is_a_row_a_target",
    "make lint": ".ci/run: make --keep-going lint",
    "make bench": ".ci/run: make bench",
    ".venv/bin/python -m bench.micro": (
        "bench/tests/test_micro.py::test_command_measures_a_part_and_fills_no_page_when_fast"
    ),
    ".ci/run": "tests/unit/deploy/test_deploy_files.py::test_script_is_executable_and_stops_at_an_unset_variable",
    ".venv/bin/velox serve --sim": f"{EXAMPLES}::test_python_snippet_prints_an_answer",
    "OPENAI_API_KEY=sk-... .venv/bin/velox serve": "tests/e2e/test_forwarding.py::test_own_key_replaces_the_clients",
    ".venv/bin/velox check": ".ci/run: .venv/bin/velox check",
    "VELOX_LIMITS='[{per: model, models: [llama-*], concurrency: 8}]' .venv/bin/velox check": (
        "tests/unit/test_docs_limits.py::test_command_prints_the_limit"
    ),
    ".venv/bin/velox check --config velox.yaml --model gpt-4o --key team-a --header 'x-tenant: other'": (
        "tests/unit/test_docs_routes.py::test_command_explains_as_shown"
    ),
    ".venv/bin/velox import litellm config.yaml -o velox.yaml": MOVING_IN,
    ".venv/bin/velox check --config velox.yaml": MOVING_IN,
    ".venv/bin/velox init": "tests/unit/runtime/commands/test_init.py::test_answers_stand_in_the_file",
    "VELOX_LEDGER=/var/lib/velox velox import litellm-db litellm.sql --dry-run": MOVING_KEYS,
    "VELOX_LEDGER=/var/lib/velox velox import litellm-db litellm.sql": MOVING_KEYS,
    "VELOX_LEDGER=/var/lib/velox VELOX_MANAGED_KEYS=on velox serve": MOVING_KEYS,
    'curl http://127.0.0.1:6060/key/generate -H "Authorization: Bearer $MASTER" --json '
    '\'{"models": ["gpt-4o"], "max_budget": 20, "budget_duration": "30d"}\'': MOVING_SCRIPTS,
    'curl "http://127.0.0.1:6060/key/info?key=$KEY" -H "x-litellm-api-key: $MASTER"': MOVING_SCRIPTS,
    'curl "http://127.0.0.1:6060/user/daily/activity?start_date=2026-01-01" -H "Authorization: Bearer $MASTER"': (
        MOVING_SCRIPTS
    ),
    "VELOX_LEDGER=/var/lib/velox velox serve": LEDGER,
    "OTEL_EXPORTER_OTLP_ENDPOINT=http://collector:4318 OTEL_SERVICE_NAME=gateway velox serve": (
        "tests/e2e/test_traces.py::test_stream_that_failed_over_has_a_span_for_each_attempt"
    ),
    "VELOX_LEDGER=/var/lib/velox VELOX_LEDGER_RINGS=/dev/shm/velox velox serve": (
        "tests/e2e/test_frozen_disk.py::test_requests_are_served_while_the_disk_hangs"
    ),
    "velox team create --id web --models 'gpt-4o*' --budget '200 usd/month'": ACCOUNTS,
    "velox key create --id shop --team web --rpm 2k": ACCOUNTS,
    "velox key update shop --tags eu,batch --clear rpm": ACCOUNTS,
    "velox key rotate shop --grace 1h": ACCOUNTS,
    "velox key list --team web": ACCOUNTS,
    "velox audit --id shop": ACCOUNTS,
    "velox usage": LEDGER,
    "velox usage --by team,day": LEDGER,
    "velox usage --since 24h": LEDGER,
    "velox usage --by key,model --since 2026-11-01 --format csv": LEDGER,
    "velox usage --calls --since 1h --format jsonl # each call": LEDGER,
    "velox usage --calls --since 1d --until 0d --to yesterday.jsonl.gz": EXPORT,
    "velox usage --rebuild": "tests/unit/ledger/test_damage.py::test_command_mends_what_is_damaged",
    "velox prices claude-sonnet-4-5": PRICES,
    "velox import litellm-prices model_prices_and_context_window.json -o prices.yaml": (
        "tests/migrate/test_import_litellm_prices.py::test_command_writes_a_file_that_the_settings_take"
    ),
    "velox prices gpt-5 --upstream main --tier flex --json": PRICES,
    "velox prices gpt-5 --upstream main --tier flex --at 2026-11-23T12:00:00Z --json": AUDIT,
    ".venv/bin/velox serve --config velox.yaml": f"{EXAMPLES}::test_file_of_the_readme_is_served",
    ".venv/bin/velox sim --listen 127.0.0.1:9000 --ttft 50ms --token-rate 100": (
        f"{EXAMPLES}::test_simulator_command_answers"
    ),
    **dict.fromkeys(commands(ROOT / "docs/simulator.md"), FLEET),
    ASK: CURL,
    ".venv/bin/velox reload --config velox.yaml": "tests/e2e/test_docs_reload.py::test_command_prints_as_shown",
    "curl -X POST http://127.0.0.1:6060/reload": CURL,
    'curl -H "Authorization: Bearer $TOKEN" http://127.0.0.1:6060/api/v1/'
    'teams --json \'{"id": "web", "budgets": [{"usd": 200, "window": "month"}]}\'': API,
    'curl -H "Authorization: Bearer $TOKEN" http://127.0.0.1:6060/api/v1/'
    'keys --json \'{"id": "shop", "team": "web", "rpm": 600}\'': API,
    'curl -H "Authorization: Bearer $TOKEN" http://127.0.0.1:6060/api/v1/'
    'keys --json \'{"id": "web-boss", "team": "web", "role": "team_admin"}\'': API,
    'curl -H "Authorization: Bearer $TOKEN" http://127.0.0.1:6060/api/v1/'
    'keys/shop -X PATCH --json \'{"expires": "2040-01-31"}\'': API,
    'curl -H "Authorization: Bearer $TOKEN" http://127.0.0.1:6060/api/v1/'
    "keys/shop/rotate --json '{\"grace_s\": 3600}'": API,
    "curl -H \"Authorization: Bearer $TOKEN\" 'http://127.0.0.1:6060/api/v1/usage?by=team,day&since=30d'": API,
    "curl -H \"Authorization: Bearer $TOKEN\" 'http://127.0.0.1:6060/api/v1/changes?kind=key'": API,
    "export VELOX_LEDGER=$PWD/ledger VELOX_MANAGED_KEYS=on": OPERATING,
    "export VELOX_ADMIN_TOKEN=$(openssl rand -hex 32)": OPERATING,
    "velox serve --sim &": OPERATING,
    "velox team create --id web --budget '200 usd/month'": OPERATING,
    "velox team create --id lab --budget '2M tokens/day' --models 'gpt-*'": OPERATING,
    "KEY=$(velox key create --id shop --team web --rpm 600 --json | "
    'sed -n \'s/.*"key": *"\\([^"]*\\)".*/\\1/p\')': OPERATING,
    "sleep 3": OPERATING,
    'curl -sS http://127.0.0.1:8080/v1/chat/completions -H "Authorization: Bearer $KEY" --json '
    '\'{"model": "gpt-4o", "messages": [{"role": "user", "content": "Hello"}]}\'': OPERATING,
    "velox usage --by team,key": OPERATING,
    "velox budgets": OPERATING,
    "velox cache purge": PURGE,
    "velox cache purge --route evals": PURGE,
    "velox cache purge --key shop --older-than 10m": PURGE,
    "curl http://127.0.0.1:6060/readyz": CURL,
    "curl http://127.0.0.1:6060/debug/pprof/tasks": CURL,
    "curl http://127.0.0.1:6060/debug/pprof/connections": CURL,
    "curl http://127.0.0.1:6060/debug/pprof/loop": CURL,
    "curl http://127.0.0.1:6060/metrics": CURL,
    "curl -o cpu.pb.gz 'http://127.0.0.1:6060/debug/pprof/profile?seconds=10'": CURL,
    "go tool pprof -top 'http://127.0.0.1:6060/debug/pprof/profile?seconds=10'": (
        f"{EXAMPLES}::test_go_tool_pprof_command_works"
    ),
    "docker build -t velox .": f"{DEPLOY}::test_image_copies_only_files_that_exist_and_are_not_ignored",
    "docker run --rm -p 127.0.0.1:8080:8080 -e VELOX_API_KEYS=$GATEWAY_KEY -e OPENAI_API_KEY velox": DOCKER,
    LEDGER_VOLUME: DOCKER,
    SIDECAR: DOCKER,
    "docker exec my-velox velox check": "tests/e2e/test_image.py::test_entry_point_is_the_command_on_the_path",
    ".venv/bin/velox upgrade": "tests/e2e/test_upgrade.py::test_u6_nothing_fails_over_upgrades_and_reloads",
    "docker exec my-velox velox reload": "tests/e2e/test_image.py::test_velox_reload_works_in_a_container",
    "docker exec my-velox velox health": (
        "tests/e2e/test_image.py::test_health_check_of_the_image_finds_the_admin_listener"
    ),
    "docker compose -f deploy/compose.yaml up --build": COMPOSE,
    "docker compose -f deploy/sidecar.compose.yaml up --build": COMPOSE,
    ".venv/bin/velox key new": f"{KEYS}::test_key_commands_make_a_key_and_its_entry",
    ".venv/bin/velox key hash < key.txt": f"{KEYS}::test_key_commands_make_a_key_and_its_entry",
    'curl -H "Authorization: Bearer $TOKEN" http://127.0.0.1:6060/metrics': ADMIN,
    'curl -H "Authorization: Bearer $TOKEN" -o cpu.pb.gz'
    " 'http://127.0.0.1:6060/debug/pprof/profile?seconds=10'": ADMIN,
    "psql -c \"CREATE ROLE velox LOGIN PASSWORD 'PASSWORD'\"": POSTGRES,
    "createdb --owner velox --encoding UTF8 --template template0 velox": POSTGRES,
    "VELOX_LEDGER=/var/lib/velox VELOX_LEDGER_DATABASE=postgresql://velox:PASSWORD@db.example.com/velox velox check": (
        POSTGRES
    ),
    UNIX_SIDECAR: DOCKER,
    "VELOX_LISTEN=unix:/run/velox/velox.sock .venv/bin/velox serve": UNIX_PAGE,
    "VELOX_LISTEN=0.0.0.0:8443 VELOX_TLS_CERT=tls.crt VELOX_TLS_KEY=tls.key VELOX_API_KEYS=$GATEWAY_KEY"
    " .venv/bin/velox serve": "tests/e2e/test_docs_tls.py::test_tls_command_serves_tls",
    "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -days 3650"
    ' -subj "/CN=our clients" -keyout clients.key -out clients.pem': CLIENT_CERTIFICATES,
    "openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc"
    ' -subj "/CN=my-app" -keyout app.key -out app.csr': CLIENT_CERTIFICATES,
    "openssl x509 -req -in app.csr -CA clients.pem -CAkey clients.key -days 365 -out app.pem": CLIENT_CERTIFICATES,
}
SHOWN = sorted({command for page in PAGES for command in commands(page)})
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


def is_there(test: str) -> bool:
    """Tell whether `path::name` is a test that exists."""
    path, _, name = test.partition("::")
    return (ROOT / path).is_file() and re.search(rf"def {name}\(", (ROOT / path).read_text()) is not None


@pytest.mark.parametrize("command", SHOWN)
def test_command_shown_is_run_by_something_that_exists(command: str) -> None:
    """A command that nothing runs is a command that will rot."""
    runs_it = RUN_BY.get(command)

    assert runs_it is not None, f"add it to RUN_BY with the test that runs it: {command}"
    if runs_it.startswith(".ci/run: "):
        assert runs_it.removeprefix(".ci/run: ") in (ROOT / ".ci/run").read_text()
    else:
        assert is_there(runs_it), runs_it


def test_table_has_no_command_that_is_shown_nowhere() -> None:
    """What left the pages leaves the table."""
    assert sorted(RUN_BY) == SHOWN


def folders_of_the_images_user() -> set[str]:
    """Return what the image's user may write to, and so may a new volume that is mounted there."""
    text = (ROOT / "Dockerfile").read_text()
    (user,) = re.findall(r"^USER (\d+):\1$", text, re.MULTILINE)
    return set(re.findall(rf"install -d -o {user} -g {user} -m \d+ (\S+)", text))


@pytest.mark.parametrize("command", [command for command, test in RUN_BY.items() if test == DOCKER])
def test_docker_command_starts_with_what_it_sets(command: str) -> None:
    """The image's settings and those of the command are accepted together: Velox would start."""
    words = shlex.split(command)
    given = [words[at + 1] for at, word in enumerate(words) if word == "-e"]
    image = re.search(r"VELOX_LISTEN=\S+", (ROOT / "Dockerfile").read_text())
    assert image is not None
    environ = dict(setting.split("=", 1) if "=" in setting else (setting, "k") for setting in [image[0], *given])

    settings = load(environ)

    assert words[-1] == "velox"
    assert settings.listen[0].kind == "unix" or settings.listen[0].port == 8080
    mounted = {words[at + 1].rpartition(":")[2] for at, word in enumerate(words) if word == "--volume"}
    places = {str(Path(each.path).parent) for each in settings.listen if each.kind == "unix"} | {settings.ledger or ""}
    assert mounted == places - {""} <= folders_of_the_images_user()
    if "--stop-timeout" in words:
        assert int(words[words.index("--stop-timeout") + 1]) > settings.drain_timeout_s


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_link_leads_somewhere(page: Path) -> None:
    """Each link inside the repository names a file, and a heading of it where it names one."""
    for link in links(page):
        if re.match(r"https?://", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_path_shown_is_there(page: Path) -> None:
    """A file of the repository that a page names without a link exists, too."""
    shown = re.findall(r"`((?:velox|velox_migrate|velox_sim|tests|docs|deploy|bench)/[\w/.-]+\.\w+)`", page.read_text())

    assert [path for path in shown if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_page_names_only_known_variables(page: Path) -> None:
    """A VELOX_ name in a page is a setting (or the demo's); one that ends with _ is a prefix."""
    known = {variable.name for variable in VARIABLES} | {"VELOX_"}

    assert set(re.findall(r"\b(?:VELOX_[A-Z0-9_]*|OPENAI_API_KEY)", page.read_text())) <= known


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_page_has_a_title_and_short_lines(page: Path) -> None:
    """One title at the top; prose of at most 170 characters a line (tables are as wide as they are)."""
    text = page.read_text()

    assert text.startswith("# ") and len(re.findall(r"^# ", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.M)) == 1
    assert [line for line in text.splitlines() if len(line) > 170 and not line.startswith("|")] == []


def test_json_shown_is_the_shape_of_an_error() -> None:
    """As velox/errors.py writes it: the same fields, a code and its own type."""
    (example,) = blocks(ROOT / "docs/errors.md", "json")

    shown = json.loads(example)
    written = json.loads(error_body(VeloxError(Reason.RATE_LIMITED, "...")))

    assert shown == written


def test_promise_names_a_test_that_exists() -> None:
    """Each line of docs/guarantees.md is shown by a test; no test, no guarantee."""
    page = (ROOT / "docs/guarantees.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| ") and not line.startswith("| guarantee |")]
    tests = re.findall(r"`(tests/\S+::\w+)`", page)

    assert len(rows) == len(tests) > 10
    assert [test for test in tests if not is_there(test)] == []
