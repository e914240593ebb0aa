"""The gateways that Velox is measured beside: which, how they are installed, how they are configured and started.

    python -m bench.peers install [NAME...]     # each into an environment of its own under bench/.peers/
    python -m bench.peers check [NAME...]       # start each, and see that it does what is measured

    catalogue.py    what there is to measure
    installing.py   how a peer gets onto this machine: versions and hashes are in locks/
    starting.py     how it is started: its file in configs/, filled in, and its command line

docs/benchmarks/peers.md says what is on in each, and why the comparison is fair.
"""

from __future__ import annotations

from bench.peers.catalogue import PEERS, STORE, Origin, Peer, PeerError
from bench.peers.installing import install, packages
from bench.peers.starting import start

__all__ = ["PEERS", "STORE", "Origin", "Peer", "PeerError", "install", "packages", "start"]
