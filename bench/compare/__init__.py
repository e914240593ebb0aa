"""All gateways side by side: `make bench` and `make bench-full`.

python -m bench.compare                       # about 11 minutes, after the peers are installed
python -m bench.compare --full                # 25 to 30 minutes
python -m bench.compare --smoke               # nginx and Velox, under a minute: does it run?
python -m bench.compare --agree A.json B.json # do two runs say the same?

cells.py       what is measured: the workloads
subjects.py    who is measured, and how each is started
stage.py       rounds: one cell after the other, before one upstream
memory.py      memory and starts, by themselves
workers.py     throughput against workers
run.py         one run, from installing to the document
tables.py      the document as Markdown
agree.py       two documents beside each other
progress.py    what is being done, and how long it still takes
"""
