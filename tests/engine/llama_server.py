"""Run llama.cpp's server: `python llama_server.py MODEL PORT [embeddings]`. It needs tests/engine/requirements.txt."""

from __future__ import annotations

import importlib
import signal
import sys


def main() -> None:
    """Serve until a signal ends the process."""
    model, port, *kind = sys.argv[1:]
    engine = importlib.import_module("xllamacpp")
    params = engine.CommonParams()
    params.model.path = model
    params.model_alias = {"tiny"}
    params.hostnames = ["127.0.0.1"]
    params.port = int(port)
    params.n_ctx = 32_768
    params.n_parallel = 16
    params.kv_unified = True  # a stream may take all of the context
    params.cpuparams.n_threads = 1
    params.cpuparams_batch.n_threads = 1
    params.warmup = False
    params.endpoint_metrics = True
    params.use_jinja = True
    if kind:
        params.embedding = True
        params.pooling_type = engine.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
    server = engine.Server(params)
    print(server.listening_address, flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
