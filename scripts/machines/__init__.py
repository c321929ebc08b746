"""Emulated machines, as `scripts/vm` starts them."""

# How long anything of one may take: it is emulated, on processors that it shares with whatever else runs. No test waits so
# long for what works; it is there for what never comes.
PATIENCE_S = 300

EMULATORS = {
    "arm64": ["qemu-system-aarch64", "-machine", "virt", "-cpu", "cortex-a72", "-smp", "4"],
    "amd64": ["qemu-system-x86_64", "-machine", "q35", "-cpu", "max", "-smp", "2"],
}
CONSOLES = {"arm64": "ttyAMA0", "amd64": "ttyS0"}
