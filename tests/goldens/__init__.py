"""What a change of the source tree must not change: weights, bytes sent, disclosures, ledgers and audits of small runs.

``cases.py`` has the jobs, ``goldens.json`` what they gave. Only what users rely on is touched: the command line, the
files of a run and ``import veilgraph``. ``python -m tests.goldens`` compares with the file and ``--write`` renews it;
``make goldens BASE=main`` makes the goldens of another commit on this very machine and compares to the bit, whatever
the processor. ``make test`` has one case, ``make nightly`` all.
"""
