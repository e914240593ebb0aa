"""Run llama.cpp's server: `python llama_server.py MODEL PORT [embeddings]`. It needs tests/engine/requirements.txt."""

from __future__ import annotations

import importlib
import signal
import sys

# The engine reads from it how a tool is called, and its grammar then makes even a random model do so.
_TEMPLATE = r"""{%- if tools %}
{{- '<|im_start|>system\n<tools>' }}
{%- for tool in tools %}{{- '\n' }}{{- tool | tojson }}{%- endfor %}
{{- '\n</tools>\n<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call><|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
{{- '<|im_start|>' + message.role }}
{%- if message.content %}{{- '\n' + message.content }}{%- endif %}
{%- if message.tool_calls %}
{%- for call in message.tool_calls %}
{%- if call.function %}{%- set call = call.function %}{%- endif %}
{{- '\n<tool_call>\n{"name": "' }}{{- call.name }}{{- '", "arguments": ' }}{{- call.arguments | tojson }}
{{- '}\n</tool_call>' }}
{%- endfor %}
{%- endif %}
{{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}
"""


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
    params.chat_template = _TEMPLATE
    if kind:
        params.embedding = True
        params.pooling_type = engine.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
    server = engine.Server(params)
    print(server.listening_address, flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
