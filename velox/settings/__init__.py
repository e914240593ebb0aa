"""What Velox is told before it starts: one frozen value, read from the environment and a YAML file.

Knows: names, units, bounds, defaults and how settings contradict each other. Does not know: what is
built from them.

    variables   the one table: name, field, parser, default, meaning
    parse       text -> value, or ValueError saying what was expected
    file        the YAML file, with line numbers
    loading     environment beats file beats default; every problem at once
    tree        the parts of it that are lists of fields inside each other
    entries     what upstreams and routes are, as all below sees them
    upstreams   how the list of them is written; routes: the same for those
    routing     both together, or the variables alone; route_checks: what can't hold
    limits      what a limit is and how the list of them is written
    live        what of all that takes effect while a gateway runs, and how a change is told
    show        `velox check` and README's table, from the same table
"""

from velox.settings.loading import load
from velox.settings.model import Settings
from velox.settings.problems import Problem, SettingsError

__all__ = ["Problem", "Settings", "SettingsError", "load"]
