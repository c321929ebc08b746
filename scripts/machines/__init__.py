"""Emulated machines, as `scripts/vm` starts them."""

# How long anything of one may take: it is emulated, on processors that it shares with whatever else runs. No test waits so
# long for what works; it is there for what never comes.
PATIENCE_S = 300
