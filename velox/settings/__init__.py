"""The settings: one frozen value, read from the environment and a YAML file.

Knows: names, units, bounds, defaults and which settings contradict each other. Does not know: what is built from them.

    model       every setting: type, unit, variable, default, bounds and meaning, in one place
    variable    what a field of it says of its variable
    parse       text -> value, or ValueError that says what was expected
    loading     the environment takes precedence over the file, the file over defaults; every problem at once
    machine     defaults that follow from cores and memory
    live        what takes effect while a gateway runs, and how a change is described
    losses      what a reload must not take away unasked
    show        `velox check` and docs/settings.md, from the same model
    yaml/       the YAML file as trees, with line numbers, and the fields of one entry
    callers/    the lists of keys, limits, budgets and prices
    routing/    the lists of upstreams and routes, header rules, providers that variables name
    checks/     settings that contradict each other, certificates, advice
"""

from velox.settings.loading import load
from velox.settings.model import Settings
from velox.settings.problems import Problem, SettingsError

__all__ = ["Problem", "Settings", "SettingsError", "load"]
