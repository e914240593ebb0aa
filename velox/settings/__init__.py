"""The settings: one frozen value, read from the environment and a YAML file.

Knows: names, units, bounds, defaults and which settings contradict each other. Does not know: what is built from them.

    model       every setting: type, unit, variable, default, bounds and meaning, in one place
    variable    what a field of it says of its variable
    parse       text -> value, or ValueError that says what was expected
    tree        the YAML file, with line numbers, and the fields of one entry
    loading     the environment takes precedence over the file, the file over defaults; every problem at once
    checks      settings that contradict each other, and files that hold keys
    machine     defaults that follow from cores and memory
    keys        the list of keys; limits: the list of limits; header_rules: what is done to headers
    upstreams   the list of upstreams; routes: the list of routes; routing: both together, and their consistency
    certificates  the files of TLS
    losses      what a reload must not take away unasked
    live        what takes effect while a gateway runs, and how a change is described
    show        `velox check` and docs/settings.md, from the same model
"""

from velox.settings.loading import load
from velox.settings.model import Settings
from velox.settings.problems import Problem, SettingsError

__all__ = ["Problem", "Settings", "SettingsError", "load"]
